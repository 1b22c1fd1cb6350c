"""The system view `realms`: one row for each realm (tenant) of the store."""

from __future__ import annotations

from pyspark.sql.types import IntegerType, MapType, StringType

from polaris_spark.access.needs import Need, On
from polaris_spark.access.scopes import READS_ALL, Scope
from polaris_spark.spark.realm_reader import ReadStore
from polaris_spark.spark.views.columns import INT, STRING, STRING_MAP, TIMESTAMP, ViewColumn, micros, pairs
from polaris_spark.spark.views.records import RecordRow, RecordView
from polaris_spark.system.realms import RealmRecord, RealmState

RealmRow = RecordRow[RealmRecord]


class RealmsView(RecordView[RealmRecord]):
    """A system view with one row for each realm of the store."""

    shown = (Need(READS_ALL, On.REALM),)
    comment = "Realms (tenants) of the store, one row each"
    prefix = "realm/"
    record = RealmRecord
    columns: tuple[ViewColumn[RealmRow], ...] = (
        ViewColumn("realm", STRING, "Name of the realm", lambda row: row.record.name),
        ViewColumn(
            "instance",
            STRING,
            "Instance id, which is part of the keys of its rows; new whenever the name is created",
            lambda row: row.record.instance,
        ),
        ViewColumn(
            "state",
            STRING,
            "CREATED, INITIALIZING, LOADING, ACTIVE (only then it can be used), INACTIVE, PURGING or PURGED",
            lambda row: row.record.state.value,
        ),
        ViewColumn("format", INT, "Format of its rows", lambda row: row.record.format),
        ViewColumn(
            "created_at", TIMESTAMP, "Time of its creation", lambda row: micros(row.record.created_ms)
        ),
        ViewColumn("properties", STRING_MAP, "Its properties", lambda row: pairs(row.record.properties)),
        ViewColumn(
            "revisions",
            MapType(StringType(), IntegerType(), valueContainsNull=False),
            "The highest revision that writers may use, by type of object",
            lambda row: pairs(row.record.revisions),
        ),
        ViewColumn(
            "features",
            STRING_MAP,
            "The features that writers may use, with the first release that has each",
            lambda row: pairs(row.record.features),
        ),
    )

    def shows(self, row: RealmRow) -> bool:
        return row.record.state is not RealmState.GONE  # only the name is left, for reuse

    def sees(self, store: ReadStore, scope: Scope, row: RealmRow) -> bool:
        return row.record.instance == scope.realm and super().sees(store, scope, row)


SYSTEM_VIEW = RealmsView()
