"""The view `tasks`: one row per coordinated task, such as a maintenance job, with its current or latest run."""

from __future__ import annotations

from polaris_spark.spark.views.columns import BOOLEAN, LONG, STRING, TIMESTAMP, Column, micros
from polaris_spark.spark.views.system import SystemRow, SystemView
from polaris_spark.system.tasks import TaskRecord

TaskRow = SystemRow[TaskRecord]


class TasksView(SystemView[TaskRecord]):
    """One row per kind of task and scope."""

    name = "tasks"
    comment = "Jobs that run one at a time per kind: the current or latest run of each, with its progress"
    prefix = "task/"
    record = TaskRecord
    columns: tuple[Column[TaskRow], ...] = (
        Column("kind", STRING, "What is done, such as import", lambda row: row.name.partition("/")[0]),
        Column(
            "scope",
            STRING,
            "What it is done to: store, the instance of a realm, or that, a slash and a catalog's id in hexadecimal",
            lambda row: row.name.partition("/")[2],
        ),
        Column("run", STRING, "Id of the run, in hexadecimal", lambda row: row.record.run.hex()),
        Column("holder", STRING, "Host and process that runs it", lambda row: row.record.holder),
        Column("started_at", TIMESTAMP, "When the run began", lambda row: micros(row.record.started_ms)),
        Column(
            "lease_ends_at",
            TIMESTAMP,
            "When its lease ends unless it is renewed; after its end, when that was",
            lambda row: micros(row.record.until_ms),
        ),
        Column("released", BOOLEAN, "Whether the run has ended by itself", lambda row: row.record.released),
        Column(
            "in_force",
            BOOLEAN,
            "Whether it runs: neither ended nor its lease over, by the clock of the machine that reads",
            lambda row: not row.record.released and row.now_ms < row.record.until_ms,
        ),
        Column(
            "outcome",
            STRING,
            "How it ended, such as done; null while it runs, and of a run that ended without a word",
            lambda row: row.record.outcome or None,
        ),
        Column(
            "doing",
            STRING,
            "Step that it is at, or was at last; null if it named none",
            lambda row: row.record.doing or None,
        ),
        Column("done", LONG, "How much of that step is done", lambda row: row.record.done),
        Column(
            "total", LONG, "Of how much; null where that is not known", lambda row: row.record.total or None
        ),
    )
