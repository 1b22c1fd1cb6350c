"""The view `realms`: one row per realm of the store."""

from __future__ import annotations

from pyspark.sql.types import IntegerType, MapType, StringType

from polaris_spark.spark.views.columns import INT, STRING, STRING_MAP, TIMESTAMP, Column, micros, pairs
from polaris_spark.spark.views.system import SystemRow, SystemView
from polaris_spark.system.realms import RealmRecord, RealmState

RealmRow = SystemRow[RealmRecord]


class RealmsView(SystemView[RealmRecord]):
    """One row per realm."""

    name = "realms"
    comment = "Realms (tenants) of the store, one row each"
    prefix = "realm/"
    record = RealmRecord
    columns: tuple[Column[RealmRow], ...] = (
        Column("realm", STRING, "Name of the realm", lambda row: row.record.name),
        Column(
            "instance",
            STRING,
            "Instance id, which is part of the keys of its rows; new whenever the name is created",
            lambda row: row.record.instance,
        ),
        Column(
            "state",
            STRING,
            "CREATED, INITIALIZING, LOADING, ACTIVE (only then it can be used), INACTIVE, PURGING or PURGED",
            lambda row: row.record.state.value,
        ),
        Column("format", INT, "Format of its rows", lambda row: row.record.format),
        Column("created_at", TIMESTAMP, "Time of its creation", lambda row: micros(row.record.created_ms)),
        Column("properties", STRING_MAP, "Its properties", lambda row: pairs(row.record.properties)),
        Column(
            "revisions",
            MapType(StringType(), IntegerType(), valueContainsNull=False),
            "The highest revision that writers may use, by type of object",
            lambda row: pairs(row.record.revisions),
        ),
    )

    def shows(self, row: RealmRow) -> bool:
        return row.record.state is not RealmState.GONE  # only the name is left, for reuse
