"""Finds out whether the stored rows of a materialized view are fresh: whether they still are the result of its
query."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from polaris_spark.catalog.entities.entities import TableName, find, require, table_key
from polaris_spark.catalog.entities.materialized_views import SESSION, storage_name
from polaris_spark.catalog.entities.refresh_records import NO_SNAPSHOT, current_refresh
from polaris_spark.catalog.materialized.outside_sources import (
    DELTA_LOCATION,
    METASTORE,
    OutsideSources,
    OutsideTable,
    OutsideView,
    TableState,
    UnknownSourceError,
)
from polaris_spark.catalog.materialized.query_pinning import pin
from polaris_spark.catalog.materialized.stored_views import last_refresh, materialized, stored_query
from polaris_spark.catalog.materialized.view_sources import (
    SOURCE_STATES,
    PinnedQuery,
    count_in,
    name_mapping_of,
    query_of,
    snapshot_of,
)
from polaris_spark.catalog.metadata import logs
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.rows import Table, View
from polaris_spark.catalog.metadata.texts import Json, decode
from polaris_spark.catalog.rows import TABLE, VIEW
from polaris_spark.commits.state import State
from polaris_spark.errors import BadRequestError

_COMPACTIONS = 1_000
"""Maximum number of snapshots that are read to find out whether all changes of a table are compactions."""


class Freshness(NamedTuple):
    """Whether the stored rows of a materialized view are fresh: whether they are still the result of its query."""

    fresh: bool
    reason: str
    """Why the rows are stale; empty if they are fresh."""
    changed: tuple[str, ...] = ()
    """Full names of the sources that have changed."""
    unknown: tuple[tuple[str, ...], ...] = ()
    """Full names, catalog included, of the sources outside of the catalog that could not be looked up. No other source
    has changed."""


def freshness(
    state: State, name: TableName, outside: OutsideSources | None = None, *, only_recorded: bool = False
) -> Freshness:
    """Return whether the stored rows of a materialized view are fresh in a commit: whether they are the result of its
    query on this state. This reads only rows of the commit, unless the query has sources outside of the catalog.

    Rows stay fresh if the sources were only compacted, because a compaction does not change the rows of a table.

    Args:
        outside: looks up sources outside of the catalog. Without it, the rows of a view that reads tables of another
            catalog, or Iceberg tables by their location, are not fresh.
        only_recorded: whether to look up only sources that the refresh recorded with their ids. Set it for a reader
            that may see the view, but not all tables: the query can name tables that its author may not see. If this is
            true, the rows of a refresh by another program are reported as not fresh.
    Raises:
        NoSuchViewError: the view does not exist.
        BadRequestError: the view is not materialized.
    """
    view = materialized(state, name)
    table = state.get(require(state, storage_name(name), TABLE).content, Table)
    record = current_refresh(TableDraft(table, state, now_ms=0).properties)
    if record is None:
        return Freshness(
            fresh=False,
            reason="it was never refreshed" if table.current_snapshot_id is None else "unknown rows",
        )
    if record.get("version-id") != view.current_version_id:
        return Freshness(fresh=False, reason="its query was replaced")
    sources = record.get(SOURCE_STATES)
    outside = outside or OutsideSources()
    changed: list[str] = []
    unknown: list[tuple[str, ...]] = []
    try:
        if sources is None and only_recorded:
            return Freshness(fresh=False, reason="another program made the refresh")
        if sources is None:  # another writer made the refresh
            sources = _foreign(state, view, record)
        for source in sources:
            try:
                changed += [_full_name(source)] if _has_changed(state, source, outside) else []
            except UnknownSourceError as error:
                unknown.append(error.parts)
    except BadRequestError as error:
        return Freshness(fresh=False, reason=str(error))
    except (AttributeError, KeyError, TypeError):  # not as `source-states` are specified
        return Freshness(
            fresh=False,
            reason="the record of the last refresh does not list all tables and views that the view reads; refresh the "
            "view again",
        )
    if changed:
        names = tuple(dict.fromkeys(changed))
        return Freshness(fresh=False, reason=f"changed: {', '.join(names)}", changed=names)
    if unknown:
        names = tuple(dict.fromkeys(".".join(filter(None, one)) for one in unknown))
        reason = f"only a Spark session can find out whether these have changed: {', '.join(names)}"
        return Freshness(fresh=False, reason=reason, unknown=tuple(dict.fromkeys(unknown)))
    return Freshness(fresh=True, reason="")


def _foreign(state: State, view: View, record: Json) -> list[Json]:
    """Return the source states of a refresh that another program made and recorded.

    Raises:
        BadRequestError: the record of the refresh does not list exactly the tables that the query reads, or the query
            reads views or tables outside of the catalog.
    """
    query = query_of(state, view)
    bases = {str(one.get("identifier")): one for one in record.get("base-tables", ())}
    if any(one.get("type") != "iceberg-metastore" for one in bases.values()):
        raise BadRequestError(
            "the record of the last refresh does not list all tables and views that the view reads; refresh the view "
            "again"
        )
    pinned = pin(state, query.catalog or "this catalog", query, TableName((), ""))
    if pinned.views or {one.identifier for one in pinned.tables} != set(bases):
        raise BadRequestError(
            "the record of the last refresh does not list all tables and views that the view reads; refresh the view "
            "again"
        )
    return [
        {
            "type": "table",
            "namespace": list(one.name.namespace),
            "name": one.name.name,
            "uuid": one.uuid,
            "snapshot-id": one.snapshot_id if one.fixed else bases[one.identifier].get("snapshot-reference"),
            "ref": one.ref,
            "name-mapping": one.name_mapping,  # the other writer did not record it
        }
        for one in pinned.tables
    ]


def is_outside(source: Json) -> bool:
    """Whether a source state in the record of a refresh belongs to a table or view outside of the catalog."""
    return bool(source.get("catalog")) or "base-type" in source


def _full_name(source: Json) -> str:
    name = str(TableName(tuple(source["namespace"]), source["name"]))
    return f"{source['catalog']}.{name}" if source.get("catalog") else name


def _has_changed(state: State, source: Json, outside: OutsideSources) -> bool:
    """Return whether a source has changed since the state that the refresh recorded.

    Raises:
        BadRequestError: the source is outside of the catalog and cannot be read.
        UnknownSourceError: the source is outside of the catalog and cannot be looked up here.
    """
    if source.get("base-type") == DELTA_LOCATION:
        delta = outside.delta(source["name"])
        version = source["snapshot-id"] if "ref" in source else delta.version
        return (delta.id, delta.version) != (source["uuid"], version)
    if source["type"] == "view":
        found = view_of(state, source, outside)
        return found is None or found != (source["uuid"], source["version-id"])
    table = table_of(state, source, outside)
    if table is None or table.uuid != source["uuid"]:
        return True
    if name_mapping_of(table) != source.get("name-mapping", ""):
        return True
    if "ref" not in source:
        return False
    if source.get("schema-id", table.current_schema_id) != table.current_schema_id:
        return True
    id = snapshot_of(table, source["ref"])
    same = source["snapshot-id"] == (NO_SNAPSHOT if id is None else id)
    return not (same or only_compacted(table, id, source["snapshot-id"]))


def table_of(state: State, source: Json, outside: OutsideSources) -> TableState | None:
    """Return the Iceberg table of a source state; None if it does not exist.

    Raises:
        BadRequestError: the name now belongs to a table of another format.
        UnknownSourceError: the source is outside of the catalog and cannot be looked up here.
    """
    name = TableName(tuple(source["namespace"]), source["name"])
    if source.get("base-type") == DELTA_LOCATION:
        return None
    if is_outside(source):
        other = outside.find((source.get("catalog", ""), *name.namespace, name.name))
        return other if isinstance(other, OutsideTable) else None
    found = find(state, table_key(name))
    return TableDraft(state.get(found.content, Table), state, now_ms=0) if found else None


def view_of(state: State, source: Json, outside: OutsideSources) -> tuple[str, int] | None:
    """Return the UUID and the version of the view of a source state; None if it does not exist.

    Raises:
        UnknownSourceError: the source is outside of the catalog and cannot be looked up here.
    """
    name = TableName(tuple(source["namespace"]), source["name"])
    if source.get("catalog"):
        other = outside.find((source["catalog"], *name.namespace, name.name))
        return (other.uuid, other.version_id) if isinstance(other, OutsideView) else None
    found = find(state, table_key(name, VIEW))
    view = state.get(found.content, View) if found else None
    return None if view is None else (view.uuid, view.current_version_id)


def only_compacted(table: TableState, id: int | None, since: int) -> bool:
    """Whether all snapshots of a table after the snapshot `since`, up to the snapshot `id`, are compactions."""
    for _ in range(_COMPACTIONS):
        if id is None or id == since:
            return id == since
        snapshot = table.snapshots.get(id)
        if snapshot is None or (snapshot.get("summary") or {}).get("operation") != "replace":
            return False
        id = snapshot.get("parent-snapshot-id")
    return False


class Changes(NamedTuple):
    """What has changed in one table."""

    snapshots: int = 0
    rows: int = 0
    """Number of rows that were added or removed, as in the summaries of the snapshots."""


class Behind(NamedTuple):
    """What has changed since the last refresh of a materialized view."""

    since_ms: int | None
    """Time of the first change whose time is known, in milliseconds since 1970; None if there is none."""
    tables: dict[str, Changes]
    """The changes of each table that has new snapshots, by its full name."""

    @property
    def snapshots(self) -> int:
        return sum(one.snapshots for one in self.tables.values())

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.tables.values())


def behind(state: State, view: View, record: Json) -> Behind:
    """Return what has changed in the sources since a refresh of a materialized view: new snapshots of tables, and new
    versions of views. Sources outside of the catalog are left out.

    Args:
        record: the record of the refresh; empty if the current version of the view was never refreshed.
    """
    times: list[int] = []
    if record.get("version-id") != view.current_version_id:
        times.append(_version_time(state, view))
    tables: dict[str, Changes] = {}
    for source in record.get(SOURCE_STATES) or ():
        if is_outside(source):
            continue
        if source.get("type") == "view":
            found = find(state, table_key(TableName(tuple(source["namespace"]), source["name"]), VIEW))
            below = state.get(found.content, View) if found else None
            if below and below.uuid == source["uuid"] and below.current_version_id != source["version-id"]:
                times.append(_version_time(state, below))
        elif source.get("type") == "table" and "ref" in source:
            snapshots = list(_added_snapshots(state, source))
            times += [one.get("timestamp-ms", 0) for one in snapshots]
            if snapshots:
                rows = sum(
                    count_in(one.get("summary") or {}, name)
                    for one in snapshots
                    for name in ("added-records", "deleted-records")
                )
                tables[_full_name(source)] = Changes(len(snapshots), rows)
    return Behind(min(times, default=None), tables)


def _version_time(state: State, view: View) -> int:
    """Return when the current version of a view became current, in milliseconds since 1970."""
    time: int = decode(logs.items(view.version_log, state)[-1])["timestamp-ms"]
    return time


def _added_snapshots(state: State, source: Json) -> Iterator[Json]:
    """Yield the snapshots of a table that are newer than the recorded snapshot, the newest first. Compactions are left
    out."""
    table = table_of(state, source, OutsideSources())
    if table is None or table.uuid != source["uuid"]:
        return
    id = snapshot_of(table, source["ref"])
    for _ in range(_COMPACTIONS):
        snapshot = None if id is None or id == source["snapshot-id"] else table.snapshots.get(id)
        if snapshot is None:
            return
        if (snapshot.get("summary") or {}).get("operation") != "replace":
            yield snapshot
        id = snapshot.get("parent-snapshot-id")


def has_same_columns(state: State, query: PinnedQuery) -> bool:
    """Whether the tables of the catalog in a pinned query still have the columns that they had when it was pinned."""
    for table in query.tables:
        if table.catalog or table.type != METASTORE or table.is_tag:
            continue
        found = find(state, table_key(table.name))
        now = None if found is None else state.get(found.content, Table)
        if now is None or (now.uuid, now.current_schema_id) != (table.uuid, table.schema_id):
            return False
    return True


def stored_rows(
    state: State, catalog: str, session: Json, outside: OutsideSources
) -> Callable[[TableName, View], str | None]:
    """Return a function for the argument `stored` of `pin`. For a materialized view, it returns a query that reads the
    stored rows; None unless they are fresh and were computed in a session with the same settings.

    Args:
        catalog: name of this catalog in Spark.
        session: settings of the session (`SESSION`).
    """

    def query(name: TableName, view: View) -> str | None:
        if not freshness(state, name, outside).fresh:
            return None
        record = last_refresh(state, name)
        if record is None or record.get(SESSION) != session:
            return None
        return stored_query(state, catalog, name, view)

    return query
