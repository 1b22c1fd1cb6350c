"""Base of system views of records that catalogs store in batches outside their branches, such as metrics reports.

Each catalog has a separate reference for the batches of one kind. An index in the commits of this reference lists the
batches.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Generic, NamedTuple, TypeVar

from polaris_spark.access.scopes import Scope
from polaris_spark.catalog.catalogs.references import catalog_in
from polaris_spark.catalog.rows import CatalogRow
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.commits.state import CommitReader
from polaris_spark.index import Entry
from polaris_spark.names import MAIN
from polaris_spark.spark.realm_reader import ReadStore
from polaris_spark.spark.views.history import catalog_histories
from polaris_spark.spark.views.pins import sight_of
from polaris_spark.spark.views.view import ScanRequest, SystemView, Weighted

R = TypeVar("R")


class BatchesTask(NamedTuple):
    """The batches of records that one task reads. All belong to one catalog."""

    realm: str
    """Instance id of the realm that contains the catalog."""
    catalog: str
    batches: tuple[tuple[bytes, int], ...]
    """For each batch: its key in the index, and the id of the object that contains it."""
    catalog_id: int
    main: Head | None
    """Newest commit of the branch `main`, if the read has a scope."""


class BatchesView(SystemView[BatchesTask, R], Generic[R]):
    """A system view whose rows are derived from batches of records."""

    index: ClassVar[str]
    """Name of the index that lists the batches."""
    together: ClassVar[int]
    """Number of batches that one task reads."""

    @abstractmethod
    def reference(self, catalog: CatalogRow) -> str:
        """Return the name of the reference in which a catalog stores the batches of this view's records."""

    def count(self, batch: Entry) -> int:
        """Return the approximate number of rows of a batch, from the index entry of the batch."""
        return 1

    def plan(self, request: ScanRequest) -> list[Weighted[BatchesTask]]:
        realm = request.store.realm(request.options.realm)
        planned = []
        for history in catalog_histories(realm, request, self.reference):
            head = CommitReader(realm.store, b"", history.head, realm.store.get(history.head.commit, Commit))
            id, main = catalog_in(history.reference) or 0, None
            if realm.scope is not None:
                main = realm.live(f"cat/{id:x}/heads/{MAIN}")[1]
            found = list(head.index(self.index).range())
            for start in range(0, len(found), self.together):
                run = found[start : start + self.together]
                batches = tuple((key, entry.pointer) for key, entry in run)
                task = BatchesTask(realm.store.realm, history.catalog or "", batches, id, main)
                planned.append(Weighted(task, sum(self.count(entry) for _, entry in run)))
        return planned

    def sees_table(self, store: ReadStore, scope: Scope, task: BatchesTask, entity_id: int) -> bool:
        """Return whether the reading principal may see the records of a table, given the table's entity id."""
        if scope.sees_all_of(task.catalog_id):
            return True
        if task.main is None:
            return False
        (need,) = self.shown
        sight = sight_of(store, scope, task.realm, task.catalog_id, MAIN, task.main, task.main)
        return bool(sight.may_by_id(need.privilege, entity_id))
