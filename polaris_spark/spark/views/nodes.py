"""The system view `nodes`: one row for each node number that a process has ever leased to generate ids."""

from __future__ import annotations

from polaris_spark.access.needs import Need, On
from polaris_spark.access.scopes import READS_ALL
from polaris_spark.spark.views.columns import BOOLEAN, INT, STRING, TIMESTAMP, ViewColumn, micros
from polaris_spark.spark.views.records import RecordRow, RecordView
from polaris_spark.system.leases import NodeRecord

NodeRow = RecordRow[NodeRecord]


class Nodes(RecordView[NodeRecord]):
    """A system view with one row for each node number. The row shows the latest lease of the number."""

    shown = (Need(READS_ALL, On.REALM),)
    comment = "Leases of node numbers, which ids contain: the latest lease of each number"
    prefix = "node/"
    record = NodeRecord
    columns: tuple[ViewColumn[NodeRow], ...] = (
        ViewColumn(
            "node", INT, "Node number, which the ids made under the lease contain", lambda row: int(row.name)
        ),
        ViewColumn(
            "holder", STRING, "Host and process that has or had the lease", lambda row: row.record.holder
        ),
        ViewColumn(
            "start_at", TIMESTAMP, "Earliest time of the lease's ids", lambda row: micros(row.record.start_ms)
        ),
        ViewColumn(
            "end_at",
            TIMESTAMP,
            "Latest time of the lease's ids, unless it is renewed",
            lambda row: micros(row.record.end_ms),
        ),
        ViewColumn(
            "released",
            BOOLEAN,
            "Whether the lease was released; it then ended with its last id",
            lambda row: row.record.released,
        ),
        ViewColumn(
            "in_force",
            BOOLEAN,
            "Whether the lease is in force: neither released nor expired, by the clock of the machine that reads",
            lambda row: not row.record.released and row.now_ms < row.record.end_ms,
        ),
    )


SYSTEM_VIEW = Nodes()
