"""An open branch of a catalog, which the protocol handlers read and change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from functools import partial
from typing import TypeVar

from polaris_spark.catalog.confinement import Confinement
from polaris_spark.catalog.entities import Context
from polaris_spark.catalog.files import Files, local_path
from polaris_spark.catalog.lazy_imports import UNLOADED, LoadImported
from polaris_spark.catalog.locations import segments
from polaris_spark.catalog.metrics import MetricsReports
from polaris_spark.catalog.properties import EffectiveProperties
from polaris_spark.catalog.references import head_name
from polaris_spark.catalog.rows import CatalogRow, Unloaded
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
        """At most one head: the next call of `head` removes it and returns it, instead of reading the store."""
        self.metrics = MetricsReports(
            references, row, keep=lambda: self.effective_properties().metrics_reports
        )

    def restricted(self, locations: Iterable[str], *, follow_links: bool = False) -> Catalog:
        """Return this catalog for clients that may name locations only below its warehouse and the given locations.

        Args:
            follow_links: True follows a symbolic link below these locations if its target lies below one of them, too;
                False refuses all symbolic links below them.
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
        """Return the newest commit of the branch, read from the store now (except after `beginning_at`)."""
        return self._read.pop() if self._read else self.references.read(self.reference)

    def beginning_at(self, head: CommitReader) -> Catalog:
        """Return a copy of this catalog that uses a head which was just read. The copy is for one thread only.

        The first read of the copy's head returns `head`; later ones read the store.
        """
        catalog = copy(self)
        catalog._read = [head]
        return catalog

    def effective_properties(self) -> EffectiveProperties:
        """Return the properties that hold at the newest commit, which is read now."""
        return self.context.binding.of(self.head())

    def view(self, at: CommitReader | None = None) -> State:
        """Return a `State` for reading a commit, by default the newest commit, which is then read now."""
        return reading_state(self.head() if at is None else at)

    def commit(self, change: Change[P, R]) -> R:
        """Commit a change to this branch, and return the change's result. Lazily imported tables and views that the
        change reads are loaded first."""
        return self.loading(
            partial(self.references.commit, self.reference, change), change.operation.principal
        )

    def loading(self, action: Callable[[], R], principal: str) -> R:
        """Return the result of an action that reads tables or views. If the action reads a lazily imported table or
        view that is not loaded yet, load it and run the action again.

        Args:
            action: may run several times, so it must have no effect when it raises an error.
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
