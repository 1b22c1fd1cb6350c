"""Records of the refreshes of a storage table, and the check that only a refresh changes the rows of the table.

The summary of the snapshot that a refresh makes contains the record of this refresh. A JSON document in the property
`materialized_view_metadata` of the storage table contains the records of several refreshes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from polaris_spark.catalog.entities.entities import TableName, table_key
from polaris_spark.catalog.entities.materialized_views import (
    HIDDEN,
    METADATA,
    SESSION,
    document_of,
    has_time_travel,
)
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.rows import View
from polaris_spark.catalog.metadata.texts import (
    Json,
    decode,
    encode,
    get_int,
    get_long,
    get_longs,
    get_object,
    get_objects,
    get_text,
    get_texts,
)
from polaris_spark.errors import BadRequestError

REFRESH: Final = "polaris.refresh"
"""Key in the summary of a storage table's snapshot. The value describes the refresh that made the snapshot, as JSON:
the fields of a refresh record, `view-uuid`, `COLUMN_IDS`, and in `replaces` the id of the refresh before it (or
null)."""
COLUMN_IDS: Final = "column-ids"
"""Field of the description of a refresh in the summary of its snapshot: ids of the columns that the view shows. The
data files have these ids."""
REFRESH_STATE: Final = "refresh-state"
"""Key in the summary of a storage table's snapshot: the state of the sources, in the form of the newer draft of the
specification."""
REFRESH_START: Final = "refresh-start-timestamp-ms"
"""Field of a refresh record, beyond the draft specification: when the refresh began, in milliseconds since 1970."""
USED_STRATEGY: Final = "strategy"
"""Field of a refresh record, beyond the draft specification: how it was made, `full` or `incremental`."""
REASON: Final = "reason"
"""Field of a refresh record, beyond the draft specification: why this strategy was used."""
ROWS_READ: Final = "rows-read"
"""Field of a refresh record, beyond the draft specification: number of rows in the data files that it read."""
FILES_READ: Final = "files-read"
SIZE_READ: Final = "bytes-read"
CURRENT_REFRESH: Final = "current-refresh-id"
"""Field of a storage table's document: id of the refresh that made the current rows."""
NO_SNAPSHOT: Final = -1
"""Snapshot id that is recorded for a base table without a current snapshot, as in metadata of Iceberg tables."""

_SNAPSHOTS = "snapshot-ids"
"""Field of a refresh record beyond the specification: ids of the storage table's snapshots with the rows of this
refresh. There are several after a compaction."""
_ONLY_IN_SUMMARY = frozenset({"view-uuid", "replaces", COLUMN_IDS})
_FIXED = frozenset({"add-schema", "set-current-schema", "remove-schemas", "set-location", "assign-uuid"})
"""Actions of updates that would change the columns or the place of a storage table."""
_COLUMNS = frozenset({"add-schema", "set-current-schema", "remove-schemas"})


def current_refresh(table: Mapping[str, str]) -> Json | None:
    """Return the refresh record of the current rows of a storage table, given the table's properties; None if the table
    was never refreshed, or its document does not have this record."""
    document = document_of(table)
    id = document.get(CURRENT_REFRESH)
    return next((one for one in refresh_records(document) if one.get("refresh-id") == id), None)


def refresh_of(table: TableDraft, snapshot_id: int) -> Json | None:
    """Return the record of the refresh that made the rows of a storage table's snapshot; None if it is not known."""
    records = refresh_records(document_of(table.properties))
    found = next((one for one in records if snapshot_id in snapshots_of(one)), None)
    return _found_in_summaries(table, snapshot_id) if found is None else found


def snapshot_of_refresh(table: TableDraft, refresh_id: int) -> int | None:
    """Return the id of a snapshot of a storage table that has the rows of a refresh; None if there is none.

    If the document in the table's property has no record of the refresh, the summaries of all snapshots are searched.
    """
    for record in refresh_records(document_of(table.properties)):
        if record.get("refresh-id") == refresh_id and snapshots_of(record):
            return snapshots_of(record)[0]
    for snapshot in table.snapshots.values():
        table.check_time()
        summary = snapshot.get("summary") or {}
        if REFRESH in summary and refresh_of_snapshot(summary)["refresh-id"] == refresh_id:
            return int(snapshot["snapshot-id"])
    return None


