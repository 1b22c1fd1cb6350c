"""Time travel of materialized views: finds the snapshot of the storage table that has the rows of an earlier refresh,
and the columns that the view had at that refresh.

Rows of the past are available as long as the storage table's snapshots exist, whether or not the view has the property
`time-travel`. The snapshot log of the storage table tells which refresh was current at a given time. So rollbacks are
taken into account. Compactions keep the rows.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Final, NamedTuple

from polaris_spark.catalog.entities.entities import TableName, find, require, table_key
from polaris_spark.catalog.entities.materialized_views import is_materialized, storage_name
from polaris_spark.catalog.entities.refresh_records import (
    refresh_of,
    shown_columns,
    snapshot_of_refresh,
    snapshots_of,
)
from polaris_spark.catalog.metadata import logs
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.rows import Schema, Table, View, ViewVersion
from polaris_spark.catalog.metadata.snapshot_history import read_entries
from polaris_spark.catalog.metadata.texts import Json, decode
from polaris_spark.catalog.rows import TABLE, VIEW
from polaris_spark.commits.state import State
from polaris_spark.errors import BadRequestError, NoSuchViewError

_INTEGER = re.compile(r"-?[0-9]{1,19}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LIST = "the system view system.refreshes lists the refreshes whose rows still exist"


class PastRows(NamedTuple):
    """The rows of an earlier refresh of a materialized view."""

    table: Table
    """The storage table."""
    snapshot_id: int
    """Snapshot of the storage table."""
    columns: list[str]
    """Names of the columns that the view had then. The snapshot can have further columns."""


def rows_of_version(state: State, name: TableName, version: str) -> PastRows:
    """Return the rows that a materialized view had in a given version.

    Args:
        version: id of a snapshot of the storage table, id of a refresh, or name of a branch or tag of the storage
            table; looked up in this order.
    Raises:
        NoSuchViewError: there is no materialized view of this name.
        BadRequestError: there is no such version, or its snapshot has expired.
    """
    view, table = _storage(state, name)
    draft = _draft(state, table)
    id = _id(version)
    if id is not None and id not in draft.snapshots:
        id = snapshot_of_refresh(draft, id)
    ref = draft.refs.get(version)
    if id is None and ref is not None:
        id = ref.snapshot_id
    if id is None:
        raise BadRequestError(
            f"materialized view {name} has no version {version!r}: it is not the id of a refresh or snapshot that "
            f"still exists, nor a branch or tag; {_LIST}"
        )
    return _rows(state, name, view, table, id)


def rows_at(state: State, name: TableName, time_us: int) -> PastRows:
    """Return the rows that a materialized view had at a given time.

    Args:
        time_us: the time, in microseconds since 1970 UTC.
    Raises:
        NoSuchViewError: there is no materialized view of this name.
        BadRequestError: the view was not refreshed until that time, or the snapshot of the refresh has expired.
    """
    view, table = _storage(state, name)
    entries = read_entries(logs.text(table.snapshot_log, state))
    before = [one.snapshot_id for one in entries if one.timestamp_ms * 1_000 <= time_us]
    if not before:
        first = f"the first was at {_text(entries[0].timestamp_ms * 1_000)}" if entries else "it has none"
        raise BadRequestError(
            f"materialized view {name} has no refresh at or before {_text(time_us)}: {first}; {_LIST}"
        )
    return _rows(state, name, view, table, before[-1])


def columns_of_version(state: State, view: View, id: int) -> list[str] | None:
    """Return the names of the columns of a view's version; None if the view no longer has the version."""
    fields = fields_of_version(state, view, id)
    return None if fields is None else [field["name"] for field in fields]


def fields_of_version(state: State, view: View, id: int) -> list[Json] | None:
    """Return the fields of the schema of a view's version; None if the view no longer has the version."""
    pointer = next((one.piece for one in view.versions if one.id == id), None)
    if pointer is None:
        return None
    schema_id = decode(state.get(pointer, ViewVersion).text)["schema-id"]
    pointer = next(one.piece for one in view.schemas if one.id == schema_id)
    fields: list[Json] = decode(state.get(pointer, Schema).text)["fields"]
    return fields


def _storage(state: State, name: TableName) -> tuple[View, Table]:
    found = find(state, table_key(name, VIEW))
    view = None if found is None else state.get(found.content, View)
    if view is None or not is_materialized(view):
        raise NoSuchViewError(f"Materialized view does not exist: {name}")
    return view, state.get(require(state, storage_name(name), TABLE).content, Table)


def _draft(state: State, table: Table) -> TableDraft:
    return TableDraft(table, state, now_ms=0, check_time=state.check_time)


def _rows(state: State, name: TableName, view: View, table: Table, id: int) -> PastRows:
    """Return the rows of a snapshot of the storage table. If the snapshot has expired, use a later compaction of it.
    The columns are those of the version of the view that was refreshed."""
    draft = _draft(state, table)
    record = refresh_of(draft, id) or {}
    found = next((one for one in (id, *snapshots_of(record)) if one in draft.snapshots), None)
    if found is None:
        raise BadRequestError(
            f"snapshot {id} of the storage table of materialized view {name} has expired; {_LIST}"
        )
    columns = columns_of_version(state, view, record["version-id"]) if "version-id" in record else None
    return PastRows(table, found, shown_columns(draft, found) if columns is None else columns)


def _id(version: str) -> int | None:
    id = int(version) if _INTEGER.fullmatch(version) else None
    return id if id is not None and -(2**63) <= id < 2**63 else None


def _text(time_us: int) -> str:
    try:
        return (_EPOCH + timedelta(microseconds=time_us)).isoformat()
    except OverflowError:
        return f"{time_us} microseconds since 1970"
