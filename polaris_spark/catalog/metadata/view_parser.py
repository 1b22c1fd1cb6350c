"""Parser of the metadata files of views, for registration and import.

The checks are the same as in Iceberg's `ViewMetadataParser`.
"""

from __future__ import annotations

import msgspec

from polaris_spark.catalog.metadata.bounds import require_schema_within
from polaris_spark.catalog.metadata.rows import NO_OBJECTS, VIEW_FORMAT_VERSION
from polaris_spark.catalog.metadata.schemas import SchemaIndex
from polaris_spark.catalog.metadata.table_parser import read_fields, read_items, unknown_fields
from polaris_spark.catalog.metadata.texts import (
    compact,
    decode,
    get_any,
    get_int,
    get_long,
    get_text,
    get_text_map,
    invalid,
)
from polaris_spark.catalog.metadata.view_draft import ViewDraft
from polaris_spark.catalog.metadata.view_updates import read_version

_SCALARS = ("view-uuid", "format-version", "location", "current-version-id", "properties")
_ARRAYS = ("schemas", "versions", "version-log")

_decode = msgspec.json.Decoder().decode


def parse_view(text: bytes | str, *, now_ms: int) -> ViewDraft:
    """Return the draft of the view that a metadata file describes.

    Args:
        text: the file's content, decompressed.
        now_ms: the time of later updates of the draft, milliseconds since 1970 UTC.
    Raises:
        BadRequestError: the text is not valid view metadata of a supported format version.
    """
    fields = read_fields(text)
    scalars = {name: _decode(fields[name]) for name in _SCALARS if name in fields}
    draft = ViewDraft(None, NO_OBJECTS, now_ms=now_ms)
    draft.origin = "register"
    draft.uuid, draft.location = get_text(scalars, "view-uuid"), get_text(scalars, "location")
    draft.format_version = get_int(scalars, "format-version")
    if not 1 <= draft.format_version <= VIEW_FORMAT_VERSION:
        raise invalid(f"Unsupported format version: {draft.format_version}")
    draft.current_version_id = get_int(scalars, "current-version-id")
    if scalars.get("properties") is not None:
        draft.own_properties().update(get_text_map(scalars, "properties"))
    for name in _ARRAYS:
        get_any(fields, name)  # for `read_items`, a missing array is empty
    for item in read_items(fields, "schemas"):
        schema = decode(item)
        require_schema_within(schema)
        id = SchemaIndex(schema).schema_id
        draft.schemas.add(id, {**schema, "schema-id": id}, compact(item) if "schema-id" in schema else None)
    for item in read_items(fields, "versions"):
        version = read_version(decode(item))
        draft.versions.add(version["version-id"], version, compact(item))
    for item in read_items(fields, "version-log"):
        entry = decode(item)
        get_long(entry, "timestamp-ms")
        get_int(entry, "version-id")
        draft.imported_log.append(compact(item))
    draft.extra = unknown_fields(fields, frozenset((*_SCALARS, *_ARRAYS)))
    return draft
