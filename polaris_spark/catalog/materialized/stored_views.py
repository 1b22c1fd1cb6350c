"""The materialized views of a commit, and their stored rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from polaris_spark.catalog.entities.entities import NamespaceName, TableName, require
from polaris_spark.catalog.entities.materialized_views import is_materialized, storage_name
from polaris_spark.catalog.entities.refresh_records import REFRESH, current_refresh, snapshots_of
from polaris_spark.catalog.materialized.snapshot_sql import quoted
from polaris_spark.catalog.materialized.view_sources import columns_of
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.rows import Table, View
from polaris_spark.catalog.metadata.texts import Json
from polaris_spark.catalog.rows import NAMES, TABLE, VIEW
from polaris_spark.catalog.tables.contents import content_of
from polaris_spark.commits.state import State
from polaris_spark.errors import BadRequestError
from polaris_spark.index.keys import children, decode_key, subtree

_TOGETHER = 256
"""Number of views whose index entries are read together."""


def materialized(state: State, name: TableName) -> View:
    """Return a materialized view.

    Raises:
        NoSuchViewError: the view does not exist.
        BadRequestError: the view is not materialized.
    """
    view = state.get(require(state, name, VIEW).content, View)
    if not is_materialized(view):
        raise BadRequestError(f"view {name} is not materialized")
    return view


def materialized_views(state: State, namespace: NamespaceName | None) -> Iterator[tuple[TableName, View]]:
    """Yield the materialized views of a commit, with their names, in the order of the index `names`.

    Args:
        namespace: the namespace that contains them; None for the whole catalog. Views whose metadata is not loaded yet
            are left out.
    """
    start, end = subtree(()) if namespace is None else children(namespace, VIEW)
    index = state.base.index(NAMES)
    keys = (key for key in index.keys(start, end, None) if decode_key(key).kind == VIEW)
    while run := list(islice(keys, _TOGETHER)):
        entries = index.get_many(run)
        for key, entry in zip(run, entries, strict=True):
            value = None if entry is None else content_of(state, entry.pointer, View)
            if isinstance(value, View) and is_materialized(value):
                path, _, name = decode_key(key)
                yield TableName(path, name), value


def stored_query(state: State, catalog: str, name: TableName, view: View) -> str | None:
    """Return Spark SQL that reads the rows that a materialized view has stored in this commit; None if the storage
    table has no current snapshot, for example because the view was never refreshed.

    Args:
        catalog: name of this catalog in Spark.
    """
    storage = storage_name(name)
    table = state.get(require(state, storage, TABLE).content, Table)
    if table.current_snapshot_id is None:
        return None
    columns = ", ".join(quoted((one,)) for one in columns_of(state, view))
    where = quoted((catalog, *storage.namespace, storage.name))
    return f"SELECT {columns} FROM {where} VERSION AS OF {table.current_snapshot_id}"


def last_refresh(state: State, name: TableName) -> Json | None:
    """Return the record of the refresh that made the current rows of a materialized view; None if there is none."""
    table = state.get(require(state, storage_name(name), TABLE).content, Table)
    return current_refresh(TableDraft(table, state, now_ms=0).properties)


def refreshed_snapshot(state: State, name: TableName) -> Json:
    """Return the snapshot of the storage table that the last refresh of a materialized view made; empty if there is
    none, or if it has expired."""
    table = state.get(require(state, storage_name(name), TABLE).content, Table)
    draft = TableDraft(table, state, now_ms=0)
    record = current_refresh(draft.properties)
    made = snapshots_of(record)[:1] if record else []
    found = draft.snapshots.get(made[0]) if made else None
    return found if found is not None and REFRESH in (found.get("summary") or {}) else {}
