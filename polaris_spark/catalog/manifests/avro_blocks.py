"""Reader of the blocks of Avro object container files. Clients choose these files, so the files can be malicious.

A block is decompressed only up to `MAX_BLOCK_BYTES`. A schema is refused if a few encoded bytes can decode to unlimited
data, because the decoder holds Python's global interpreter lock until it ends. Three kinds of schemas are refused:
those with an array whose items take no bytes, with a record that contains itself, or with a record that contains more
than `MAX_EMPTY_TYPES` records and nulls.
"""

from __future__ import annotations

import bz2
import contextlib
import lzma
import zlib
from collections.abc import Collection, Iterator
from importlib import import_module
from typing import Any, BinaryIO, Final, NamedTuple

import fastavro
import msgspec

MAX_BLOCK_BYTES: Final = 64 * 2**20
"""Maximum size of a block of an Avro file, in bytes, both before and after decompression. Common writers begin a new
block after less than 1 MiB."""

MAX_BLOCK_RECORDS: Final = 1_000_000
"""Maximum number of records in a block of an Avro file."""

MAX_EMPTY_TYPES: Final = 100
"""Maximum number of record types and zero-byte types (such as null) that one record type may contain. The type itself
and nested records count, because a record adds no bytes of its own. For comparison, the schema of a manifest has three
record types: an entry, its file, and the file's partition."""

_SYNC_BYTES: Final = 16
_MAGIC: Final = b"Obj\x01"
_HEADER: Final = fastavro.parse_schema(
    {
        "type": "record",
        "name": "Header",
        "fields": [
            {"name": "magic", "type": {"type": "fixed", "name": "magic", "size": len(_MAGIC)}},
            {"name": "meta", "type": {"type": "map", "values": "bytes"}},
            {"name": "sync", "type": {"type": "fixed", "name": "sync", "size": _SYNC_BYTES}},
        ],
    }
)
"""Avro schema of the header of an object container file (Avro specification, "Object Container Files")."""
_PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))


class AvroBlock(NamedTuple):
    """One decompressed block of an Avro file."""

    records: int
    """Number of records in the block."""
    data: bytes


class AvroBlocks:
    """Reader of an open Avro file: the fields of its header, and an iterator over its blocks."""

    def __init__(self, stream: BinaryIO) -> None:
        """Read the header of the file.

        Args:
            stream: an Avro file, positioned at its beginning.
        Raises:
            ValueError: the file does not begin like an Avro file, or its schema is refused.
            Exception: the header cannot be decoded. The type of the error depends on the decoder.
        """
        header: Any = fastavro.schemaless_reader(stream, _HEADER, None)
        if header["magic"] != _MAGIC:
            raise ValueError(
                f"the file begins with {header['magic']!r} instead of {_MAGIC!r}, so it is not an Avro file"
            )
        self.metadata: dict[str, str] = {key: value.decode() for key, value in header["meta"].items()}
        self.codec = self.metadata.get("avro.codec", "null")
        schema = _with_distinct_names(msgspec.json.decode(self.metadata["avro.schema"]), {})
        self.schema: Any = fastavro.parse_schema(schema, _write_hint=False, _ignore_default_error=True)
        self._sync: bytes = header["sync"]
        self._stream = stream
        _require_finite(self.schema)

    def __iter__(self) -> Iterator[AvroBlock]:
        """Yield the blocks. They can be read only once.

        Raises:
            ValueError: a block is malformed or too large, or its codec is not supported.
            Exception: a block cannot be decompressed. The type of the error depends on the codec.
        """
        while (first := self._stream.read(1)) != b"":
            count, size = self._long(first), self._long(self._stream.read(1))
            if not 0 <= size <= MAX_BLOCK_BYTES:
                raise ValueError(
                    f"the size of a block is {size} bytes; it must be from 0 to {MAX_BLOCK_BYTES}"
                )
            data = _decompressed(self.codec, self._stream.read(size))
            if self._stream.read(_SYNC_BYTES) != self._sync:
                raise ValueError("a block does not end with the file's sync marker")
            # Require at least one byte for each record: a block could claim any number of records of no bytes.
            most = min(len(data), MAX_BLOCK_RECORDS)
            if not 0 <= count <= most:
                raise ValueError(
                    f"a block of {len(data)} bytes claims to hold {count} records; a block of this size can hold "
                    f"from 0 to {most}"
                )
            yield AvroBlock(count, data)

    def _long(self, byte: bytes) -> int:
        number = shift = 0
        while True:
            if not byte or shift > 63:
                raise ValueError(
                    "the file ends in the middle of an encoded number, or a number has more than 64 bits"
                )
            number |= (byte[0] & 0x7F) << shift
            if byte[0] < 0x80:
                return number >> 1 ^ -(number & 1)
            shift += 7
            byte = self._stream.read(1)


def _decompressed(codec: str, data: bytes) -> bytes:
    """Return the decompressed content of a block.

    Raises:
        ValueError: the decompressed content is too large, or the codec is not supported.
        Exception: the block is damaged. The type of the error depends on the codec.
    """
    most = MAX_BLOCK_BYTES + 1
    if codec == "null":
        found = data
    elif codec == "deflate":
        found = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, most)
    elif codec == "bzip2":
        found = bz2.BZ2Decompressor().decompress(data, most)
    elif codec == "xz":
        found = lzma.LZMADecompressor().decompress(data, most)
    elif codec == "zstandard":
        found = _zstandard(data, most)
    elif codec == "snappy":
        found = _snappy(data[:-4])  # without the checksum
    else:
        raise ValueError(f"the file is compressed with the codec {codec!r}, which is not supported")
    if len(found) > MAX_BLOCK_BYTES:
        raise ValueError(f"a block has more than the maximum of {MAX_BLOCK_BYTES} bytes after decompression")
    return found