def snapshots_of(record: Json) -> list[int]:
    """Return the ids of the snapshots that have the rows of a refresh, the oldest first, as listed in its record."""
    return list(record.get(_SNAPSHOTS, ()))


def refresh_duration_ms(record: Json, committed_ms: int | None) -> int | None:
    """Return the time from the start of a refresh to the commit of its snapshot, in milliseconds. Return None if the
    record does not contain the start, or if the start is after the commit, because the clocks of the catalog and the
    writer differ.

    Args:
        committed_ms: time of the snapshot, in milliseconds since 1970.
    """
    begun = record.get(REFRESH_START)
    if begun is None or committed_ms is None or not 0 <= begun <= committed_ms:
        return None
    return int(committed_ms - begun)


def shown_columns(table: TableDraft, snapshot_id: int) -> list[str]:
    """Return the names of the visible (not hidden) columns of a storage table's snapshot."""
    snapshot = table.snapshots.get(snapshot_id) or {}
    return [one["name"] for one in _shown_fields(table, snapshot.get("schema-id", table.current_schema_id))]


def shown_column_ids(table: TableDraft) -> list[int]:
    """Return the ids of the visible (not hidden) columns that a storage table has now."""
    return [one["id"] for one in _shown_fields(table, table.current_schema_id)]


def require_refresh_only(draft: TableDraft, table: TableName, view: View) -> None:
    """Check that a change of a storage table either is a refresh, or does not change the rows that a refresh wrote.

    Compactions, rollbacks, branches, tags, and changes of other properties are allowed.

    Args:
        draft: the storage table with the changes.
        table: name of the storage table.
        view: the materialized view.
    Raises:
        BadRequestError: the change writes rows and is not a refresh; it changes columns, the location or the document;
            it is a refresh, but of another version of the view or with other columns; or another refresh was committed
            first.
    """
    before = TableDraft(draft.base, draft.reader, now_ms=0)
    old = before.properties
    if draft.properties.get(METADATA) != old.get(METADATA):
        raise BadRequestError(f"property {METADATA} of {table} is set by the catalog and cannot be changed")
    for action, _ in draft.changes:
        if action in _FIXED and not (action in _COLUMNS and _shows_same_columns(draft)):
            raise BadRequestError(
                f"the columns and the location of {table} are those of its materialized view and cannot be changed "
                f"({action}); use CREATE OR REPLACE MATERIALIZED VIEW"
            )
    for id in draft.added_snapshots:
        summary = (draft.snapshots.get(id) or {}).get("summary") or {}
        if REFRESH in summary:
            _require_valid_refresh(refresh_of_snapshot(summary), table, view, before)
            if draft.current_snapshot_id != id:
                raise BadRequestError(
                    f"the refresh of {table} does not make its snapshot current in the branch main; unset "
                    "spark.wap.branch and spark.wap.id, and refresh the view again",
                    type="ValidationException",
                )
        elif summary.get("operation") != "replace":
            raise BadRequestError(
                f"{table} is a storage table; only REFRESH MATERIALIZED VIEW writes its rows"
            )
        elif not has_current_columns(before, before.current_snapshot_id):
            raise BadRequestError(
                f"the current rows of {table} have the columns of an earlier version of its view, and a compaction "
                "would lose their values; refresh the view first"
            )


def _require_valid_refresh(refresh: Json, table: TableName, view: View, before: TableDraft) -> None:
    """Check that a refresh computed the current version of the view, with its current columns, and that no other
    refresh was committed since it began.

    Args:
        before: the storage table without the refresh.
    """
    if refresh.get("view-uuid") != view.uuid or refresh["version-id"] != view.current_version_id:
        raise BadRequestError(
            f"the refresh of {table} computed version {refresh['version-id']} of the view, but its current "
            f"version is {view.current_version_id}; refresh the view again",
            type="ValidationException",
        )
    ids = shown_column_ids(before)
    if refresh.get(COLUMN_IDS, ids) != ids:
        # The view can have been replaced and replaced back, and then has the version that it had.
        raise BadRequestError(
            f"the columns of {table} were replaced during its refresh; refresh the view again",
            type="ValidationException",
        )
    if refresh.get("replaces") != document_of(before.properties).get(CURRENT_REFRESH):
        raise BadRequestError(
            f"another refresh of {table} was committed first; nothing was changed",
            type="ValidationException",
        )


