"""The snapshots that the last refresh of a materialized view read. An incremental refresh reads only the changes since
these snapshots. So the procedure `expire` keeps them."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

from polaris_spark.catalog.entities.entities import TableName, find, require, table_key
from polaris_spark.catalog.entities.materialized_views import (
    is_materialized,
    refresh_retention_ms,
    storage_name,
    strategy_of,
)
from polaris_spark.catalog.entities.refresh_records import NO_SNAPSHOT, REFRESH_START, has_current_columns
from polaris_spark.catalog.materialized.outside_sources import DELTA_LOCATION, OutsideSources, TableState
from polaris_spark.catalog.materialized.snapshot_sql import schema_at
from polaris_spark.catalog.materialized.stored_views import last_refresh
from polaris_spark.catalog.materialized.view_freshness import is_outside, table_of
from polaris_spark.catalog.materialized.view_sources import (
    SOURCE_STATES,
    PinnedQuery,
    TableSource,
    ViewSource,
)
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.rows import Table, View
from polaris_spark.catalog.metadata.texts import Json
from polaris_spark.catalog.rows import NAMES, TABLE, VIEW
from polaris_spark.catalog.tables.contents import content_of
from polaris_spark.commits.state import State
from polaris_spark.index.diff import diff
from polaris_spark.index.keys import decode_key
from polaris_spark.index.root import IndexRoot


class SnapshotKey(NamedTuple):
    """UUID of a table, and id of the snapshot of the table that a query reads."""

    uuid: str
    snapshot_id: int


def snapshots_since(
    state: State, record: Json, query: PinnedQuery, outside: OutsideSources
) -> dict[SnapshotKey, int] | str:
    """Return a dict from each table, at the snapshot that the query reads now, to the id of the snapshot that the last
    refresh read (`NO_SNAPSHOT` if the table had none). Tables whose snapshot is the same are left out. If the changes
    since the last refresh cannot be computed, return the reason as text.

    Args:
        state: the commit to which the query is pinned.
        record: the record of the last refresh.
        query: the query.
        outside: the tables outside of the catalog, in the states to which the query is pinned.
    """
    sources = record.get(SOURCE_STATES)
    if not isinstance(sources, list):
        return "the last refresh does not describe all sources"
    before = {_key(one): one for one in sources}
    found: dict[SnapshotKey, int] = {}
    read: list[TableSource | ViewSource] = [*query.tables, *query.views]
    for source, place in zip(read, query.source_states(), strict=True):
        if isinstance(source, TableSource) and not source.read:
            continue
        last = before.get(_key(place))
        if last is None or last["uuid"] != source.uuid:
            return f"{source.name} was replaced, or was not read by the last refresh"
        if isinstance(source, ViewSource):
            since = _view(state, source, last)
        else:
            since = _table(source, last, table_of(state, place, outside))
        if isinstance(since, str):
            return since
        for key, id in since.items():
            if found.setdefault(key, id) != id:
                return f"it reads {source.name} twice, and the last refresh read different snapshots"
    return {key: id for key, id in found.items() if key.snapshot_id != id}


def _key(source: Json) -> tuple[str, ...]:
    place = (str(source.get("type")), source.get("catalog", ""), *source["namespace"], source["name"])
    if source.get("type") != "table":
        return place
    return (*place, source["ref"] if "ref" in source else f"@{source['snapshot-id']}")


def _view(state: State, source: ViewSource, last: Json) -> dict[SnapshotKey, int] | str:
    if last["version-id"] != source.version_id:
        return f"view {source.name} was changed"
    if source.stored is None:
        return {}
    since = last.get("storage-snapshot-id")
    if since is None:
        return f"the last refresh did not read the stored rows of {source.name}"
    table = state.get(require(state, storage_name(source.name), TABLE).content, Table)
    draft = TableDraft(table, state, now_ms=0)
    if since not in draft.snapshots:
        return f"snapshot {since} of {source.name}, which the last refresh read, has expired"
    if not all(has_current_columns(draft, id) for id in (since, source.stored.snapshot_id)):
        return f"the columns of {source.name} were changed"
    return {SnapshotKey(source.stored.uuid, source.stored.snapshot_id): since}


def _table(source: TableSource, last: Json, table: TableState | None) -> dict[SnapshotKey, int] | str:
    since: int = last["snapshot-id"]
    key = SnapshotKey(source.uuid, source.snapshot_id)
    if source.name_mapping != last.get("name-mapping", ""):
        return f"the name mapping of {source.full_name} was changed"
    schemas = {source.schema_id} if source.is_tag else {source.schema_id, last.get("schema-id")}
    if source.fixed or (source.snapshot_id == since and len(schemas) == 1):
        return {key: since}
    if source.type == DELTA_LOCATION:
        return f"the changes of Delta tables, such as {source.name.name}, are not computed"
    if source.snapshot_id == NO_SNAPSHOT or table is None:
        return f"{source.full_name} has no snapshot any more"
    if since != NO_SNAPSHOT and since not in table.snapshots:
        return f"snapshot {since} of {source.full_name}, which the last refresh read, has expired"
    schemas |= {schema_at(table, id) for id in {since, source.snapshot_id} - {NO_SNAPSHOT}}
    if source.is_tag:
        schemas.add(table.current_schema_id)  # by which the changed files are read
    if len(schemas) > 1:
        return f"the columns of {source.full_name} were changed"
    return {key: since}


class RefreshNeeds:
    """The snapshots that materialized views need for their next incremental refresh, which compares them with the
    current snapshots.

    A view needs them for a bounded time after its last refresh (`REFRESH_RETENTION`). Views whose metadata is not
    loaded yet are left out.
    """

    def __init__(self, now_ms: int) -> None:
        """
        Args:
            now_ms: the current time, in milliseconds since 1970.
        """
        self._now_ms = now_ms
        self._names = IndexRoot()
        """Root of the index `names` in the commit that was passed to the last call of `at`."""
        self._by_view: dict[bytes, list[SnapshotKey]] = {}
        """The snapshots that each materialized view needs, by the view's key in the index. Views with the strategy
        `full` need nothing, but are listed, too, because their strategy may change before the caller's commit."""

    def at(self, state: State) -> dict[str, frozenset[int]]:
        """Return the ids of the snapshots that are needed in a commit, by the UUID of the table.

        Only views that have changed since the commit of the last call are read from the database. But all materialized
        views are recorded as read by the change, because the result is no longer correct if one of them is refreshed
        before the change is committed.
        """
        commit = state.base.commit
        names = dict(zip(commit.index_names, commit.index_roots, strict=True)).get(NAMES, IndexRoot())
        for key, _, entry in diff(self._names, names, state.read_shards):
            if decode_key(key).kind == VIEW:
                self._by_view.pop(key, None)
                view = None if entry is None else content_of(state, entry.pointer, View)
                if isinstance(view, View) and is_materialized(view):
                    path, _, name = decode_key(key)
                    self._by_view[key] = self._needed(state, TableName(path, name), view)
        self._names = names
        state.lookup_many(NAMES, list(self._by_view))
        found: dict[str, set[int]] = {}
        for snapshot in chain.from_iterable(self._by_view.values()):
            found.setdefault(snapshot.uuid, set()).add(snapshot.snapshot_id)
        return {uuid: frozenset(ids) for uuid, ids in found.items()}

    def _needed(self, state: State, name: TableName, view: View) -> list[SnapshotKey]:
        if strategy_of(view) != "incremental":
            return []
        record = last_refresh(state, name)
        if record is None or self._now_ms - record.get(REFRESH_START, 0) > refresh_retention_ms(view):
            return []
        found = []
        for source in record.get(SOURCE_STATES) or ():
            if is_outside(source):
                continue
            if source.get("type") == "table":
                found.append(SnapshotKey(source["uuid"], source["snapshot-id"]))
            elif "storage-snapshot-id" in source:
                below = storage_name(TableName(tuple(source["namespace"]), source["name"]))
                entry = find(state, table_key(below))
                if entry is not None:
                    uuid = state.get(entry.content, Table).uuid
                    found.append(SnapshotKey(uuid, source["storage-snapshot-id"]))
        return found
