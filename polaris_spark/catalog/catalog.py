"""An open branch of a catalog, which the protocol handlers read and change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from functools import partial
from typing import TypeVar

from polaris_spark.catalog.confinement import Confinement
from polaris_spark.catalog.entities import Context
from polaris_spark.catalog.files import Files, local_path
from polaris_spark.catalog.locations import segments
from polaris_spark.catalog.metrics import MetricsReports
from polaris_spark.catalog.properties import EffectiveProperties
from polaris_spark.catalog.references import head_name
from polaris_spark.catalog.rows import CatalogRow, Unloaded
from polaris_spark.catalog.unloaded import UNLOADED, LoadImported
from polaris_spark.commits.change import Change, Operation
from polaris_spark.commits.state import CommitReader, State, StoredObjects, reading_state
from polaris_spark.errors import WrongTypeError
from polaris_spark.names import MAIN
from polaris_spark.system.registry import References

P = TypeVar("P")
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
        branch: str = MAIN,
    ) -> None:
        self.references = references
        self.row = row
        self.context = context
        self.files = files
        self.reference = head_name(row, branch)
        self.reader = StoredObjects(references.store)
        """Reads committed content."""
        self._read: list[CommitReader] = []
        """At most one head, which was just read and which the next read returns."""
        self.metrics = MetricsReports(
            references, row, keep=lambda: self.effective_properties().metrics_reports
        )

    def restricted(self, locations: Iterable[str], *, follow_links: bool = False) -> Catalog:
        """Return this catalog for clients that may name locations only below its warehouse and the given locations.

        Args:
            follow_links: whether to follow symbolic links below those locations that lead below one of them; otherwise
                all links there are refused.
        Raises:
            BadRequestError: a given location is not absolute.
        """
        restricted = copy(self)
        places = (self.context.warehouse, *locations)
        local = [str(path) for place in places if (path := local_path(place)) is not None]
        confinement = Confinement(local, follow_links=follow_links)
        allowed = tuple(segments(place) for place in places)
        restricted.context = self.context._replace(allowed=allowed, confinement=confinement)
        restricted.files = self.files.confined(confinement)
        restricted.references = self.references.writing(restricted.files)
        return restricted

    @property
    def name(self) -> str:
        """The catalog's name in its realm."""
        return self.row.name

    def head(self) -> CommitReader:
        """Return the newest commit, read now."""
        return self._read.pop() if self._read else self.references.read(self.reference)

    def beginning_at(self, head: CommitReader) -> Catalog:
        """Return this catalog for one thread that has just read its head.

        The first read of the result returns `head`; later reads query the store.
        """
        catalog = copy(self)
        catalog._read = [head]
        return catalog

    def effective_properties(self) -> EffectiveProperties:
        """Return the properties that hold in the newest commit, read now."""
        return self.context.binding.of(self.head())

    def view(self, at: CommitReader | None = None) -> State:
        """Return a commit as a `State`, the form that changes read; by default the newest commit, read now."""
        return reading_state(self.head() if at is None else at)

    def commit(self, change: Change[P, R]) -> R:
        """Commit a change to this branch. Each lazily imported table or view that it reads is loaded first."""
        return self.loading(
            partial(self.references.commit, self.reference, change), change.operation.principal
        )

    def loading(self, action: Callable[[], R], principal: str) -> R:
        """Run an action that reads tables or views. Load each lazily imported table or view that the action meets.

        Args:
            action: it runs again after each load, so it must have no effect when it raises.
            principal: logged as the author of the loads.
        """
        last = 0
        while True:
            try:
                return action()
            except WrongTypeError as error:
                if error.found != UNLOADED or error.id == last:
                    raise
                last = error.id
            unloaded = self.reader.get(last, Unloaded)
            load = LoadImported(self.context, Operation(b"", principal), unloaded, self.files)
            self.references.commit(self.reference, load)
