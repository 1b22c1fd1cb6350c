"""The system view `materialized_views`: one row for each materialized view, with its freshness."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from polaris_spark.access.needs import Need, On
from polaris_spark.catalog.entities.entities import TableName
from polaris_spark.catalog.entities.materialized_views import (
    STORAGE_LOCATION,
    allows_stale,
    document_of,
    is_materialized,
    strategy_of,
)
from polaris_spark.catalog.entities.refresh_records import (
    FILES_READ,
    REASON,
    REFRESH_START,
    ROWS_READ,
    SIZE_READ,
    USED_STRATEGY,
    refresh_duration_ms,
)
from polaris_spark.catalog.materialized.stored_views import last_refresh, refreshed_snapshot
from polaris_spark.catalog.materialized.view_freshness import Behind, Freshness, behind, freshness
from polaris_spark.catalog.metadata.rows import View
from polaris_spark.catalog.metadata.texts import Json
from polaris_spark.catalog.rows import VIEW
from polaris_spark.catalog.tables.summaries import number_in
from polaris_spark.commits.state import reading_state
from polaris_spark.spark.realm_reader import ReadStore
from polaris_spark.spark.views.columns import (
    BOOLEAN,
    INT,
    LONG,
    LONG_MAP,
    STRING,
    STRINGS,
    TIMESTAMP,
    ViewColumn,
    micros,
)
from polaris_spark.spark.views.entities import IDENTITY, EntityEntry, EntityView, NamesTask, loaded

_BEHIND = "behind"
_SNAPSHOT = "snapshot"
NOT_BEHIND = Behind(None, {})


class MaterializedViewRow(NamedTuple):
    """A materialized view, with its freshness in one commit and the record of its last refresh."""

    entry: EntityEntry
    view: View
    freshness: Freshness
    refresh: Json
    """The record of the refresh that made the current rows; empty if there is none."""
    behind: Behind
    """The changes since that refresh; empty if the rows are fresh or no column needs them."""
    snapshot: Json
    """The snapshot that the last refresh made; empty if it does not exist any more or no column needs it."""


class MaterializedViews(EntityView[MaterializedViewRow]):
    """A system view with one row for each materialized view."""

    comment = "Materialized views and whether their rows are fresh, one row each"
    shown = (Need("VIEW_READ_PROPERTIES", On.VIEW),)
    kind = VIEW
    columns = (
        *IDENTITY,
        ViewColumn(
            "fresh",
            BOOLEAN,
            "Whether the stored rows are those of the query now; null if only a Spark session can find out, as for "
            "a query that reads another catalog",
            lambda r: None if r.freshness.unknown else r.freshness.fresh,
        ),
        ViewColumn(
            "reason",
            STRING,
            "Why the rows are not fresh; null if they are",
            lambda r: r.freshness.reason or None,
        ),
        ViewColumn(
            "changed_sources",
            STRINGS,
            "Tables and views that have changed since the last refresh",
            lambda r: list(r.freshness.changed),
        ),
        ViewColumn(
            "refresh_strategy", STRING, "Strategy: full or incremental", lambda r: strategy_of(r.view)
        ),
        ViewColumn(
            "allow_stale_data",
            BOOLEAN,
            "Whether queries may read rows that are not fresh",
            lambda r: allows_stale(r.view),
        ),
        ViewColumn(
            "last_refreshed_at",
            TIMESTAMP,
            "Time at which the refresh that made the current rows began; null if there is none",
            lambda r: micros(r.refresh.get(REFRESH_START)),
        ),
        ViewColumn(
            "stale_since",
            TIMESTAMP,
            "Time of the first new snapshot or new query of a view since then; null if the rows are fresh, or if no "
            "time is known, as after a table was dropped or its columns were changed",
            lambda r: micros(r.behind.since_ms),
            _BEHIND,
        ),
        ViewColumn(
            "stale_snapshots",
            LONG,
            "Number of snapshots of the tables since then",
            lambda r: r.behind.snapshots,
            _BEHIND,
        ),
        ViewColumn(
            "stale_rows",
            LONG,
            "Number of rows that these snapshots added or removed",
            lambda r: r.behind.rows,
            _BEHIND,
        ),
        ViewColumn(
            "stale_snapshots_by_table",
            LONG_MAP,
            "Number of snapshots since then, by the name of the table; tables without any are left out",
            lambda r: [(name, one.snapshots) for name, one in r.behind.tables.items()],
            _BEHIND,
        ),
        ViewColumn(
            "stale_rows_by_table",
            LONG_MAP,
            "Number of rows that these snapshots added or removed, by the name of the table",
            lambda r: [(name, one.rows) for name, one in r.behind.tables.items()],
            _BEHIND,
        ),
        ViewColumn(
            "last_strategy",
            STRING,
            "How the last refresh was made: full or incremental",
            lambda r: r.refresh.get(USED_STRATEGY),
        ),
        ViewColumn(
            "last_reason", STRING, "Why that refresh used this strategy", lambda r: r.refresh.get(REASON)
        ),
        ViewColumn(
            "last_rows_read", LONG, "Rows in the files that it read", lambda r: r.refresh.get(ROWS_READ)
        ),
        ViewColumn("last_files_read", LONG, "Data files that it read", lambda r: r.refresh.get(FILES_READ)),
        ViewColumn("last_bytes_read", LONG, "Size of these files", lambda r: r.refresh.get(SIZE_READ)),
        ViewColumn(
            "last_rows_written",
            LONG,
            "Rows that it wrote",
            lambda r: number_in(r.snapshot.get("summary") or {}, "added-records"),
            _SNAPSHOT,
        ),
        ViewColumn(
            "last_duration_ms",
            LONG,
            "Milliseconds from its begin to its snapshot",
            lambda r: refresh_duration_ms(r.refresh, r.snapshot.get("timestamp-ms")),
            _SNAPSHOT,
        ),
        ViewColumn("refresh_id", LONG, "Id of that refresh", lambda r: r.refresh.get("refresh-id")),
        ViewColumn(
            "version_id", INT, "Version of the view that was computed", lambda r: r.refresh.get("version-id")
        ),
        ViewColumn(
            "base_tables",
            STRINGS,
            "Tables that the refresh read, as the query names them",
            lambda r: [str(base.get("identifier")) for base in r.refresh.get("base-tables", ())],
        ),
        ViewColumn(
            "storage_table_location",
            STRING,
            "Location of the metadata file of the storage table",
            lambda r: document_of(r.view.properties).get(STORAGE_LOCATION),
        ),
    )

    def rows(self, store: ReadStore, task: NamesTask, needs: frozenset[str]) -> Iterator[MaterializedViewRow]:
        objects = store.objects(task.pin.realm)
        state = reading_state(task.pin.reader(objects))
        is_limited = task.pin.sight(store) is not None
        for entry, view in loaded(objects, self._named(store, task), View):
            if is_materialized(view):
                name = TableName(entry.path, entry.name)
                now = freshness(state, name, only_recorded=is_limited)
                last = last_refresh(state, name) or {}
                since = NOT_BEHIND if now.fresh or _BEHIND not in needs else behind(state, view, last)
                snapshot = refreshed_snapshot(state, name) if _SNAPSHOT in needs else {}
                yield MaterializedViewRow(entry, view, now, last, since, snapshot)


SYSTEM_VIEW = MaterializedViews()
