"""Updates of a table's snapshots, branches, tags and statistics; `table_updates` lists the rules."""

from __future__ import annotations

from typing import Any

from polaris_spark.catalog.metadata.bounds import require_within
from polaris_spark.catalog.metadata.change_details import client_fields
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.overflow import MAIN_REF
from polaris_spark.catalog.metadata.pieces import IndexedPieces
from polaris_spark.catalog.metadata.rows import ROW_LINEAGE_VERSION, Ref
from polaris_spark.catalog.metadata.table_values import LogEntry
from polaris_spark.catalog.metadata.texts import (
    Json,
    decode,
    encode,
    find_int,
    find_long,
    find_text,
    get_ints,
    get_long,
    get_longs,
    get_object,
    get_objects,
    get_text,
    get_text_map,
    get_texts,
    invalid,
    refused,
)
from polaris_spark.errors import CommitFailedError
from polaris_spark.names import problem_of

_REF_FIELDS = {
    "min-snapshots-to-keep": "Min snapshots to keep must be greater than 0",
    "max-snapshot-age-ms": "Max snapshot age must be greater than 0 ms",
    "max-ref-age-ms": "Max reference age must be greater than 0",
}


_WITH_MANIFEST_LISTS = ("first-row-id", "added-rows", "key-id")


def add_snapshot(draft: TableDraft, update: Json) -> None:
    """Apply the update `add-snapshot` to a draft."""
    snapshot = get_object(update, "snapshot")
    for pieces, what in (
        (draft.schemas, "schema"),
        (draft.specs, "partition spec"),
        (draft.sort_orders, "sort order"),
    ):
        if not len(pieces):
            raise refused(f"Attempting to add a snapshot before a {what} is added")
    check_snapshot(snapshot)
    id = snapshot["snapshot-id"]
    if id in draft.snapshots:
        raise refused(f"Snapshot already exists for id: {id}")
    number = find_long(snapshot, "sequence-number") or 0
    has_parent = snapshot.get("parent-snapshot-id") is not None
    if draft.format_version > 1 and number <= draft.last_sequence_number and has_parent:
        raise _stale(
            f"Cannot add snapshot with sequence number {number} older than last sequence number "
            f"{draft.last_sequence_number}"
        )
    snapshot = _normal_snapshot(snapshot)
    if draft.format_version >= ROW_LINEAGE_VERSION:
        _assign_rows(draft, snapshot)
    draft.last_sequence_number = number
    draft.highest_sequence_number = max(draft.highest_sequence_number, number)
    draft.snapshots.add(id, encode(snapshot), draft.take_order())
    draft.added_snapshots[id] = snapshot["timestamp-ms"]
    draft.added_parents[id] = snapshot.get("parent-snapshot-id")
    draft.record("add-snapshot", id)
    _summarize(draft, snapshot)


def _normal_snapshot(snapshot: Json) -> Json:
    """Return a snapshot in the form in which table metadata stores it.

    Fields that are null, a sequence number of 0 and an empty summary are left out. A summary without an operation gets
    `overwrite`. The fields `first-row-id`, `added-rows` and `key-id` are left out if there is no manifest list, and
    `added-rows` is left out if there is no `first-row-id`.
    """
    made = {name: value for name, value in snapshot.items() if value is not None}
    if not made.get("sequence-number"):
        made.pop("sequence-number", None)
    if not made.get("summary"):
        made.pop("summary", None)
    elif "operation" not in made["summary"]:
        made["summary"] = {"operation": "overwrite", **made["summary"]}
    if "manifest-list" not in made:
        for name in _WITH_MANIFEST_LISTS:
            made.pop(name, None)
    if "first-row-id" not in made:
        made.pop("added-rows", None)
    return made


