"""System views of the catalog's own data, by name. A view's module is imported when the view is first looked up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polaris_spark.spark.views.view import AnyView

_CLASSES = {
    "objects": "objects.Objects",
    "references": "references.References",
    "index": "index.IndexView",
    "commits": "commits.Commits",
    "changes": "changes.Changes",
    "namespaces": "namespaces.Namespaces",
    "tables": "tables.Tables",
    "views": "sql_views.SqlViews",
    "snapshots": "snapshots.Snapshots",
    "schemas": "schemas.Schemas",
    "refs": "refs.Refs",
    "files": "files.FilesView",
    "metrics": "metrics.Metrics",
    "deletions": "deletions.Deletions",
    "realms": "realms.RealmsView",
    "nodes": "nodes.Nodes",
    "tasks": "tasks.TasksView",
}


class _Views(Mapping[str, "AnyView"]):
    def __init__(self) -> None:
        self._loaded: dict[str, AnyView] = {}

    def __getitem__(self, name: str) -> AnyView:
        if name not in self._loaded:
            module, cls = _CLASSES[name].split(".")
            self._loaded[name] = getattr(import_module(f"{__name__}.{module}"), cls)()
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in _CLASSES

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


VIEWS: Mapping[str, AnyView] = _Views()
"""Every view by name."""