def _shows_same_columns(draft: TableDraft) -> bool:
    """Whether all schemas that a change adds or makes current have the same visible columns as the schema that was
    current before the change."""
    if draft.base is None:
        return False
    before = TableDraft(draft.base, draft.reader, now_ms=0)
    added = {detail for action, detail in draft.changes if action == "add-schema"}
    shown = _shown_fields(before, before.current_schema_id)
    return all(_shown_fields(draft, id) == shown for id in {*added, draft.current_schema_id})


def has_current_columns(table: TableDraft, snapshot_id: int | None) -> bool:
    """Whether a snapshot of a storage table has the visible columns that the table has now, with the same ids, names
    and types. A snapshot that was written for an earlier version of the view can have columns with the same names but
    other ids, and Iceberg finds columns in data files by their ids."""
    snapshot = None if snapshot_id is None else table.snapshots.get(snapshot_id)
    if snapshot is None:
        return True
    then, now = (
        [(one["id"], one["name"], one["type"]) for one in _shown_fields(table, id)]
        for id in (snapshot.get("schema-id", table.current_schema_id), table.current_schema_id)
    )
    return then == now


def _shown_fields(table: TableDraft, schema_id: int) -> list[Json]:
    schema = table.schemas.get(schema_id) or {}
    return [one for one in schema.get("fields", ()) if not one["name"].startswith(HIDDEN)]


def set_refreshes(draft: TableDraft, view: View) -> None:
    """Update the refresh records of a storage table to match the draft's snapshots.

    The records are in a JSON document, the value of the property `materialized_view_metadata`. A record is removed when
    no snapshot of its refresh exists any more. Without time travel, only the record of the refresh that made the
    current snapshot is kept. `current-refresh-id` is left out if no refresh made the current rows, for example after
    the query was replaced. If no records and no unknown fields remain, the property is removed.

    Args:
        draft: the storage table; its property is changed.
        view: the materialized view.
    """
    document = document_of(draft.properties)
    records = [dict(one) for one in refresh_records(document)]
    for one in records:  # a record of another writer says only by its id of which snapshot it is
        if _SNAPSHOTS not in one and one.get("refresh-id") == document.get(CURRENT_REFRESH):
            one[_SNAPSHOTS] = [draft.base.current_snapshot_id] if draft.base else []
    of_snapshot = {id: one for one in records for id in one.get(_SNAPSHOTS, ())}
    for id in draft.added_snapshots:
        snapshot = draft.snapshots.get(id) or {}
        summary = snapshot.get("summary") or {}
        if REFRESH in summary:
            record = _new_record(refresh_of_snapshot(summary), id, snapshot)
            records.append(record)
            of_snapshot[id] = record
        else:
            parent = of_snapshot.get(snapshot.get("parent-snapshot-id", 0))
            if parent is not None:
                parent[_SNAPSHOTS] = [*parent.get(_SNAPSHOTS, ()), id]
                of_snapshot[id] = parent
    current = None
    if draft.current_snapshot_id is not None:
        current = of_snapshot.get(draft.current_snapshot_id)
        if current is None:
            current = _found_in_summaries(draft, draft.current_snapshot_id)
            records += [] if current is None else [current]
    if not has_time_travel(view):
        records = [] if current is None else [current]
    for record in records:
        if _SNAPSHOTS in record:
            record[_SNAPSHOTS] = [id for id in record[_SNAPSHOTS] if id in draft.snapshots]
    records = [one for one in records if one.get(_SNAPSHOTS, True)]
    properties = draft.own_properties()
    if not records and not document.keys() - {"refreshes", CURRENT_REFRESH}:
        properties.pop(METADATA, None)
        return
    document["refreshes"] = records
    document.pop(CURRENT_REFRESH, None)
    if current is not None:
        document[CURRENT_REFRESH] = current["refresh-id"]
    properties[METADATA] = encode(document).decode()


def refresh_records(document: Json) -> list[Json]:
    """Return the refresh records in the document of a storage table.

    Raises:
        BadRequestError: the records are malformed.
    """
    return get_objects(document, "refreshes") if "refreshes" in document else []


