"""The system view `tasks`: one row for each task, such as a maintenance job, that only one process runs at a time. The
row shows the current or latest run."""

from __future__ import annotations

from polaris_spark.access.needs import Need, On
from polaris_spark.access.scopes import READS_ALL, Scope
from polaris_spark.spark.realm_reader import ReadStore
from polaris_spark.spark.views.columns import BOOLEAN, LONG, STRING, TIMESTAMP, ViewColumn, micros
from polaris_spark.spark.views.records import RecordRow, RecordView
from polaris_spark.system.tasks import TaskRecord

TaskRow = RecordRow[TaskRecord]


class TasksView(RecordView[TaskRecord]):
    """A system view with one row for each kind of task and scope (store, realm or catalog)."""

    shown = (Need(READS_ALL, On.CATALOG),)
    comment = "Jobs that run one at a time per kind: the current or latest run of each, with its progress"
    prefix = "task/"
    record = TaskRecord
    columns: tuple[ViewColumn[TaskRow], ...] = (
        ViewColumn("kind", STRING, "Kind of the job, such as import", lambda row: row.name.partition("/")[0]),
        ViewColumn(
            "scope",
            STRING,
            "Scope of the job: store, the instance of a realm, or INSTANCE/CATALOG with a catalog's id in "
            "hexadecimal",
            lambda row: row.name.partition("/")[2],
        ),
        ViewColumn("run", STRING, "Id of the run, in hexadecimal", lambda row: row.record.run.hex()),
        ViewColumn("holder", STRING, "Host and process that runs it", lambda row: row.record.holder),
        ViewColumn(
            "started_at", TIMESTAMP, "Time at which the run began", lambda row: micros(row.record.started_ms)
        ),
        ViewColumn(
            "lease_ends_at",
            TIMESTAMP,
            "Time at which its lease ends unless it is renewed; for an ended run, time of its end",
            lambda row: micros(row.record.until_ms),
        ),
        ViewColumn(
            "released", BOOLEAN, "Whether the run has ended by itself", lambda row: row.record.released
        ),
        ViewColumn(
            "in_force",
            BOOLEAN,
            "Whether it is running: not ended, and its lease not expired by the clock of the machine that reads",
            lambda row: not row.record.released and row.now_ms < row.record.until_ms,
        ),
        ViewColumn(
            "outcome",
            STRING,
            "Outcome, such as done; null while it runs, and for a run that died",
            lambda row: row.record.outcome or None,
        ),
        ViewColumn(
            "doing",
            STRING,
            "Current or last step; null if none was reported",
            lambda row: row.record.doing or None,
        ),
        ViewColumn("done", LONG, "Completed amount of that step", lambda row: row.record.done),
        ViewColumn(
            "total", LONG, "Total amount of that step; null if unknown", lambda row: row.record.total or None
        ),
    )

    def sees(self, store: ReadStore, scope: Scope, row: TaskRow) -> bool:
        instance, _, catalog = row.name.partition("/")[2].partition("/")
        if catalog and instance == scope.realm:
            return scope.sees_all_of(int(catalog, 16))
        return instance in (scope.realm, "store") and scope.sees_realm


SYSTEM_VIEW = TasksView()
