"""Metadata of materialized views. A materialized view is a view with a storage table, which holds the result of its
query.

The storage table of `db.v` is the table `db.v.storage`. No namespace lists it, because `db.v` is not a namespace. A
view is materialized if it has the property `materialized_view_metadata`. Both the view and the storage table have this
property; its values are the JSON documents of the draft specification of materialized views, design 1 (issue 6420 of
Apache Iceberg).

A refresh commits a snapshot of the storage table. The snapshot's summary describes the refresh (`REFRESH`). The
documents of both are computed from the snapshots whenever the storage table changes, so they follow its rollbacks,
compactions and expired snapshots.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Final

from polaris_spark.catalog.entities import NameEntry, TableName, find, namespace_key, table_key
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.rows import MATERIALIZED, View
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
from polaris_spark.catalog.metadata.view_draft import ViewDraft
from polaris_spark.catalog.rows import VIEW
from polaris_spark.commits.state import State
from polaris_spark.errors import AlreadyExistsError, BadRequestError, InputError
from polaris_spark.property_values import duration_ms, flag

METADATA: Final = MATERIALIZED
"""Property of views and storage tables that contains the JSON document of the draft specification."""
STORAGE: Final = "storage"
"""Last part of the name of a storage table."""
STORAGE_TABLE: Final = "storage-table"
"""Field of a view version: the identifier of the storage table. It is a field of the newer draft of the specification
of materialized views (pull request 11041 of Apache Iceberg)."""
REFRESH: Final = "polaris.refresh"
"""Key in the summary of a storage table's snapshot. The value describes the refresh that made the snapshot, as JSON:
the fields of a refresh record, `view-uuid`, and in `replaces` the id of the refresh before it (or null)."""
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
STORAGE_LOCATION: Final = "storage-table-location"
ALLOW_STALE: Final = "allow-stale-data"
STRATEGY: Final = "refresh-strategy"
STRATEGIES: Final = ("full", "incremental")
_DEFAULTS: Final = {ALLOW_STALE: "false", STRATEGY: "full"}
"""Default values of the properties that set fields of the view's document."""
MAX_STALENESS: Final = "max-staleness"
"""View property: the longest time, such as `1 hour`, for which stale data is returned after its refresh if
`allow-stale-data` is true. Without it, stale data is returned however old it is."""
INCREMENTAL_LIMIT: Final = "incremental-limit"
"""View property: the maximum number of bytes that an incremental refresh may read, as a part of the bytes that a full
refresh reads, such as `0.5` (the default). If the change is larger, the refresh is full."""
REFRESH_RETENTION: Final = "refresh-retention"
"""View property: how long, such as `7 d` (the default), after the last refresh of a view with the strategy
`incremental` the procedure `expire` keeps the snapshots that this refresh read."""
HIDDEN: Final = "polaris_state_"
"""Beginning of the names of the storage table's columns that the view does not show. Incremental refreshes use them."""
STATE: Final = "state-columns"
"""Field of a refresh record, beyond the draft specification: the hidden columns of the storage table (`name`, `id`, and
what the column `holds`)."""
SESSION: Final = "session"
"""Field of a refresh record, beyond the draft specification: the settings of the Spark session on which results of
queries depend, such as the time zone."""
TIME_TRAVEL: Final = "time-travel"
"""View property: whether the storage table's document lists the refreshes of all its snapshots, not only the current
refresh."""
STORAGE_PROPERTIES: Final = (
    "write.",
    "read.",
    "commit.",
    "history.",
    "gc.",
    "polaris.",
    "format-version",
)
"""Beginnings of the names of properties that are set on the storage table, not on the view."""
NO_SNAPSHOT: Final = -1
"""Snapshot id that is recorded for a base table without a current snapshot, as in metadata of Iceberg tables."""

_SNAPSHOTS = "snapshot-ids"
"""Field of a refresh record beyond the specification: ids of the storage table's snapshots with the rows of this
refresh. There are several after a compaction."""
_FIXED = frozenset({"add-schema", "set-current-schema", "remove-schemas", "set-location", "assign-uuid"})
"""Actions of updates that would change the columns or the place of a storage table."""
_COLUMNS = frozenset({"add-schema", "set-current-schema", "remove-schemas"})


def storage_name(view: TableName) -> TableName:
    """Return the name of the storage table of a materialized view."""
    return TableName((*view.namespace, view.name), STORAGE)


def is_materialized(view: View) -> bool:
    """Whether a view is materialized."""
    return METADATA in view.properties


def view_of(state: State, table: TableName) -> tuple[TableName, NameEntry, View] | None:
    """Return the materialized view to which a storage table belongs; None if the table is not a storage table."""
    if table.name != STORAGE or len(table.namespace) < 2:
        return None
    name = TableName(table.namespace[:-1], table.namespace[-1])
    found = find(state, table_key(name, VIEW))
    if found is None:
        return None
    view = state.get(found.content, View)
    return (name, found, view) if is_materialized(view) else None