def _snappy(data: bytes) -> bytes:
    """Return the decompressed content of a raw Snappy block.

    The block begins with the decompressed size (Snappy's format description, section 1).
    """
    size = 0
    for position, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            break
    if size > MAX_BLOCK_BYTES:
        raise ValueError(f"a block has {size} bytes after decompression; the maximum is {MAX_BLOCK_BYTES}")
    return bytes(import_module("cramjam").snappy.decompress_raw(data))


def _zstandard(data: bytes, most: int) -> bytes:
    """Return the first `most` bytes, or all if there are fewer, of the decompressed content of a Zstandard block.

    This uses the first library that is installed among those that fastavro supports.
    """
    for library in ("compression.zstd", "backports.zstd"):
        with contextlib.suppress(ImportError):
            return bytes(import_module(library).ZstdDecompressor().decompress(data, most))
    return bytes(import_module("zstandard").ZstdDecompressor().stream_reader(data).read(most))


class _Shape(NamedTuple):
    """Properties of an Avro type from which a limit of the cost of decoding its values can be computed."""

    may_be_empty: bool
    """Whether a value of the type can be encoded in zero bytes."""
    empty_types: int
    """Number of records plus nulls (and other types encoded in zero bytes) that are decoded for one value of the type,
    including the type itself. Types inside a union, an array or a map are not counted, because each of their values
    takes at least one byte."""


_FULL: Final = _Shape(may_be_empty=False, empty_types=0)
_EMPTY: Final = _Shape(may_be_empty=True, empty_types=1)


def _require_finite(schema: Any) -> None:
    """Refuse a schema that allows a few encoded bytes to decode to unlimited data.

    Raises:
        ValueError: items of an array take no bytes, a record contains itself, or a record contains more than
            `MAX_EMPTY_TYPES` records and nulls.
    """
    _shape(schema, {}, ())


def _shape(schema: Any, named: dict[str, _Shape], around: Collection[str]) -> _Shape:
    """Return the shape of a type.

    Args:
        named: the shapes of the named types that have been measured, by name; this function adds more. Each named type
            is measured only once, because nested types can occur exponentially often: in a chain of records that each
            contain the next record twice, the last of n records occurs 2^(n-1) times.
        around: names of the records inside which this type is defined.
    Raises:
        ValueError: the schema is refused, for the reasons that `_require_finite` lists.
    """
    if isinstance(schema, list):
        for choice in schema:
            _shape(choice, named, around)
        return _FULL
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _EMPTY if schema == "null" else _FULL
        if _simple(schema) in around:
            raise ValueError(f"the file's Avro schema is refused: the record {schema!r} contains itself")
        return named.get(_simple(schema), _FULL)
    kind = schema["type"]
    if kind == "array":
        if _shape(schema["items"], named, around).may_be_empty:
            raise ValueError(
                "the file's Avro schema is refused: it has an array whose items can be encoded in zero bytes (such as "
                "null, or a record without fields)"
            )
        return _FULL
    if kind == "map":
        _shape(schema["values"], named, around)
        return _FULL
    if kind == "enum":
        found = _FULL
    elif kind == "fixed":
        found = _FULL if schema["size"] else _EMPTY
    elif "fields" in schema:
        inside = (*around, _simple(schema["name"]))
        fields = [_shape(field["type"], named, inside) for field in schema["fields"]]
        found = _Shape(all(one.may_be_empty for one in fields), 1 + sum(one.empty_types for one in fields))
        if found.empty_types > MAX_EMPTY_TYPES:
            raise ValueError(
                f"the file's Avro schema is refused: the record {schema['name']!r} contains more than "
                f"{MAX_EMPTY_TYPES} records and nulls"
            )
    else:
        return _shape(kind, named, around)
    name = _simple(schema["name"])
    other = named.get(name, found)  # a type with this name in another namespace
    named[name] = _Shape(found.may_be_empty or other.may_be_empty, max(found.empty_types, other.empty_types))
    return found


def _with_distinct_names(schema: Any, defined: dict[str, int]) -> Any:
    """Return the schema, changed so that no two definitions of fixed types have the same name.

    pyiceberg repeats the definition of a fixed type for each partition column, such as `decimal_9_2` for two decimal
    columns. fastavro refuses a second definition of a name. The names of types do not affect how values are encoded.

    Args:
        defined: number of definitions already seen, by name; this function adds the definitions in `schema`.
    """
    if isinstance(schema, list):
        return [_with_distinct_names(one, defined) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "fixed" and "namespace" not in schema:
        number = defined[schema["name"]] = defined.get(schema["name"], 0) + 1
        return schema if number == 1 else {**schema, "name": f"{schema['name']}_{number}"}
    return {
        key: _with_distinct_names(value, defined) if key in ("type", "fields", "items", "values") else value
        for key, value in schema.items()
    }


def _simple(name: str) -> str:
    """Return the name of a type without its namespace."""
    return name.rpartition(".")[2]
