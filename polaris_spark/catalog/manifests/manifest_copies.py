"""Copies of manifests for another snapshot.

A snapshot that is appended to another state of its table becomes a new snapshot with a new id, because the id of a
snapshot identifies one content of the table. The entries of a manifest name the snapshot that added their files. So the
manifest is copied, too, with the new snapshot's id. Data files are shared.
"""

from __future__ import annotations

import io
from typing import Any, Final

import fastavro

from polaris_spark.catalog.manifests.avro_blocks import AvroBlocks
from polaris_spark.catalog.manifests.avro_files import plain_schema
from polaris_spark.catalog.manifests.manifest_lists import Block, avro_long
from polaris_spark.catalog.metadata.texts import Json
from polaris_spark.errors import BadRequestError

SOURCE_SNAPSHOT: Final = "source-snapshot-id"
"""Field of a snapshot's summary: the id of the original (Iceberg's `SnapshotSummary.SOURCE_SNAPSHOT_ID_PROP`)."""

_SNAPSHOT_ID = 1
"""Field id of `snapshot_id` in a manifest entry (https://iceberg.apache.org/spec/#manifest-entry-fields)."""


def copy_of_manifest(content: bytes, snapshot_id: int, sync: bytes) -> bytes:
    """Return a copy of a manifest's content in which all entries belong to another snapshot.

    Args:
        content: content of the manifest's file.
        sync: 16 bytes that separate the blocks of the new file.
    Raises:
        BadRequestError: the content is not a manifest.
    """
    try:
        blocks = AvroBlocks(io.BytesIO(content))
        schema = blocks.schema
        name = next(field["name"] for field in schema["fields"] if field.get("field-id") == _SNAPSHOT_ID)
        codec = blocks.codec if blocks.codec in ("null", "deflate") else "deflate"
        own = {key: value for key, value in blocks.metadata.items() if not key.startswith("avro.")}
        parsed = fastavro.parse_schema({"type": "array", "items": plain_schema(schema)})
        out = io.BytesIO()
        fastavro.writer(out, schema, [], codec=codec, metadata=own, sync_marker=sync)
        for count, data in blocks:
            body = io.BytesIO(avro_long(count) + data + avro_long(0))
            entries: Any = fastavro.schemaless_reader(body, parsed, None)
            changed = io.BytesIO()
            fastavro.schemaless_writer(
                changed, parsed, [{**entry, name: snapshot_id} for entry in entries], strict=True
            )
            packed = Block(count, changed.getvalue()[len(avro_long(count)) : -1]).packed(codec)
            out.write(avro_long(count) + avro_long(len(packed)) + packed + sync)
    except Exception as error:  # decoders raise errors of many types for bytes that are not Avro
        raise BadRequestError(f"the file is not a manifest: {error}") from error
    return out.getvalue()


def source_of(snapshot: Json) -> int:
    """Return the id of the original of a copied snapshot; its own id if it is not a copy."""
    source = str((snapshot.get("summary") or {}).get(SOURCE_SNAPSHOT, ""))
    return int(source) if source.isascii() and source.isdigit() else int(snapshot["snapshot-id"])