def refuse_storage(state: State, table: TableName, action: str) -> None:
    """Check that a table is not a storage table.

    Args:
        action: the action that the caller wants to take, as a past participle, such as `dropped`.
    Raises:
        BadRequestError: the table is the storage table of a materialized view.
    """
    owner = view_of(state, table)
    if owner is not None:
        raise BadRequestError(
            f"{table} is the storage table of materialized view {owner[0]} and cannot be {action} on its own; "
            "use the statements for the materialized view"
        )


def require_no_namespace(state: State, view: TableName) -> None:
    """Check that no namespace has the name of a new materialized view. Its tables could have the name of the storage
    table.

    Raises:
        AlreadyExistsError: such a namespace exists.
    """
    if find(state, namespace_key((*view.namespace, view.name))) is not None:
        raise AlreadyExistsError(f"Namespace already exists: {view}; a materialized view needs this name")


def require_no_view(state: State, namespace: tuple[str, ...]) -> None:
    """Check that no materialized view has the name of a new namespace.

    Raises:
        AlreadyExistsError: such a materialized view exists.
    """
    if len(namespace) > 1 and view_of(state, TableName(namespace, STORAGE)) is not None:
        raise AlreadyExistsError(f"Materialized view already exists: {'.'.join(namespace)}")


def document_of(properties: Mapping[str, str]) -> Json:
    """Return the document in the property `materialized_view_metadata` of a view or storage table; an empty document if
    the property is missing.

    Raises:
        BadRequestError: the property is not a JSON object.
    """
    text = properties.get(METADATA)
    if text is None:
        return {}
    try:
        return decode(text.encode())
    except (BadRequestError, RecursionError) as error:
        raise BadRequestError(f"property {METADATA} is not a JSON object: {error}") from error


def storage_location(properties: Mapping[str, str]) -> str:
    """Return the location of the metadata file of the storage table, given the properties of a view; an empty string if
    the view is not materialized.

    Raises:
        BadRequestError: the document of the view is malformed.
    """
    document = document_of(properties)
    return get_text(document, STORAGE_LOCATION) if METADATA in properties else ""


def set_document(
    properties: MutableMapping[str, str], storage_location: str, before: Mapping[str, str] | None = None
) -> None:
    """Set the document in the properties of a materialized view.

    The properties `allow-stale-data` and `refresh-strategy`, by which users set fields of the document, are moved into
    it. Unknown fields of the document are kept.

    Args:
        properties: the properties of the view; changed.
        storage_location: location of the storage table's metadata file.
        before: the properties before the change; None for a new view.
    Raises:
        BadRequestError: a value is not allowed, or the change removes the document.
    """
    if before is not None and METADATA not in properties:
        raise BadRequestError(f"property {METADATA} cannot be removed; drop the materialized view instead")
    document = document_of(properties)
    if ALLOW_STALE in properties:
        document[ALLOW_STALE] = _checked(flag, ALLOW_STALE, properties.pop(ALLOW_STALE))
    if STRATEGY in properties:
        document[STRATEGY] = properties.pop(STRATEGY).strip().lower()
    if not isinstance(document.get(ALLOW_STALE, False), bool):
        raise BadRequestError(f"{ALLOW_STALE} is {document[ALLOW_STALE]!r}; it must be true or false")
    if document.get(STRATEGY, "full") not in STRATEGIES:
        raise BadRequestError(f"{STRATEGY} is {document[STRATEGY]!r}; it must be 'full' or 'incremental'")
    if MAX_STALENESS in properties:
        _checked(duration_ms, MAX_STALENESS, properties[MAX_STALENESS])
    if TIME_TRAVEL in properties:
        _checked(flag, TIME_TRAVEL, properties[TIME_TRAVEL])
    if REFRESH_RETENTION in properties:
        _checked(duration_ms, REFRESH_RETENTION, properties[REFRESH_RETENTION])
    if INCREMENTAL_LIMIT in properties:
        _checked(_limit, INCREMENTAL_LIMIT, properties[INCREMENTAL_LIMIT])
    document[STORAGE_LOCATION] = storage_location
    properties[METADATA] = encode(document).decode()


def _checked(parse: Any, name: str, text: str) -> Any:
    try:
        return parse(name, text)
    except InputError as error:
        raise BadRequestError(str(error)) from error


