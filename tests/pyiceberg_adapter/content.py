"""Schemas, rows and views that the tests put into catalogs."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType
from pyiceberg.view.metadata import SQLViewRepresentation, ViewVersion

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "name", StringType(), required=False),
)

HOSTILE = ["a.b", "a/b", "a b+c", "%41", "ünï/код", "?x=1&y#z", "...", '"quoted"']
"""Names that are escaped wrongly where they are escaped twice, or not at all."""


def rows(*pairs: tuple[int, str]) -> pa.Table:
    """Rows of `SCHEMA`."""
    arrow = pa.schema([("id", pa.int64()), ("name", pa.string())])
    return pa.table({"id": [id for id, _ in pairs], "name": [name for _, name in pairs]}, arrow)


def content(table: Table, **scan: Any) -> list[tuple[Any, ...]]:
    """The rows of a table, in order."""
    found = table.scan(**scan).to_arrow().to_pylist()
    return sorted(tuple(row.values()) for row in found)


def view_version(sql: str = "SELECT 1 AS id") -> ViewVersion:
    """A view's first version."""
    return ViewVersion(
        version_id=1,
        schema_id=0,
        timestamp_ms=time.time_ns() // 1_000_000,
        summary={"engine-name": "test"},
        representations=[SQLViewRepresentation(type="sql", sql=sql, dialect="spark")],
        default_namespace=["db"],
    )
