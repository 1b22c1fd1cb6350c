"""The system view `deletions`: one row for each file that maintenance deleted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from polaris_spark.access.needs import Need, On
from polaris_spark.access.scopes import Scope
from polaris_spark.catalog.rows import CatalogRow
from polaris_spark.maintenance.deletion_records import (
    DELETIONS,
    DeletedFile,
    DeletedFiles,
    deletions_reference,
)
from polaris_spark.spark.realm_reader import ReadStore
from polaris_spark.spark.views.columns import LONG, STRING, TIMESTAMP, ViewColumn, micros
from polaris_spark.spark.views.kept_batches import BatchesTask, BatchesView


class Deletion(NamedTuple):
    """A row of the view: a file that a maintenance job deleted from storage or failed to delete, and the stored batch
    (`DeletedFiles`) that records it."""

    task: BatchesTask
    batch: DeletedFiles
    file: DeletedFile


class Deletions(BatchesView[Deletion]):
    """A system view with one row for each deleted file. The row is recorded before the deletion. If the deletion fails,
    a second row has the outcome `failed`."""

    index = DELETIONS
    together = 20
    shown = (Need("TABLE_READ_PROPERTIES", On.TABLE),)
    comment = (
        "Files that maintenance deleted, one row each; a file that could not be deleted has a second row"
    )
    columns = (
        ViewColumn("catalog", STRING, "Catalog for which the job ran", lambda row: row.task.catalog),
        ViewColumn(
            "deleted_at", TIMESTAMP, "Time at which the deletion began", lambda row: micros(row.batch.time)
        ),
        ViewColumn("principal", STRING, "Principal that ran the job", lambda row: row.batch.principal),
        ViewColumn("job", STRING, "Maintenance job that deleted it", lambda row: row.batch.job),
        ViewColumn("table", STRING, "Name of the table at that time", lambda row: row.batch.table),
        ViewColumn("entity_id", LONG, "Stable id of the table", lambda row: row.batch.entity_id),
        ViewColumn("location", STRING, "Location of the file", lambda row: row.file.location),
        ViewColumn(
            "kind",
            STRING,
            "data, position-deletes, equality-deletes, manifest, manifest-list or statistics",
            lambda row: row.file.kind,
        ),
        ViewColumn(
            "file_bytes",
            LONG,
            "Size of the file in bytes; null if unknown",
            lambda row: row.file.bytes or None,
        ),
        ViewColumn("outcome", STRING, "deleted, or failed", lambda row: row.batch.outcome),
    )

    def reference(self, catalog: CatalogRow) -> str:
        return deletions_reference(catalog)

    def rows(self, store: ReadStore, task: BatchesTask, needs: frozenset[str]) -> Iterator[Deletion]:
        found = store.objects(task.realm).get_many([id for _, id in task.batches], DeletedFiles)
        for _, id in task.batches:
            for file in found[id].files:
                yield Deletion(task, found[id], file)

    def weigh(self, row: Deletion) -> int:
        return 256 + 2 * len(row.file.location)

    def sees(self, store: ReadStore, scope: Scope, row: Deletion) -> bool:
        return self.sees_table(store, scope, row.task, row.batch.entity_id)


SYSTEM_VIEW = Deletions()
