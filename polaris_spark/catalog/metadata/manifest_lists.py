"""Manifest lists as Avro files (specification: https://iceberg.apache.org/spec/#manifest-lists).

Records are read with the schema that they were written with, and fields are told by their Iceberg field ids: writers
name some of them differently. Nothing of a record is lost when it moves to another list, or it is not moved.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import fastavro

from polaris_spark.catalog.metadata.texts import Json
from polaris_spark.errors import BadRequestError

PATH = 500
SPEC_ID = 502
ADDED_SNAPSHOT_ID = 503
EXISTING_FILES = 505
DELETED_FILES = 506
ADDED_ROWS = 512
EXISTING_ROWS = 513
SEQUENCE_NUMBER = 515
MIN_SEQUENCE_NUMBER = 516
CONTENT = 517
FIRST_ROW_ID = 520

DATA_CONTENT = 0
"""Value of `CONTENT` of manifests of data files; those of version 1 have none."""

Manifest = dict[int | str, Any]
"""One record: values by Iceberg field id, or by name where a field has none. Absent fields are null ones."""

_DICT_BYTES = 6
"""How much larger parsed records are than their file, about."""


class ManifestList(NamedTuple):
    """A manifest list that was read, or is to be written."""

    manifests: tuple[Manifest, ...]
    schema: Json
    """The Avro schema of its records."""
    metadata: dict[str, str]
    """The file's metadata without Avro's own."""
    codec: str
    """Avro's name of the compression."""
    weight: int
    """About how many bytes of memory are held by it alone."""

    @property
    def fields(self) -> dict[int | str, str]:
        """The names of the records' fields by their Iceberg field ids."""
        return {field.get("field-id", field["name"]): field["name"] for field in self.schema["fields"]}

    @property
    def format_version(self) -> int:
        """The table format version that the records are written for."""
        fields = self.fields
        return 3 if FIRST_ROW_ID in fields else 2 if SEQUENCE_NUMBER in fields else 1


def parse(data: bytes) -> ManifestList:
    """A manifest list from its file's content.

    Raises:
        BadRequestError: it is not such a file, or is encrypted.
    """
    try:
        reader = fastavro.reader(io.BytesIO(data))
        schema = reader.writer_schema
        if not isinstance(schema, dict) or schema.get("type") != "record":
            raise ValueError("its records are no Avro records")
        names = [(field["name"], field.get("field-id", field["name"])) for field in schema["fields"]]
        records = tuple(
            {key: value for name, key in names if (value := record[name]) is not None}
            for record in cast("Iterator[Json]", reader)
        )
        metadata = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
    except Exception as error:  # whatever a decoder raises on bytes that are something else
        raise BadRequestError(f"not a manifest list: {error}") from error
    if not all(PATH in record for record in records):
        raise BadRequestError("not a manifest list: a record has no manifest_path")
    return ManifestList(records, schema, metadata, reader.codec, _DICT_BYTES * len(data))


def encode(like: ManifestList, manifests: Sequence[Manifest], metadata: dict[str, str], sync: bytes) -> bytes:
    """The content of a file with these records, in schema and compression of another list.

    Args:
        sync: 16 bytes that separate the blocks of the file.
    Raises:
        BadRequestError: a record has a field that the schema has not, or lacks one that it must have.
    """
    fields = like.fields
    records = []
    for manifest in manifests:
        unknown = manifest.keys() - fields.keys()
        if unknown:
            raise BadRequestError(f"the list has no fields {sorted(map(str, unknown))} of {manifest[PATH]}")
        records.append({name: manifest.get(key) for key, name in fields.items()})
    out = io.BytesIO()
    try:
        fastavro.writer(
            out, like.schema, records, codec=like.codec, metadata=metadata, sync_marker=sync, strict=True
        )
    except Exception as error:  # a null or type that the schema does not allow: TypeError, ValueError, ...
        raise BadRequestError(f"the manifests do not fit the list's schema: {error}") from error
    return out.getvalue()