def _limit(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise InputError(f"{name} is {text!r}; it must be a number that is not negative, such as 0.5")
    return value


def incremental_limit(view: View) -> float:
    """Return the maximum number of bytes that an incremental refresh may read, as a part of the bytes of a full
    refresh."""
    return float(view.properties.get(INCREMENTAL_LIMIT, "0.5"))


def refresh_retention_ms(view: View) -> int:
    """Return how long `expire` keeps the snapshots that the last refresh of a view read, in milliseconds."""
    return duration_ms(REFRESH_RETENTION, view.properties.get(REFRESH_RETENTION, "7 d"))


def has_time_travel(view: View) -> bool:
    """Whether the storage table's document lists all refreshes whose rows still exist."""
    return view.properties.get(TIME_TRAVEL, "false").strip().lower() == "true"


def allows_stale(view: View) -> bool:
    """Whether a materialized view returns stale data (field `allow-stale-data`, by default false)."""
    return document_of(view.properties).get(ALLOW_STALE, False) is True


def strategy_of(view: View) -> str:
    """Return the refresh strategy of a materialized view: `full` or `incremental`."""
    return str(document_of(view.properties).get(STRATEGY, "full"))


def current_refresh(table: Mapping[str, str]) -> Json | None:
    """Return the refresh record of the current rows of a storage table, given the table's properties; None if the table
    was never refreshed, or its document does not say."""
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

    If the document does not have the refresh, the summaries of all snapshots are read.
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
    """Return the ids of the snapshots with the rows of a refresh, the oldest first, according to its record."""
    return list(record.get(_SNAPSHOTS, ()))


def refresh_duration_ms(record: Json, committed_ms: int | None) -> int | None:
    """Return how long a refresh took until its snapshot, in milliseconds; None if its record does not say when it
    began, or the clocks of the catalog and of the writer do not agree.

    Args:
        committed_ms: time of the snapshot, in milliseconds since 1970.
    """
    begun = record.get(REFRESH_START)
    if begun is None or committed_ms is None or not 0 <= begun <= committed_ms:
        return None
    return int(committed_ms - begun)


def shown_columns(table: TableDraft, snapshot_id: int) -> list[str]:
    """Return the names of the columns of a storage table's snapshot that are not hidden."""
    snapshot = table.snapshots.get(snapshot_id) or {}
    return [one["name"] for one in _shown_fields(table, snapshot.get("schema-id", table.current_schema_id))]


def require_refresh_only(draft: TableDraft, table: TableName, view: View) -> None:
    """Check that a change of a storage table leaves its rows as a refresh made them, or is a refresh.

    Compactions, rollbacks, branches, tags, and changes of other properties are allowed.

    Args:
        draft: the storage table with the changes.
        table: name of the storage table.
        view: the materialized view.
    Raises:
        BadRequestError: the change writes rows without being a refresh; changes columns, the location or the document;
            or it is a refresh of another version of the view, or another refresh came first.
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
    current = document_of(old).get(CURRENT_REFRESH)
    for id in draft.added_snapshots:
        snapshot = draft.snapshots.get(id) or {}
        summary = snapshot.get("summary") or {}
        if REFRESH not in summary:
            if summary.get("operation") != "replace":
                raise BadRequestError(
                    f"{table} is a storage table; only REFRESH MATERIALIZED VIEW writes its rows"
                )
            if not has_current_columns(before, before.current_snapshot_id):
                raise BadRequestError(
                    f"the current rows of {table} have the columns of an earlier version of its view, and a compaction "
                    "would lose their values; refresh the view first"
                )
            continue
        refresh = refresh_of_snapshot(summary)
        if refresh.get("view-uuid") != view.uuid or refresh["version-id"] != view.current_version_id:
            raise BadRequestError(
                f"the refresh of {table} computed version {refresh['version-id']} of the view, but its current version "
                f"is {view.current_version_id}; refresh it again",
                type="ValidationException",
            )
        if draft.current_snapshot_id != id:
            raise BadRequestError(
                f"the refresh of {table} does not make its snapshot current in the branch main (is spark.wap.branch or "
                "spark.wap.id set?)",
                type="ValidationException",
            )
        if refresh.get("replaces") != current:
            raise BadRequestError(
                f"another refresh of {table} came first; nothing was changed", type="ValidationException"
            )


def _shows_same_columns(draft: TableDraft) -> bool:
    """Whether all schemas that a change adds or makes current differ from the one before only in hidden columns."""
    if draft.base is None:
        return False
    before = TableDraft(draft.base, draft.reader, now_ms=0)
    added = {detail for action, detail in draft.changes if action == "add-schema"}
    shown = _shown_fields(before, before.current_schema_id)
    return all(_shown_fields(draft, id) == shown for id in {*added, draft.current_schema_id})


def has_current_columns(table: TableDraft, snapshot_id: int | None) -> bool:
    """Whether a snapshot of a storage table has the visible columns that the table has now. A snapshot of an earlier
    version of the view may have others, even if their names are the same: Iceberg finds columns in data files by their
    ids."""
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
    """Set the document of a storage table so that it describes the draft's snapshots.

    Without time travel, the document has only the refresh of the current snapshot. Refreshes none of whose snapshots
    still exist are removed. `current-refresh-id` is left out while no refresh made the current rows, such as after the
    query was replaced. If there are no refreshes and no unknown fields, the table has no document.

    Args:
        draft: the storage table; its property `materialized_view_metadata` is changed.
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
        BadRequestError: they are malformed.
    """
    return get_objects(document, "refreshes") if "refreshes" in document else []


def refresh_of_snapshot(summary: Mapping[str, str]) -> Json:
    """Return the description of a refresh in a snapshot's summary (`REFRESH`).

    Raises:
        BadRequestError: it is malformed, or `REFRESH_STATE` describes another version of the view.
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
            f"{REFRESH_STATE} describes version {version} of the view, but {REFRESH} describes version "
            f"{refresh['version-id']}"
        )
    return refresh