def check_snapshot(snapshot: Json) -> None:
    """Check the fields of a snapshot that every reader needs.

    Raises:
        BadRequestError: a field is missing or malformed.
    """
    get_long(snapshot, "snapshot-id")
    get_long(snapshot, "timestamp-ms")
    find_long(snapshot, "sequence-number")
    find_long(snapshot, "parent-snapshot-id")
    find_int(snapshot, "schema-id")
    find_text(snapshot, "key-id")
    if "summary" in snapshot:
        get_text_map(snapshot, "summary")
    if "manifest-list" in snapshot:
        get_text(snapshot, "manifest-list")
    else:
        get_texts(snapshot, "manifests")
    first_row_id, added_rows = find_long(snapshot, "first-row-id"), find_long(snapshot, "added-rows")
    if first_row_id is not None and first_row_id < 0:
        raise invalid(f"Invalid first-row-id (cannot be negative): {first_row_id}")
    if added_rows is not None and added_rows < 0:
        raise invalid(f"Invalid added-rows (cannot be negative): {added_rows}")
    if first_row_id is not None and added_rows is None:
        raise invalid("Invalid added-rows (required when first-row-id is set): null")


def set_snapshot_ref(draft: TableDraft, update: Json) -> None:
    """Apply the update `set-snapshot-ref` to a draft."""
    name, id = get_text(update, "ref-name"), get_long(update, "snapshot-id")
    value = read_ref(update)
    existing = draft.refs.get(name)
    if existing is not None and ref_fields(decode(existing.text)) == ref_fields(value):
        return
    if existing is None:
        problem = problem_of(name)
        if problem is not None:
            raise invalid(f"Cannot create branch or tag: the name {name[:200]!a} {problem}")
        require_within("bytes in the name of a branch or tag", len(name.encode()))
        require_within("branches and tags of a table", len(draft.refs) + 1)
    if id not in draft.snapshots:
        raise refused(f"Cannot set {name} to unknown snapshot: {id}")
    if name == MAIN_REF:
        if value["type"] != "branch":
            raise refused(f"Cannot set {name} to a tag, it must be a branch")
        draft.current_snapshot_id = id
        draft.log_entries.append(LogEntry(draft.added_snapshots.get(id, draft.last_updated_ms), id))
    draft.set_ref(Ref(name, id, encode(value), 0, 0))
    draft.record("set-snapshot-ref", (name, id))


def read_ref(data: Json) -> Json:
    """Return a branch or tag in the form in which table metadata stores it.

    Raises:
        BadRequestError: the type is unknown, or a retention value is not allowed for the type or is not above 0.
    """
    ref: Json = {"snapshot-id": get_long(data, "snapshot-id"), "type": get_text(data, "type").lower()}
    if ref["type"] not in ("branch", "tag"):
        raise invalid(f"Invalid snapshot ref type: {data['type']}")
    keep, snapshot_age = find_int(data, "min-snapshots-to-keep"), find_long(data, "max-snapshot-age-ms")
    if ref["type"] == "tag" and keep is not None:
        raise invalid("Tags do not support setting minSnapshotsToKeep")
    if ref["type"] == "tag" and snapshot_age is not None:
        raise invalid("Tags do not support setting maxSnapshotAgeMs")
    for name, value in zip(_REF_FIELDS, (keep, snapshot_age, find_long(data, "max-ref-age-ms")), strict=True):
        if value is not None and value <= 0:
            raise invalid(f"{_REF_FIELDS[name]}: {value}")
        if value is not None:
            ref[name] = value
    return ref


def ref_fields(ref: Json) -> tuple[Any, ...]:
    """Return the values that are equal for equal branches or tags: snapshot id, type and retention."""
    return ref["snapshot-id"], ref["type"].lower(), *(ref.get(name) for name in _REF_FIELDS)


def remove_snapshot_ref(draft: TableDraft, update: Json) -> None:
    """Apply the update `remove-snapshot-ref` to a draft."""
    _remove_ref(draft, get_text(update, "ref-name"))


def remove_snapshots(draft: TableDraft, update: Json) -> None:
    """Apply the update `remove-snapshots` to a draft."""
    found = [id for id in dict.fromkeys(get_longs(update, "snapshot-ids")) if id in draft.snapshots]
    if not found:
        return
    for id in found:
        draft.check_time()
        draft.snapshots.remove(id)
        draft.added_snapshots.pop(id, None)
        _remove_statistics(draft, draft.statistics, id, "remove-statistics")
        _remove_statistics(draft, draft.partition_statistics, id, "remove-partition-statistics")
    draft.record("remove-snapshots", found)
    for id in found:
        for name in draft.refs_of(id):
            _remove_ref(draft, name)


