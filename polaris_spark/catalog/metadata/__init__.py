"""Metadata of tables and views: stored rows, requirements and updates of commits, and the JSON that clients load.

The code performs no I/O of its own. It reads stored objects through the `ObjectReader` that the caller passes, and
returns new objects to the caller.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polaris_spark.catalog.metadata.draft import TableDraft
    from polaris_spark.catalog.metadata.metadata_paths import is_compressed, metadata_location
    from polaris_spark.catalog.metadata.renderer import render, render_view
    from polaris_spark.catalog.metadata.requirements import check, check_all, is_create
    from polaris_spark.catalog.metadata.rows import ObjectReader, Table, View
    from polaris_spark.catalog.metadata.table_creation import create_table
    from polaris_spark.catalog.metadata.table_parser import parse_table
    from polaris_spark.catalog.metadata.table_updates import apply, apply_all
    from polaris_spark.catalog.metadata.view_draft import ViewDraft
    from polaris_spark.catalog.metadata.view_parser import parse_view
    from polaris_spark.catalog.metadata.view_updates import (
        apply_view,
        apply_view_updates,
        check_view,
        create_view,
    )

_LAZY = {
    "create_table": "polaris_spark.catalog.metadata.table_creation",
    "TableDraft": "polaris_spark.catalog.metadata.draft",
    "is_compressed": "polaris_spark.catalog.metadata.metadata_paths",
    "metadata_location": "polaris_spark.catalog.metadata.metadata_paths",
    "parse_table": "polaris_spark.catalog.metadata.table_parser",
    "parse_view": "polaris_spark.catalog.metadata.view_parser",
    "render": "polaris_spark.catalog.metadata.renderer",
    "render_view": "polaris_spark.catalog.metadata.renderer",
    "is_create": "polaris_spark.catalog.metadata.requirements",
    "ObjectReader": "polaris_spark.catalog.metadata.rows",
    "Table": "polaris_spark.catalog.metadata.rows",
    "View": "polaris_spark.catalog.metadata.rows",
    "apply": "polaris_spark.catalog.metadata.table_updates",
    "apply_all": "polaris_spark.catalog.metadata.table_updates",
    "apply_view": "polaris_spark.catalog.metadata.view_updates",
    "apply_view_updates": "polaris_spark.catalog.metadata.view_updates",
    "check": "polaris_spark.catalog.metadata.requirements",
    "check_all": "polaris_spark.catalog.metadata.requirements",
    "check_view": "polaris_spark.catalog.metadata.view_updates",
    "ViewDraft": "polaris_spark.catalog.metadata.view_draft",
    "create_view": "polaris_spark.catalog.metadata.view_updates",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module when it is first used.

    Code that only reads rows then loads neither the updates nor the parsers.
    """
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ObjectReader",
    "Table",
    "TableDraft",
    "View",
    "ViewDraft",
    "apply",
    "apply_all",
    "apply_view",
    "apply_view_updates",
    "check",
    "check_all",
    "check_view",
    "create_table",
    "create_view",
    "is_compressed",
    "is_create",
    "metadata_location",
    "parse_table",
    "parse_view",
    "render",
    "render_view",
]