def check_refresh_records(properties: Mapping[str, str]) -> None:
    """Check the refresh records in the properties of a storage table that another writer may have made.

    Raises:
        BadRequestError: a record has a field of a wrong type, with which jobs for the whole catalog would fail.
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
    if _SNAPSHOTS in record:
        get_longs(record, _SNAPSHOTS)
    if record.get(SESSION) is not None:
        get_object(record, SESSION)
    if record.get("source-states") is not None:
        try:
            for source in get_objects(record, "source-states"):
                _check_source(source)
        except BadRequestError as error:
            raise BadRequestError(f"source-states of a refresh are malformed: {error}") from error


def _check_source(source: Json) -> None:
    """Check the recorded state of a table or view that a refresh has read."""
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
    """Return the state of the sources in a snapshot's summary (`REFRESH_STATE`).

    Raises:
        BadRequestError: it is malformed.
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
    record = {name: value for name, value in refresh.items() if name not in ("view-uuid", "replaces")}
    return {**record, "sequence-number": snapshot.get("sequence-number", 0), _SNAPSHOTS: [id]}


def _found_in_summaries(draft: TableDraft, id: int | None) -> Json | None:
    """Return the record of the refresh that made a snapshot or, if it is a compaction, the nearest ancestor."""
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


def split_updates(updates: Sequence[Json]) -> tuple[list[Json], list[Json]]:
    """Return the updates of a materialized view, and those of its storage table: changes of the properties whose names
    begin with `STORAGE_PROPERTIES`. The removal of a property that sets a field of the document sets its default.

    Args:
        updates: metadata updates of the view, as in the REST protocol.
    """
    of_view: list[Json] = []
    of_storage: list[Json] = []
    for update in updates:
        action, given = update.get("action"), update.get("updates")
        if action == "set-properties" and isinstance(given, Mapping):
            properties = {k: v for k, v in given.items() if k.startswith(STORAGE_PROPERTIES)}
            of_storage += storage_updates(properties)
            rest = {k: v for k, v in given.items() if k not in properties}
            of_view += [{**update, "updates": rest}] if rest or not properties else []
        elif action == "remove-properties" and isinstance(update.get("removals"), list):
            names = [one for one in update["removals"] if str(one).startswith(STORAGE_PROPERTIES)]
            of_storage += [{**update, "removals": names}] if names else []
            of_view.append({**update, "removals": [one for one in update["removals"] if one not in names]})
            default = {one: text for one, text in _DEFAULTS.items() if one in update["removals"]}
            of_view += [{"action": "set-properties", "updates": default}] if default else []
        else:
            of_view.append(update)
    return of_view, of_storage


def storage_updates(properties: Mapping[str, str]) -> list[Json]:
    """Return metadata updates that set properties of a storage table."""
    others = {name: text for name, text in properties.items() if name != "format-version"}
    found: list[Json] = [{"action": "set-properties", "updates": others}] if others else []
    version = properties.get("format-version")
    if version is None:
        return found
    if not version.isdecimal():
        raise BadRequestError(f"format-version is {version!r}; it must be a number such as 2")
    return [{"action": "upgrade-format-version", "format-version": int(version)}, *found]


def make_ordinary(draft: ViewDraft) -> None:
    """Remove the document and the identifiers of the storage table from a materialized view."""
    del draft.own_properties()[METADATA]
    draft.versions.replace(lambda version: {k: v for k, v in version.items() if k != STORAGE_TABLE})


def with_storage_table(version: Json, view: TableName) -> Json:
    """Return a view version with the identifier of the storage table (`STORAGE_TABLE`)."""
    name = storage_name(view)
    return {**version, STORAGE_TABLE: {"namespace": list(name.namespace), "name": name.name}}
