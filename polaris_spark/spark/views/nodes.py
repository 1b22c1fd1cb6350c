"""The view `nodes`: one row per node number that was ever leased."""

from __future__ import annotations

from polaris_spark.spark.views.columns import BOOLEAN, INT, STRING, TIMESTAMP, Column, micros
from polaris_spark.spark.views.system import SystemRow, SystemView
from polaris_spark.system.leases import NodeRecord

NodeRow = SystemRow[NodeRecord]


class Nodes(SystemView[NodeRecord]):
    """One row per node number: its latest lease."""

    name = "nodes"
    comment = "Leases of node numbers, which ids contain: the latest lease of each number"
    prefix = "node/"
    record = NodeRecord
    columns: tuple[Column[NodeRow], ...] = (
        Column(
            "node", INT, "Node number, which the ids made under the lease contain", lambda row: int(row.name)
        ),
        Column("holder", STRING, "Host and process that has or had the lease", lambda row: row.record.holder),
        Column(
            "start_at", TIMESTAMP, "Earliest time of the lease's ids", lambda row: micros(row.record.start_ms)
        ),
        Column(
            "end_at",
            TIMESTAMP,
            "Latest time of the lease's ids, unless it is renewed",
            lambda row: micros(row.record.end_ms),
        ),
        Column(
            "released",
            BOOLEAN,
            "Whether the lease was released; it then ended with its last id",
            lambda row: row.record.released,
        ),
        Column(
            "in_force",
            BOOLEAN,
            "Whether the lease is in force: neither released nor expired, by the clock of the machine that reads",
            lambda row: not row.record.released and row.now_ms < row.record.end_ms,
        ),
    )
