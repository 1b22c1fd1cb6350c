"""Reader of Iceberg's Avro files. It reads block by block and decodes only the requested fields of the records.

Fields are identified by their Iceberg field ids, because writers name some fields differently. fastavro decodes the
records. pyiceberg's reader is not used: it reads whole manifests, has only the fields of format version 2, and cannot
skip structs or maps.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, BinaryIO, cast

import fastavro

from polaris_spark.catalog.files.files import Files
from polaris_spark.catalog.files.memory import holding
from polaris_spark.catalog.manifests.avro_blocks import AvroBlocks
from polaris_spark.catalog.manifests.manifest_lists import avro_long
from polaris_spark.catalog.metadata.texts import Json
from polaris_spark.errors import PolarisError, UnreadableFileError

_COPIES = 9
_RECORD = 1_000
"""Memory used while a block is decoded, in bytes: `_COPIES` for each byte of the block, plus `_RECORD` for each record.
Both are upper bounds for the fields that jobs read."""

Nested = Mapping[int, Collection[int] | None]
"""Fields to read from a record. Each key is the id of a field. If that field is itself a record, the value holds the
ids of the inner fields to read; None means all of them."""


class AvroFile:
    """An open Avro file of records. The records can be read only once."""

    def __init__(self, stream: BinaryIO, location: str) -> None:
        """
        Raises:
            UnreadableFileError: the file is not an Avro file of records.
        """
        self._location = location
        try:
            self._blocks = AvroBlocks(stream)
            self._schema = plain_schema(self._blocks.schema)
            self.fields = _by_id(self._schema)
        except Exception as error:  # decoders raise many types on bytes that are not Avro
            raise self._damaged(error) from error

    fields: dict[int, Json]
    """Fields of the records, by Iceberg field id."""

    @cached_property
    def metadata(self) -> dict[str, str]:
        """Key-value metadata in the header of the file."""
        return self._blocks.metadata

    def records(self, wanted: Nested) -> Iterator[dict[int, Any]]:
        """Yield each record as a dict of values by Iceberg field id; nested records have the same form.

        Absent fields are left out, null fields are None. Values are not converted: dates, times, decimals and UUIDs
        stay the numbers and bytes that the file holds.

        Args:
            wanted: the fields to read.
        Raises:
            UnreadableFileError: the file is damaged.
        """
        chosen = [self.fields[id] for id in wanted if id in self.fields]
        schema = {**self._schema, "fields": [_pruned(f, wanted[f["field-id"]]) for f in chosen]}
        names = [_Name(field) for field in schema["fields"]]
        try:
            # The records of a block are encoded one after another, like the items of an Avro array.
            written = fastavro.parse_schema({"type": "array", "items": self._schema})
            asked = fastavro.parse_schema({"type": "array", "items": schema})
            for count, data in self._blocks:
                with holding(_COPIES * len(data) + _RECORD * count):
                    body = io.BytesIO(avro_long(count) + data + avro_long(0))
                    found = cast("list[Json]", fastavro.schemaless_reader(body, written, asked))
                    if body.read(1):
                        raise ValueError("a block contains more bytes after its last record")
                    yield from [{name.id: name.of(record) for name in names} for record in found]
        except (GeneratorExit, PolarisError):
            raise
        except Exception as error:  # as above
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> UnreadableFileError:
        why = str(error) or type(error).__name__
        return UnreadableFileError(f"{self._location!r} is damaged: {why}", location=self._location)


@contextmanager
def open_avro(files: Files, location: str) -> Iterator[AvroFile]:
    """Open an Avro file.

    Raises:
        MissingFileError: the file does not exist.
        UnreadableFileError: the file cannot be read, or is not an Avro file of records.
    """
    with files.stream(location) as stream:
        yield AvroFile(stream, location)


class _Name:
    """A field to read. Its method `of` returns the value of the field in a decoded record. Maps become lists of (key,
    value) pairs, and nested records become dicts from field id to value."""

    __slots__ = ("_inner", "_is_map", "_name", "id")

    def __init__(self, field: Json) -> None:
        self.id = int(field["field-id"])
        self._name: str = field["name"]
        inner = _record(field)
        self._inner = None if inner is None else [_Name(f) for f in inner["fields"] if "field-id" in f]
        self._is_map = _is_map(field)

    def of(self, record: Json) -> Any:
        value = record[self._name]
        if value is None:
            return None
        if self._is_map:
            return [(item["key"], item["value"]) for item in value]
        if self._inner is not None:
            return {name.id: name.of(value) for name in self._inner}
        return value


def plain_schema(schema: Any) -> Any:
    """Return a schema without logical types, because Python's types cannot hold all values of some logical types."""
    if isinstance(schema, dict):
        return {
            k: plain_schema(v) for k, v in schema.items() if k != "logicalType" and not k.startswith("__")
        } | ({"is-map": True} if schema.get("logicalType") == "map" else {})
    return [plain_schema(one) for one in schema] if isinstance(schema, list) else schema


def _by_id(schema: Json) -> dict[int, Json]:
    return {field["field-id"]: field for field in schema["fields"] if "field-id" in field}


def _pruned(field: Json, wanted: Collection[int] | None) -> Json:
    """Return a copy of a field of the schema. If the field is a record, the copy has only those of its inner fields
    whose ids are in `wanted`; all of them if `wanted` is None."""
    record = _record(field)
    if wanted is None or record is None:
        return field
    kept = {**record, "fields": [f for f in record["fields"] if f.get("field-id") in wanted]}
    return {**field, "type": kept if field["type"] is record else ["null", kept]}


def _choices(field: Json) -> list[Any]:
    type = field["type"]
    return type if isinstance(type, list) else [type]


def _record(field: Json) -> Json | None:
    """Return the record type of a field. If the type of the field is a union, return the record type in the union.
    Return None if there is no record type."""
    return next(
        (one for one in _choices(field) if isinstance(one, dict) and one.get("type") == "record"), None
    )


def _is_map(field: Json) -> bool:
    """Whether a field is a map written as an array of pairs; Iceberg does this if the keys are not strings."""
    return any(isinstance(one, dict) and one.get("is-map") for one in _choices(field))
