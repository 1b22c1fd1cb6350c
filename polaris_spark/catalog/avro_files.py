"""Avro files of Iceberg's, read as they come: block by block, and of their records only the fields asked for.

Fields are told by their Iceberg field ids, because writers name some of them differently. pyiceberg reads manifests
with the fields of format version 2 alone, whole, and has no way to leave structs or maps out. Decoding is fastavro's.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, BinaryIO, cast

import fastavro

from polaris_spark.catalog.files import Files
from polaris_spark.catalog.memory import holding
from polaris_spark.catalog.metadata.avro_blocks import AvroBlocks
from polaris_spark.catalog.metadata.manifest_lists import avro_long
from polaris_spark.catalog.metadata.texts import Json
from polaris_spark.errors import PolarisError, UnreadableFileError

_COPIES = 9
_RECORD = 1_000
"""Bytes of memory for each byte of a block and for each record, while the block is decoded: upper bounds for the fields
that jobs ask for."""

Nested = Mapping[int, Collection[int] | None]
"""Field ids of a record; of one that is a record itself, the ids of its own fields. None stands for all."""


class AvroFile:
    """An open file of records. `records` can be had once."""

    def __init__(self, stream: BinaryIO, location: str) -> None:
        """
        Raises:
            UnreadableFileError: it is no Avro file of records.
        """
        self._location = location
        try:
            self._blocks = AvroBlocks(stream)
            self._schema = _plain(self._blocks.schema)
            self.fields = _by_id(self._schema)
        except Exception as error:  # whatever a decoder raises on bytes that are something else
            raise self._damaged(error) from error

    fields: dict[int, Json]
    """The records' fields by Iceberg field id."""

    @cached_property
    def metadata(self) -> dict[str, str]:
        """What the file says of itself."""
        return self._blocks.metadata

    def records(self, wanted: Nested) -> Iterator[dict[int, Any]]:
        """Records as values by Iceberg field id; nested records likewise. Absent fields are left out, null ones None.

        Values are those of the file: dates, times, decimals and UUIDs stay numbers and bytes.

        Args:
            wanted: which fields.
        Raises:
            UnreadableFileError: the file is damaged.
        """
        chosen = [self.fields[id] for id in wanted if id in self.fields]
        schema = {**self._schema, "fields": [_pruned(f, wanted[f["field-id"]]) for f in chosen]}
        names = [_Name(field) for field in schema["fields"]]
        try:
            # A block's records follow each other as the items of an array do.
            written = fastavro.parse_schema({"type": "array", "items": self._schema})
            asked = fastavro.parse_schema({"type": "array", "items": schema})
            for count, data in self._blocks:
                with holding(_COPIES * len(data) + _RECORD * count):
                    body = io.BytesIO(avro_long(count) + data + avro_long(0))
                    found = cast("list[Json]", fastavro.schemaless_reader(body, written, asked))
                    if body.read(1):
                        raise ValueError("its records are something else")
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
    """An Avro file by its location.

    Raises:
        MissingFileError: there is none.
        UnreadableFileError: it cannot be read, or is something else.
    """
    with files.stream(location) as stream:
        yield AvroFile(stream, location)


class _Name:
    """Where a field's value is, and what becomes of it."""

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


def _plain(schema: Any) -> Any:
    """A schema without logical types, some of whose values Python's types cannot hold."""
    if isinstance(schema, dict):
        return {k: _plain(v) for k, v in schema.items() if k != "logicalType" and not k.startswith("__")} | (
            {"is-map": True} if schema.get("logicalType") == "map" else {}
        )
    return [_plain(one) for one in schema] if isinstance(schema, list) else schema


def _by_id(schema: Json) -> dict[int, Json]:
    return {field["field-id"]: field for field in schema["fields"] if "field-id" in field}


def _pruned(field: Json, wanted: Collection[int] | None) -> Json:
    """A field, itself a record, with those of its own fields alone that are wanted."""
    record = _record(field)
    if wanted is None or record is None:
        return field
    kept = {**record, "fields": [f for f in record["fields"] if f.get("field-id") in wanted]}
    return {**field, "type": kept if field["type"] is record else ["null", kept]}


def _choices(field: Json) -> list[Any]:
    type = field["type"]
    return type if isinstance(type, list) else [type]


def _record(field: Json) -> Json | None:
    """The record type of a field that holds one, or may hold one."""
    return next(
        (one for one in _choices(field) if isinstance(one, dict) and one.get("type") == "record"), None
    )


def _is_map(field: Json) -> bool:
    """Whether a field holds pairs: Iceberg writes maps whose keys are no strings as arrays of them."""
    return any(isinstance(one, dict) and one.get("is-map") for one in _choices(field))
