"""The blocks of Avro object container files, with bounds. Clients choose these files, so they may be hostile.

A block is decompressed only up to `MAX_BLOCK_BYTES`. A schema is refused if a few bytes may decode to unlimited data,
because the decoder holds the interpreter's lock until it ends. Such schemas have arrays whose items take no bytes, or
records that contain themselves.
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

MAX_BLOCK_BYTES: Final = 64 * 2**20
"""Maximum size of a block, compressed or not, in bytes. Writers begin a new block after less than 1 MiB."""

MAX_BLOCK_RECORDS: Final = 1_000_000
"""Maximum number of records in a block."""

_SYNC_BYTES: Final = 16
_PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))


class AvroBlock(NamedTuple):
    """A block of records, decompressed."""

    records: int
    """Number of records."""
    data: bytes


class AvroBlocks:
    """The header of an open Avro file, and its blocks."""

    def __init__(self, stream: BinaryIO) -> None:
        """
        Args:
            stream: an Avro file, positioned at its beginning.
        Raises:
            ValueError: the schema is refused.
            Exception: the stream is not an Avro file.
        """
        reader: Any = fastavro.block_reader(stream)  # reads the header only
        self.schema: Any = reader.writer_schema
        self.metadata: dict[str, str] = dict(reader.metadata)
        self.codec: str = reader.codec
        self._sync: bytes = reader._header["sync"]
        self._stream = stream
        _require_finite(self.schema)

    def __iter__(self) -> Iterator[AvroBlock]:
        """Yield the blocks. They can be read only once.

        Raises:
            ValueError: a block is damaged, or exceeds a bound.
        """
        while (first := self._stream.read(1)) != b"":
            count, size = self._long(first), self._long(self._stream.read(1))
            if not 0 <= size <= MAX_BLOCK_BYTES:
                raise ValueError(f"a block has {size} bytes, and at most {MAX_BLOCK_BYTES} are possible")
            data = _decompressed(self.codec, self._stream.read(size))
            if self._stream.read(_SYNC_BYTES) != self._sync:
                raise ValueError("expected sync marker not found")
            # A record takes at least one byte. Records of no bytes could be repeated without limit.
            if not 0 <= count <= min(len(data), MAX_BLOCK_RECORDS):
                raise ValueError("its blocks cannot hold so many records")
            yield AvroBlock(count, data)

    def _long(self, byte: bytes) -> int:
        number = shift = 0
        while True:
            if not byte or shift > 63:
                raise ValueError("it ends within a number")
            number |= (byte[0] & 0x7F) << shift
            if byte[0] < 0x80:
                return number >> 1 ^ -(number & 1)
            shift += 7
            byte = self._stream.read(1)


def _decompressed(codec: str, data: bytes) -> bytes:
    """Return the decompressed content of a block.

    Raises:
        ValueError: the block is damaged or too large, or the codec is unknown.
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
        raise ValueError(f"codec {codec!r} is unknown")
    if len(found) > MAX_BLOCK_BYTES:
        raise ValueError(f"a block has more than {MAX_BLOCK_BYTES} bytes")
    return found


def _snappy(data: bytes) -> bytes:
    """Decompress a raw Snappy block, which begins with the size of its content (format description, section 1)."""
    size = 0
    for position, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            break
    if size > MAX_BLOCK_BYTES:
        raise ValueError(f"a block has {size} bytes, and at most {MAX_BLOCK_BYTES} are possible")
    return bytes(import_module("cramjam").snappy.decompress_raw(data))


def _zstandard(data: bytes, most: int) -> bytes:
    """Decompress up to `most` bytes of a block with one of the libraries that fastavro uses."""
    for library in ("compression.zstd", "backports.zstd"):
        with contextlib.suppress(ImportError):
            return bytes(import_module(library).ZstdDecompressor().decompress(data, most))
    return bytes(import_module("zstandard").ZstdDecompressor().stream_reader(data).read(most))


def _require_finite(schema: Any) -> None:
    """Refuse a schema if decoded data can be larger than a fixed multiple of the encoded bytes.

    Raises:
        ValueError: items of an array take no bytes, or a record contains itself.
    """
    named: dict[str, list[Any]] = {}
    _check_types(schema, named, ())


def _check_types(schema: Any, named: dict[str, list[Any]], around: Collection[str]) -> None:
    if isinstance(schema, list):
        for choice in schema:
            _check_types(choice, named, around)
    elif isinstance(schema, str):
        if schema not in _PRIMITIVES and _simple(schema) in around:
            raise ValueError(f"its record {schema!r} contains itself")
    elif isinstance(schema, dict):
        if "name" in schema:
            named.setdefault(_simple(schema["name"]), []).append(schema)
            around = (*around, _simple(schema["name"]))
        for field in schema.get("fields", ()):
            _check_types(field["type"], named, around)
        for part in ("items", "values", "type"):
            if part in schema:
                _check_types(schema[part], named, around)
        if "items" in schema and _may_be_empty(schema["items"], named):
            raise ValueError("it has an array whose items take no bytes")


def _may_be_empty(schema: Any, named: dict[str, list[Any]]) -> bool:
    """Whether a value of a type may take no bytes. A value of a union takes at least one."""
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return schema == "null"
        return any(_may_be_empty(one, named) for one in named.get(_simple(schema), ()))
    if not isinstance(schema, dict):
        return False
    if "fields" in schema:
        return all(_may_be_empty(field["type"], named) for field in schema["fields"])
    if schema["type"] == "fixed":
        return not schema["size"]
    return schema["type"] not in ("array", "map", "enum") and _may_be_empty(schema["type"], named)


def _simple(name: str) -> str:
    """Return a name without its namespace."""
    return name.rpartition(".")[2]