def refresh_of_snapshot(summary: Mapping[str, str]) -> Json:
    """Return the record of a refresh from a snapshot's summary (its key `REFRESH`).

    Raises:
        BadRequestError: the record is malformed, or the key `REFRESH_STATE` has another version of the view.
    """
    refresh = decode(summary[REFRESH].encode())
    get_long(refresh, "refresh-id")
    get_int(refresh, "version-id")
    for base in get_objects(refresh, "base-tables"):
        get_text(base, "type")
        get_text(base, "identifier")
    _check_optional_fields(refresh)
    version = refresh_state(summary)["view-version-id"] if REFRESH_STATE in summary else refresh["version-id"]
    if version != refresh["version-id"]:
        raise BadRequestError(
            f"the snapshot's summary is inconsistent: {REFRESH_STATE} has version {version} of the view, but {REFRESH} "
            f"has version {refresh['version-id']}"
        )
    return refresh


def check_refresh_records(properties: Mapping[str, str]) -> None:
    """Check the refresh records in the properties of a storage table. Programs other than this catalog can write such
    records.

    Raises:
        BadRequestError: a field of a record has a wrong type. Jobs for the whole catalog would fail because of it.
    """
    for record in refresh_records(document_of(properties)):
        _check_optional_fields(record)


def _check_optional_fields(record: Json) -> None:
    for name in record.keys() & {"refresh-id", REFRESH_START, ROWS_READ, FILES_READ, SIZE_READ}:
        get_long(record, name)
    if "version-id" in record:
        get_int(record, "version-id")
    if "base-tables" in record:
        get_objects(record, "base-tables")
    for name in record.keys() & {USED_STRATEGY, REASON}:
        get_text(record, name)
    for name in record.keys() & {_SNAPSHOTS, COLUMN_IDS}:
        get_longs(record, name)
    if record.get(SESSION) is not None:
        get_object(record, SESSION)
    if record.get("source-states") is not None:
        try:
            for source in get_objects(record, "source-states"):
                _check_source(source)
        except BadRequestError as error:
            raise BadRequestError(
                f"the field source-states of a refresh record is malformed: {error}"
            ) from error


def _check_source(source: Json) -> None:
    """Check one entry of the field `source-states`: the recorded state of a table or view that a refresh has read."""
    for name in ("type", "name", "uuid", *(source.keys() & {"ref", "catalog", "base-type", "name-mapping"})):
        get_text(source, name)
    for name in source.keys() & {"snapshot-id", "storage-snapshot-id"}:
        get_long(source, name)
    for name in source.keys() & {"version-id", "schema-id"}:
        get_int(source, name)
    namespace = tuple(get_texts(source, "namespace"))
    if not source.get("catalog") and "base-type" not in source:
        table_key(TableName(namespace, source["name"]))  # it can be too long
    if source["type"] == "table":
        get_long(source, "snapshot-id")
    if source["type"] == "view":
        get_int(source, "version-id")


def refresh_state(summary: Mapping[str, str]) -> Json:
    """Return the states of the tables and views that a refresh has read, from a snapshot's summary (its key
    `REFRESH_STATE`).

    Raises:
        BadRequestError: the value of the key is malformed.
    """
    found = decode(summary[REFRESH_STATE].encode())
    get_int(found, "view-version-id")
    get_long(found, REFRESH_START)
    for source in get_objects(found, "source-states"):
        get_text(source, "type")
        get_text(source, "name")
        get_text(source, "uuid")
    return found


def _new_record(refresh: Json, id: int, snapshot: Json) -> Json:
    record = {name: value for name, value in refresh.items() if name not in _ONLY_IN_SUMMARY}
    return {**record, "sequence-number": snapshot.get("sequence-number", 0), _SNAPSHOTS: [id]}


def _found_in_summaries(draft: TableDraft, id: int | None) -> Json | None:
    """Return the record of the refresh that made a snapshot or, if no refresh made this snapshot (such as a
    compaction), its nearest ancestor that a refresh made. The record is read from the snapshot's summary. Return None
    if no such snapshot exists."""
    start = id
    while id is not None:
        draft.check_time()
        snapshot = draft.snapshots.get(id)
        if snapshot is None:
            return None
        summary = snapshot.get("summary") or {}
        if REFRESH in summary:
            record = _new_record(refresh_of_snapshot(summary), id, snapshot)
            return record if start == id else {**record, _SNAPSHOTS: [id, start]}
        id = snapshot.get("parent-snapshot-id")
    return None
