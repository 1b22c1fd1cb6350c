"""One catalog's branch, opened: what the protocol handlers work on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from typing import TypeVar

from polaris_spark.catalog.catalogs import head_name
from polaris_spark.catalog.entities import Context
from polaris_spark.catalog.files import Files
from polaris_spark.catalog.locations import segments
from polaris_spark.catalog.metrics import MetricsReports
from polaris_spark.catalog.rows import CatalogRow, Unloaded
from polaris_spark.catalog.unloaded import LoadImported, loading
from polaris_spark.commits.change import Change, Operation
from polaris_spark.commits.state import Snapshot, State, StoredObjects
from polaris_spark.system.registry import References

R = TypeVar("R")


class Catalog:
    """A branch of a catalog. Thread-safe."""

    def __init__(
        self,
        references: References,
        row: CatalogRow,
        context: Context,
        files: Files,
        *,
        branch: str = "main",
        metrics_reports: int = 0,
    ) -> None:
        """
        Args:
            metrics_reports: how many metrics reports the catalog keeps, about; 0: none, and none are asked for.
        """
        self.references = references
        self.row = row
        self.context = context
        self.files = files
        self.reference = head_name(row, branch)
        self.reader = StoredObjects(references.store)
        """Reads committed content."""
        self.metrics = MetricsReports(references, row, keep=metrics_reports)

    def restricted(self, locations: Iterable[str]) -> Catalog:
        """This catalog for clients that may name locations only below its warehouse and the given ones.

        Raises:
            BadRequestError: one of them is not an absolute location.
        """
        restricted = copy(self)
        allowed = tuple(segments(place) for place in (self.context.warehouse, *locations))
        restricted.context = self.context._replace(allowed=allowed)
        return restricted

    @property
    def name(self) -> str:
        """The catalog's name in its realm."""
        return self.row.name

    def head(self) -> Snapshot:
        """The newest commit, read now."""
        return self.references.read(self.reference)

    def view(self, at: Snapshot | None = None) -> State:
        """The newest commit, read now, or another one, as changes see it."""
        return State(self.head() if at is None else at, _no_id, rewrites=False)

    def commit(self, change: Change[R]) -> R:
        """Commit a change to this branch."""
        return self.loading(
            lambda: self.references.commit(self.reference, change), change.operation.principal
        )

    def loading(self, action: Callable[[], R], principal: str) -> R:
        """Carry out what reads tables or views; what was imported unread is loaded when it is met.

        Args:
            action: it is carried out again after each of them, so it has no effect when it raises.
            principal: who is logged for loading them.
        """
        return loading(action, lambda content: self._load(content, principal))

    def _load(self, content: int, principal: str) -> None:
        unloaded = self.reader.get(content, Unloaded)
        self.references.commit(
            self.reference, LoadImported(self.context, Operation(b"", principal), unloaded, self.files)
        )


def _no_id() -> int:
    raise AssertionError("reading needs no ids")
