"""The view `deletions`: files that maintenance deleted, one row each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from polaris_spark.commits.rows import Commit
from polaris_spark.commits.state import Snapshot
from polaris_spark.maintenance.deletions import DELETIONS, DeletedFile, DeletedFiles, deletions_reference
from polaris_spark.spark.reading import ReadStore
from polaris_spark.spark.views.columns import LONG, STRING, TIMESTAMP, Column, micros
from polaris_spark.spark.views.history import catalog_histories
from polaris_spark.spark.views.view import Request, View, Weighted

BATCHES_OF_A_TASK = 20


class DeletionsTask(NamedTuple):
    """Some batches of a catalog's deleted files, by their ids."""

    realm: str
    """Instance id of the realm."""
    catalog: str
    batches: tuple[int, ...]


class Deletion(NamedTuple):
    """A file with the batch that it was deleted in."""

    catalog: str
    batch: DeletedFiles
    file: DeletedFile


class Deletions(View[DeletionsTask, Deletion]):
    """One row per file, and one more if it could not be deleted."""

    name = "deletions"
    comment = "Files that maintenance deleted, one row each, and one more for each that could not be deleted"
    columns = (
        Column("catalog", STRING, "Catalog whose table it was", lambda row: row.catalog),
        Column("deleted_at", TIMESTAMP, "When deleting it began", lambda row: micros(row.batch.time)),
        Column("principal", STRING, "For whom", lambda row: row.batch.principal),
        Column("job", STRING, "Maintenance job that deleted it", lambda row: row.batch.job),
        Column("table", STRING, "Name that the table had then", lambda row: row.batch.table),
        Column("entity_id", LONG, "Stable id of the table", lambda row: row.batch.entity_id),
        Column("location", STRING, "Where the file was", lambda row: row.file.location),
        Column(
            "kind",
            STRING,
            "data, position-deletes, equality-deletes, manifest, manifest-list or statistics",
            lambda row: row.file.kind,
        ),
        Column(
            "file_bytes", LONG, "Its size; null where it was not known", lambda row: row.file.bytes or None
        ),
        Column("outcome", STRING, "deleted, or failed", lambda row: row.batch.outcome),
    )

    def plan(self, request: Request) -> list[Weighted[DeletionsTask]]:
        realm = request.store.realm(request.options.realm)
        planned = []
        for history in catalog_histories(realm, request, deletions_reference):
            head = Snapshot(realm.store, b"", history.head, realm.store.get(history.head.commit, Commit))
            ids = [entry.pointer for _, entry in head.index(DELETIONS).range()]
            for start in range(0, len(ids), BATCHES_OF_A_TASK):
                run = tuple(ids[start : start + BATCHES_OF_A_TASK])
                task = DeletionsTask(realm.store.realm, history.catalog or "", run)
                planned.append(Weighted(task, len(run)))
        return planned

    def rows(self, store: ReadStore, task: DeletionsTask, needs: frozenset[str]) -> Iterator[Deletion]:
        found = store.objects(task.realm).get_many(task.batches, DeletedFiles)
        for id in task.batches:
            for file in found[id].files:
                yield Deletion(task.catalog, found[id], file)

    def weigh(self, row: Deletion) -> int:
        return 256 + 2 * len(row.file.location)
