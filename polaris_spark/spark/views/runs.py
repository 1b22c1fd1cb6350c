"""The system view `runs`: one row for each run of a job, schedule, task or policy in the history of a catalog."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from polaris_spark.access.needs import Need, On
from polaris_spark.access.scopes import READS_ALL, Scope
from polaris_spark.catalog.rows import CatalogRow
from polaris_spark.maintenance.queue.rows import RUNS, RunRecord, queue_reference
from polaris_spark.spark.realm_reader import ReadStore
from polaris_spark.spark.views.columns import LONG, LONG_MAP, STRING, TIMESTAMP, ViewColumn, micros
from polaris_spark.spark.views.kept_batches import BatchesTask, BatchesView


class RunRow(NamedTuple):
    """A run of a job, and the part of the view's plan that read it."""

    task: BatchesTask
    run: RunRecord


class Runs(BatchesView[RunRow]):
    """A system view with one row for each run."""

    index = RUNS
    together = 200
    shown = (Need(READS_ALL, On.CATALOG),)
    comment = "Runs of jobs, schedules, tasks and policies that have ended, one row each"
    columns = (
        ViewColumn("catalog", STRING, "Catalog in which the procedure ran", lambda row: row.task.catalog),
        ViewColumn("branch", STRING, "Branch of the catalog", lambda row: row.run.branch),
        ViewColumn("run", STRING, "Id of the run, in hexadecimal", lambda row: row.run.run.hex()),
        ViewColumn("procedure", STRING, "Name of the procedure", lambda row: row.run.procedure),
        ViewColumn(
            "arguments", STRING, "Its arguments as JSON, without secrets", lambda row: row.run.arguments
        ),
        ViewColumn(
            "origin", STRING, "What caused it: user, schedule, task or policy", lambda row: row.run.origin
        ),
        ViewColumn(
            "name",
            STRING,
            "Name of the schedule, type of the policy, or id of the task; null for a run by a user",
            lambda row: row.run.name or None,
        ),
        ViewColumn("attempt", LONG, "Number of the attempt, counted from 1", lambda row: row.run.attempt),
        ViewColumn("principal", STRING, "Principal as which it ran", lambda row: row.run.principal or None),
        ViewColumn("holder", STRING, "Host and process that ran it", lambda row: row.run.holder),
        ViewColumn("started_at", TIMESTAMP, "Time of its start", lambda row: micros(row.run.started_ms)),
        ViewColumn(
            "ended_at",
            TIMESTAMP,
            "Time of its end; of a lost run, the time at which this was noticed",
            lambda row: micros(row.run.ended_ms),
        ),
        ViewColumn("outcome", STRING, "succeeded, failed, cancelled or lost", lambda row: row.run.outcome),
        ViewColumn("error", STRING, "Error message; null if it succeeded", lambda row: row.run.error or None),
        ViewColumn(
            "statistics",
            LONG_MAP,
            "Number of rows of the result, and sums of its columns of whole numbers",
            lambda row: list(row.run.statistics.items()),
        ),
    )

    def reference(self, catalog: CatalogRow) -> str:
        return queue_reference(catalog)

    def rows(self, store: ReadStore, task: BatchesTask, needs: frozenset[str]) -> Iterator[RunRow]:
        found = store.objects(task.realm).get_many([id for _, id in task.batches], RunRecord)
        for _, id in task.batches:
            yield RunRow(task, found[id])

    def weigh(self, row: RunRow) -> int:
        return 512 + 2 * (len(row.run.arguments) + len(row.run.error))

    def sees(self, store: ReadStore, scope: Scope, row: RunRow) -> bool:
        return scope.sees_all_of(row.task.catalog_id)


SYSTEM_VIEW = Runs()
