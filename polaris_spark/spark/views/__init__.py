"""System views, which show a catalog's own data, by name. A view's module is imported when the view is first used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polaris_spark.spark.views.view import AnyView

_NAMES = (
    "objects",
    "references",
    "catalogs",
    "branches",
    "index",
    "commits",
    "changes",
    "namespaces",
    "tables",
    "views",
    "materialized_views",
    "refreshes",
    "lineage",
    "snapshots",
    "schemas",
    "refs",
    "files",
    "metrics",
    "deletions",
    "runs",
    "realms",
    "nodes",
    "tasks",
)
"""Names of the views. The module with the same name defines the view as its constant `SYSTEM_VIEW`."""


class _Views(Mapping[str, "AnyView"]):
    def __getitem__(self, name: str) -> AnyView:
        if name not in _NAMES:
            raise KeyError(name)
        view: AnyView = import_module(f"{__name__}.{name}").SYSTEM_VIEW
        return view

    def __contains__(self, name: object) -> bool:
        return name in _NAMES

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


VIEWS: Mapping[str, AnyView] = _Views()
"""All system views, by name."""
