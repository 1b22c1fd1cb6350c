"""The system view `refreshes`: one row for each refresh of a materialized view whose snapshot still exists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from polaris_spark.access.needs import Need, On
from polaris_spark.catalog.entities.identifiers import dotted
from polaris_spark.catalog.entities.materialized_views import STORAGE
from polaris_spark.catalog.entities.refresh_records import (
    FILES_READ,
    REASON,
    REFRESH,
    REFRESH_START,
    ROWS_READ,
    SIZE_READ,
    USED_STRATEGY,
    refresh_duration_ms,
    refresh_of_snapshot,
)
from polaris_spark.catalog.rows import TABLE
from polaris_spark.catalog.tables.summaries import number_in
from polaris_spark.errors import BadRequestError
from polaris_spark.spark.views.columns import (
    BOOLEAN,
    INT,
    LONG,
    STRING,
    STRINGS,
    TIMESTAMP,
    ViewColumn,
    micros,
)
from polaris_spark.spark.views.entities import IDENTITY, WITHOUT_UNLOADED, EntityEntry, EntityView
from polaris_spark.spark.views.snapshots import SYSTEM_VIEW as SNAPSHOTS
from polaris_spark.spark.views.snapshots import SnapshotRow
from polaris_spark.store.objects import ObjectStore


class RefreshRow(NamedTuple):
    """A refresh of a materialized view: the snapshot that it added to the storage table, and the record of the
    refresh."""

    row: SnapshotRow
    refresh: dict[str, Any]

    @property
    def entry(self) -> EntityEntry:
        """The storage table's entry in the index `names`."""
        return self.row.entry

    def number(self, name: str) -> int | None:
        """Return the number `name` from the summary of the snapshot; None if the summary does not contain it."""
        return number_in(self.row.summary, name)


class Refreshes(EntityView[RefreshRow]):
    """A system view with one row for each refresh of a materialized view."""

    comment = f"Refreshes of materialized views whose snapshots still exist, one row each; {WITHOUT_UNLOADED}"
    shown = (Need("TABLE_READ_PROPERTIES", On.TABLE),)
    kind = TABLE
    rows_per_partition = SNAPSHOTS.rows_per_partition
    columns = (
        *IDENTITY,
        ViewColumn("view", STRING, "Name of the materialized view", lambda r: dotted(r.entry.path)),
        ViewColumn("refresh_id", LONG, "Id of the refresh", lambda r: r.refresh.get("refresh-id")),
        ViewColumn(
            "snapshot_id", LONG, "Snapshot of the storage table", lambda r: r.row.snapshot.snapshot_id
        ),
        ViewColumn(
            "is_current",
            BOOLEAN,
            "Whether this is the storage table's current snapshot",
            lambda r: r.row.table.current_snapshot_id == r.row.snapshot.snapshot_id,
        ),
        ViewColumn(
            "version_id", INT, "Version of the view that was computed", lambda r: r.refresh.get("version-id")
        ),
        ViewColumn(
            "began_at", TIMESTAMP, "Time of its begin", lambda r: micros(r.refresh.get(REFRESH_START))
        ),
        ViewColumn(
            "committed_at",
            TIMESTAMP,
            "Time of the snapshot",
            lambda r: micros(r.row.snapshot.timestamp_ms),
        ),
        ViewColumn(
            "duration_ms",
            LONG,
            "Milliseconds from its begin to its snapshot",
            lambda r: refresh_duration_ms(r.refresh, r.row.snapshot.timestamp_ms),
        ),
        ViewColumn("strategy", STRING, "full or incremental", lambda r: r.refresh.get(USED_STRATEGY)),
        ViewColumn("reason", STRING, "Why this strategy was used", lambda r: r.refresh.get(REASON)),
        ViewColumn("rows_read", LONG, "Rows in the files that were read", lambda r: r.refresh.get(ROWS_READ)),
        ViewColumn("files_read", LONG, "Data files that were read", lambda r: r.refresh.get(FILES_READ)),
        ViewColumn("bytes_read", LONG, "Size of these files", lambda r: r.refresh.get(SIZE_READ)),
        ViewColumn("rows_written", LONG, "Rows that were written", lambda r: r.number("added-records")),
        ViewColumn("files_written", LONG, "Data files written", lambda r: r.number("added-data-files")),
        ViewColumn(
            "bytes_written", LONG, "Size of the files written", lambda r: r.number("added-files-size")
        ),
        ViewColumn(
            "base_tables",
            STRINGS,
            "Tables that the refresh read, as the query names them",
            lambda r: [str(base.get("identifier")) for base in r.refresh.get("base-tables", ())],
        ),
    )

    def of(
        self, store: ObjectStore, entries: Iterator[EntityEntry], needs: frozenset[str]
    ) -> Iterator[RefreshRow]:
        stored = (entry for entry in entries if entry.name == STORAGE and len(entry.path) > 1)
        for row in SNAPSHOTS.of(store, stored, frozenset()):
            if REFRESH in row.summary:
                try:
                    refresh = refresh_of_snapshot(row.summary)
                except (
                    BadRequestError
                ):  # the snapshot was registered, or is that of another table of this name
                    continue
                yield RefreshRow(row, refresh)

    def weigh(self, row: RefreshRow) -> int:
        return 1_024


SYSTEM_VIEW = Refreshes()
