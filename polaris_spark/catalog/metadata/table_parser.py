"""Parser of the metadata files of tables, for registration and import.

The drafts that it returns keep every field, including fields unknown to this release.

The checks are the same as in Iceberg's `TableMetadataParser` and `TableMetadata`, because Java clients cannot load
metadata that these classes refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import msgspec

from polaris_spark.catalog.metadata.bounds import require_schema_within
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.overflow import MAIN_REF
from polaris_spark.catalog.metadata.pieces import IndexedPieces, NumberedPieces
from polaris_spark.catalog.metadata.rows import NO_OBJECTS, SUPPORTED_FORMAT_VERSION, Ref
from polaris_spark.catalog.metadata.schemas import SchemaIndex
from polaris_spark.catalog.metadata.snapshot_history import CLOCK_TOLERANCE_MS, read_entries
from polaris_spark.catalog.metadata.table_snapshots import (
    check_partition_statistics,
    check_snapshot,
    check_statistics,
    read_ref,
)
from polaris_spark.catalog.metadata.table_updates import strip_trailing_slash
from polaris_spark.catalog.metadata.texts import (
    Json,
    compact,
    decode,
    encode,
    find_int,
    find_long,
    find_text,
    get_any,
    get_int,
    get_long,
    get_object,
    get_text,
    get_text_map,
    invalid,
    refused,
)
from polaris_spark.catalog.metadata.transforms import (
    FIRST_PARTITION_ID,
    last_field_id,
    read_sort_order,
    read_spec,
    with_field_ids,
)

Raws = Mapping[str, msgspec.Raw]
"""The fields of a JSON object by name. The values are JSON texts that are not decoded yet."""

_SCALARS = (
    "format-version",
    "table-uuid",
    "location",
    "last-sequence-number",
    "last-updated-ms",
    "last-column-id",
    "current-schema-id",
    "default-spec-id",
    "last-partition-id",
    "default-sort-order-id",
    "current-snapshot-id",
    "next-row-id",
    "properties",
    "refs",
)
_ARRAYS = (
    "schemas",
    "partition-specs",
    "sort-orders",
    "snapshots",
    "statistics",
    "partition-statistics",
    "snapshot-log",
    "metadata-log",
    "encryption-keys",
)
_VERSION_1 = ("schema", "partition-spec")
_KNOWN = frozenset((*_SCALARS, *_ARRAYS, *_VERSION_1))

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_any = msgspec.json.Decoder().decode


def parse_table(text: bytes | str, *, now_ms: int) -> TableDraft:
    """Return the draft of the table that a metadata file describes. The draft keeps the times and logs of the file.

    Args:
        text: the file's content, decompressed.
        now_ms: the time of later updates of the draft, milliseconds since 1970 UTC.
    Raises:
        BadRequestError: the text is not valid table metadata of a supported format version.
    """
    fields = read_fields(text)
    scalars = {name: _decode_any(fields[name]) for name in _SCALARS if name in fields}
    version = get_int(scalars, "format-version")
    if not 1 <= version <= SUPPORTED_FORMAT_VERSION:
        raise invalid(f"Cannot read unsupported version {version}")
    draft = TableDraft(None, NO_OBJECTS, now_ms=now_ms)
    draft.origin, draft.format_version = "register", version
    _read_scalars(draft, scalars)
    _read_schemas(draft, fields, scalars)
    _read_specs(draft, fields, scalars)
    _read_sort_orders(draft, fields, scalars)
    _read_snapshots(draft, fields, scalars)
    _read_statistics(draft.statistics, fields, "statistics", draft, check_statistics)
    partitions = draft.partition_statistics
    _read_statistics(partitions, fields, "partition-statistics", draft, check_partition_statistics)
    _read_logs(draft, fields)
    for key in read_items(fields, "encryption-keys"):
        draft.own_encryption_keys().setdefault(get_text(decode(key), "key-id"), []).append(compact(key))
    draft.extra = unknown_fields(fields, _KNOWN)
    return draft


def read_fields(text: bytes | str) -> Raws:
    """Return the top-level fields of a metadata file by name, with values that are not decoded yet.

    Raises:
        BadRequestError: the text is not a JSON object.
    """
    try:
        return _decode_fields(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise invalid(f"Cannot parse metadata: {error}") from error


def read_items(fields: Raws, name: str) -> list[msgspec.Raw]:
    """Return the items of an array field without decoding the items; an empty list if the field is absent or null.

    Raises:
        BadRequestError: the field is not an array.
    """
    if name not in fields or bytes(fields[name]) == b"null":
        return []
    try:
        return _decode_items(fields[name])
    except msgspec.MsgspecError as error:
        raise invalid(f"Cannot parse {name} from non-array: {error}") from error


def unknown_fields(fields: Raws, known: frozenset[str]) -> bytes:
    """Return the fields that are not in `known`, as JSON text to append after the known fields of the object."""
    return b"".join(
        [b"," + encode(name) + b":" + compact(fields[name]) for name in fields if name not in known]
    )


def _read_scalars(draft: TableDraft, scalars: Json) -> None:
    draft.uuid = find_text(scalars, "table-uuid") or ""
    location = find_text(scalars, "location")
    draft.location = strip_trailing_slash(location) if location else ""
    draft.last_updated_ms = get_long(scalars, "last-updated-ms")
    draft.last_column_id = get_int(scalars, "last-column-id")
    if draft.format_version > 1:
        draft.last_sequence_number = get_long(scalars, "last-sequence-number")
    if draft.format_version >= 3:
        draft.next_row_id = get_long(scalars, "next-row-id")
    if scalars.get("properties") is not None:
        draft.own_properties().update(get_text_map(scalars, "properties"))


def _read_schemas(draft: TableDraft, fields: Raws, scalars: Json) -> None:
    texts = _required_items(draft, fields, "schemas")
    if texts is None:
        texts = [get_any(fields, "schema")]
        draft.current_schema_id = find_int(decode(texts[0]), "schema-id") or 0
    else:
        draft.current_schema_id = get_int(scalars, "current-schema-id")
    for text in texts:
        schema = decode(text)
        require_schema_within(schema)
        index = SchemaIndex(schema)
        _add(draft.schemas, index.schema_id, schema, "schema-id", text)
    if draft.current_schema_id not in draft.schemas:
        raise invalid(f"Cannot find schema with current-schema-id={draft.current_schema_id} from schemas")


def _read_specs(draft: TableDraft, fields: Raws, scalars: Json) -> None:
    texts = _required_items(draft, fields, "partition-specs")
    if texts is None:
        texts = [msgspec.Raw(b'{"spec-id":0,"fields":' + bytes(get_any(fields, "partition-spec")) + b"}")]
    else:
        draft.default_spec_id = get_int(scalars, "default-spec-id")
    last = FIRST_PARTITION_ID - 1
    for text in texts:
        read = read_spec(decode(text))
        spec = with_field_ids(read, FIRST_PARTITION_ID - 1)
        last = max(last, last_field_id(spec))
        draft.specs.add(get_int(spec, "spec-id"), spec, compact(text) if spec == decode(text) else None)
    last_id = find_int(scalars, "last-partition-id")
    if last_id is None and draft.format_version > 1:
        raise invalid(f"last-partition-id must exist in format v{draft.format_version}")
    draft.last_partition_id = last if last_id is None else last_id


def _read_sort_orders(draft: TableDraft, fields: Raws, scalars: Json) -> None:
    texts = _required_items(draft, fields, "sort-orders")
    if texts is None:
        texts = [msgspec.Raw(b'{"order-id":0,"fields":[]}')]
    else:
        draft.default_sort_order_id = get_int(scalars, "default-sort-order-id")
    for text in texts:
        order = decode(text)
        draft.sort_orders.add(get_int(read_sort_order(order), "order-id"), order, compact(text))


def _read_snapshots(draft: TableDraft, fields: Raws, scalars: Json) -> None:
    for text in read_items(fields, "snapshots"):
        snapshot = decode(text)
        check_snapshot(snapshot)
        id, number = snapshot["snapshot-id"], snapshot.get("sequence-number") or 0
        if number > draft.last_sequence_number:
            raise refused(
                f"Invalid snapshot with sequence number {number} greater than last sequence number "
                f"{draft.last_sequence_number}"
            )
        if id in draft.snapshots:
            raise invalid(f"Multiple entries with same key: {id}")
        draft.snapshots.add(id, compact(text), draft.take_order())
    current = find_long(scalars, "current-snapshot-id")
    draft.current_snapshot_id = None if current == -1 else current
    if scalars.get("refs") is not None:
        get_object(scalars, "refs")
        _read_refs(draft, _decode_fields(fields["refs"]))
    elif draft.current_snapshot_id is not None:
        main = b'{"snapshot-id":%d,"type":"branch"}' % draft.current_snapshot_id
        draft.set_ref(Ref(MAIN_REF, draft.current_snapshot_id, main, 0, 0))
    _check_refs(draft)


def _read_refs(draft: TableDraft, refs: Raws) -> None:
    for name, text in refs.items():
        ref = decode(text)
        draft.set_ref(Ref(name, read_ref(ref)["snapshot-id"], compact(text), 0, 0))


def _check_refs(draft: TableDraft) -> None:
    for ref in draft.refs.values():
        if ref.snapshot_id not in draft.snapshots:
            raise invalid(f"Snapshot for reference {ref.name} does not exist in the existing snapshots list")
    main, current = draft.refs.get(MAIN_REF), draft.current_snapshot_id
    if current is None and main is not None:
        raise invalid(f"Current snapshot is not set, but main branch exists: {main.snapshot_id}")
    if main is not None and main.snapshot_id != current:
        raise invalid(f"Current snapshot ID does not match main branch ({current} != {main.snapshot_id})")
    if current is not None and current not in draft.snapshots:
        raise invalid("Invalid table metadata: Cannot find current version")


def _read_statistics(
    pieces: IndexedPieces, fields: Raws, name: str, draft: TableDraft, check: Callable[[Json], None]
) -> None:
    for text in read_items(fields, name):
        file = decode(text)
        check(file)
        pieces.add(file["snapshot-id"], compact(text), draft.take_order())


def _read_logs(draft: TableDraft, fields: Raws) -> None:
    log, files = read_items(fields, "snapshot-log"), read_items(fields, "metadata-log")
    try:
        entries = read_entries(b",".join([bytes(item) for item in log]))
    except msgspec.MsgspecError as error:
        raise invalid(f"Cannot parse snapshot-log: {error}") from error
    _check_order(draft, [entry.timestamp_ms for entry in entries], "last snapshot log entry")
    times = [get_long(item, "timestamp-ms") for item in map(decode, files) if get_text(item, "metadata-file")]
    _check_order(draft, times, "latest metadata log entry timestamp")
    draft.snapshot_log_gaps = any(entry.snapshot_id not in draft.snapshots for entry in entries)
    draft.import_logs([compact(item) for item in log], [compact(item) for item in files])


def _check_order(draft: TableDraft, times: list[int], what: str) -> None:
    for earlier, later in pairwise(times):
        if later - earlier < -CLOCK_TOLERANCE_MS:
            raise invalid(f"Expected sorted log entries: {later} follows {earlier}")
    if times and draft.last_updated_ms - times[-1] < -CLOCK_TOLERANCE_MS:
        raise invalid(f"Invalid update timestamp {draft.last_updated_ms}: before {what} at {times[-1]}")


def _required_items(draft: TableDraft, fields: Raws, name: str) -> list[msgspec.Raw] | None:
    """Return the items of an array field without decoding the items.

    Return None if the field is absent, which only format version 1 allows.

    Raises:
        BadRequestError: the field is absent in a later format version, or is not an array.
    """
    if name in fields:
        return read_items(fields, name)
    if draft.format_version > 1:
        raise invalid(f"{name} must exist in format v{draft.format_version}")
    return None


def _add(pieces: NumberedPieces, id: int, value: Json, id_field: str, text: msgspec.Raw) -> None:
    if value.get(id_field) is None:
        pieces.add(id, {**value, id_field: id})
    else:
        pieces.add(id, value, compact(text))