def set_statistics(draft: TableDraft, update: Json) -> None:
    """Apply the update `set-statistics` to a draft."""
    file = get_object(update, "statistics")
    check_statistics(file)
    _set_statistics(draft, draft.statistics, file, "set-statistics")


def remove_statistics(draft: TableDraft, update: Json) -> None:
    """Apply the update `remove-statistics` to a draft."""
    _remove_statistics(draft, draft.statistics, get_long(update, "snapshot-id"), "remove-statistics")


def set_partition_statistics(draft: TableDraft, update: Json) -> None:
    """Apply the update `set-partition-statistics` to a draft."""
    file = get_object(update, "partition-statistics")
    check_partition_statistics(file)
    _set_statistics(draft, draft.partition_statistics, file, "set-partition-statistics")


def remove_partition_statistics(draft: TableDraft, update: Json) -> None:
    """Apply the update `remove-partition-statistics` to a draft."""
    id = get_long(update, "snapshot-id")
    _remove_statistics(draft, draft.partition_statistics, id, "remove-partition-statistics")


def check_statistics(file: Json) -> None:
    """Check the fields of a statistics file that every reader needs (Iceberg's `StatisticsFileParser`).

    Raises:
        BadRequestError: a field is missing or malformed.
    """
    check_partition_statistics(file)
    get_long(file, "file-footer-size-in-bytes")
    for blob in get_objects(file, "blob-metadata"):
        get_text(blob, "type")
        get_long(blob, "snapshot-id")
        get_long(blob, "sequence-number")
        get_ints(blob, "fields")
        if "properties" in blob:
            get_text_map(blob, "properties")


def check_partition_statistics(file: Json) -> None:
    """Check the fields of a partition statistics file that every reader needs.

    Raises:
        BadRequestError: a field is missing or malformed.
    """
    get_long(file, "snapshot-id")
    get_text(file, "statistics-path")
    get_long(file, "file-size-in-bytes")


def _set_statistics(draft: TableDraft, pieces: IndexedPieces, file: Json, action: str) -> None:
    id = get_long(file, "snapshot-id")
    pieces.remove(id)
    pieces.add(id, encode(file), draft.take_order())
    draft.record(action, id)


def _remove_statistics(draft: TableDraft, pieces: IndexedPieces, id: int, action: str) -> None:
    if id in pieces:
        pieces.remove(id)
        draft.record(action, id)


def _remove_ref(draft: TableDraft, name: str) -> None:
    if name == MAIN_REF:
        draft.current_snapshot_id = None
    if draft.remove_ref(name):
        draft.record("remove-snapshot-ref", name)


def _assign_rows(draft: TableDraft, snapshot: Json) -> None:
    first_row_id = snapshot.get("first-row-id")
    if first_row_id is None:  # perhaps the table was upgraded to version 3 since the client loaded it
        raise _stale("Cannot add a snapshot: first-row-id is null")
    if first_row_id < draft.next_row_id:
        raise _stale(
            f"Cannot add a snapshot, first-row-id is behind table next-row-id: {first_row_id} < "
            f"{draft.next_row_id}"
        )
    draft.next_row_id += get_long(snapshot, "added-rows")


def _stale(message: str) -> CommitFailedError:
    """Return the error for a request that is based on an older state of the table.

    Clients that receive this error retry the request on the current state.
    """
    return CommitFailedError(f"Validation failed, please retry: {message}")


def _summarize(draft: TableDraft, snapshot: Json) -> None:
    summary = snapshot.get("summary") or {}
    counts = {
        name: value for name, value in summary.items() if name.startswith(("added-", "deleted-", "removed-"))
    }
    operation = summary.get("operation", "")
    draft.summary_of_snapshot = {
        "snapshot-id": str(snapshot["snapshot-id"]),
        "operation": operation,
        **counts,
        **client_fields(summary),
    }
