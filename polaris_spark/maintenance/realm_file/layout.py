"""The format of a realm file: `MAGIC`, then blocks. `docs/operate/realm-files.md` describes it for other programs.

A block consists of

- its kind, one byte of `Kind`;
- the size of its payload in bytes, 4 bytes, big-endian;
- the payload;
- the CRC-32 of all of this, 4 bytes, big-endian.

The blocks are, in this order: the header; the references; the objects, whose rows are in ascending order of (id, part);
the index of the blocks of objects; the trailer, at the end of the file. The trailer has the SHA-256 digest of all bytes
before it. Payloads are MessagePack. Those of references, objects and the index are compressed by zlib (RFC 1950).

A new format number is needed for every change, unless it only adds fields to the header or the trailer that older
releases may ignore.
"""

from __future__ import annotations

import enum
import hashlib
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, NamedTuple, TypeVar

import msgspec

from polaris_spark.backends.base import MAX_NAME_BYTES, MAX_ROW_BYTES, ObjectRow, ReferenceRow
from polaris_spark.backends.chunks import sized, value_bytes
from polaris_spark.catalog.files.files import unwritable
from polaris_spark.commits.publication import encode_head, read_head
from polaris_spark.errors import CorruptionError, InputError, NewerFormatError, SourceError
from polaris_spark.ids import MAX_ID
from polaris_spark.maintenance.migration.marks import Held

MAGIC: Final = b"\x89polaris-realm\r\n"
"""The first bytes of a realm file. A transfer that changes line ends damages them."""

FORMAT: Final = 1
"""The format that this release writes, and the highest one that it reads."""

MAX_BYTES: Final = 64 * 2**20
"""Maximum size of a payload in bytes, both compressed and decompressed."""

OBJECT_BYTES: Final = 4 * 2**20
"""Size of the values in a block of objects, in bytes, unless a single row is larger."""
_OBJECT_ROWS: Final = 1_000
_REFERENCES_TOGETHER: Final = 1_000
_LEVEL: Final = 3
"""Level of zlib's compression."""

_START: Final = struct.Struct(">cI")
_CHECKSUM: Final = struct.Struct(">I")
_KEY: Final = struct.Struct(">qi")
_DIGEST_BYTES: Final = 32
_MODULUS: Final = 1 << 8 * _DIGEST_BYTES
_READ_BYTES: Final = 2**20

T = TypeVar("T")


class Kind(enum.Enum):
    """Kind of a block."""

    HEADER = b"H"
    REFERENCES = b"R"
    OBJECTS = b"O"
    INDEX = b"I"
    TRAILER = b"T"


class FileHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first block: what was exported, when, and by which release."""

    format: int
    release: str
    """Version of polaris_spark that wrote the file."""
    realm: str
    """Name of the realm."""
    instance: str
    """Instance id of the realm in the store that it was exported from."""
    exported_ms: int
    """Time of the export, in milliseconds since 1970."""
    store_format: int
    """Format of the realm's record."""
    revisions: dict[str, int]
    """The highest revision that writers of the realm may use, by object type."""
    properties: dict[str, str]
    """Properties of the realm's record, without those of a migration or an import."""
    features: dict[str, str] = {}
    """The features that writers of the realm may use. Maps the name of each feature to the first release that has
    it."""


class Trailer(msgspec.Struct, frozen=True, kw_only=True):
    """The last block: counts, and the digest of everything before it."""

    references: int
    objects: int
    rows: int
    """Number of rows of objects."""
    size: int
    """Total size of the values of these rows, in bytes."""
    highest: int
    """The highest id of an object; 0 if there are none."""
    sum: bytes
    """Sum of the digests of the rows (see `RowSum`), 32 bytes, big-endian."""
    sha256: bytes
    """SHA-256 digest of all bytes before this block."""


class Indexed(msgspec.Struct, frozen=True, array_like=True):
    """A block of objects, as the index lists it."""

    offset: int
    """Position of the block in the file."""
    first: int
    """Id of the first row in the block."""
    rows: int


_Id = Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)]
_Part = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Value = Annotated[bytes, msgspec.Meta(max_length=MAX_ROW_BYTES)]
_Rows = list[tuple[_Id, _Part, _Value]]
_References = list[tuple[Annotated[str, msgspec.Meta(max_length=MAX_NAME_BYTES)], _Value]]

_encode = msgspec.msgpack.Encoder().encode


class _Format(msgspec.Struct):
    format: int


class RowSum:
    """Digest of a set of rows that does not depend on their order: the sum of the SHA-256 digests of the rows, modulo
    2**256. The digest of a row is taken of its id (8 bytes), its part (4 bytes, both big-endian) and the SHA-256 digest
    of its value."""

    def __init__(self) -> None:
        self._sum = 0

    def add(self, id: int, part: int, digest: bytes) -> None:
        """Add a row. `digest` is the SHA-256 digest of its value."""
        self._sum += int.from_bytes(hashlib.sha256(_KEY.pack(id, part) + digest).digest(), "big")

    def value(self) -> bytes:
        """Return the sum of the rows that were added."""
        return (self._sum % _MODULUS).to_bytes(_DIGEST_BYTES, "big")


class _Content:
    """Counts and the index of the blocks of objects in a realm file."""

    def __init__(self) -> None:
        self.last = (-1, 0)
        """Id and part of the last row."""
        self.index: list[Indexed] = []
        self._objects = self._rows = self._size = 0
        self._sum = RowSum()

    def add(self, offset: int, rows: Sequence[ObjectRow]) -> None:
        """Add the rows of a block of objects at a position of the file."""
        self.index.append(Indexed(offset, rows[0].id, len(rows)))
        self._rows += len(rows)
        for row in rows:
            self._objects += row.part == 0
            self._size += len(row.value)
            self._sum.add(row.id, row.part, hashlib.sha256(row.value).digest())
        self.last = (rows[-1].id, rows[-1].part)

    def trailer(self, references: int, sha256: bytes) -> Trailer:
        """Return the trailer of a file with this content."""
        return Trailer(
            references=references,
            objects=self._objects,
            rows=self._rows,
            size=self._size,
            highest=max(self.last[0], 0),
            sum=self._sum.value(),
            sha256=sha256,
        )


class Writer:
    """Writes a realm file, block by block."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        """
        Args:
            file: an empty file that is open for writing, without a buffer.
            path: path of the realm file, for messages.
        """
        self._file = file
        self._path = path
        self._digest = hashlib.sha256()
        self.size = 0
        """Number of bytes that were written."""
        self._content = _Content()
        self._references = 0
        self._raw(MAGIC)

    def header(self, header: FileHeader) -> None:
        """Write the header."""
        self._block(Kind.HEADER, _encode(header))

    def references(self, heads: Sequence[Held]) -> None:
        """Write the heads of the references, without the fields that apply only to the store from which they were
        read."""
        for start in range(0, len(heads), _REFERENCES_TOGETHER):
            some = [
                (held.row_name, encode_head(msgspec.structs.replace(held.head, move=None, slots=())))
                for held in heads[start : start + _REFERENCES_TOGETHER]
            ]
            self._block(Kind.REFERENCES, _compressed(some))
            self._references += len(some)

    def objects(self, rows: Iterable[ObjectRow]) -> None:
        """Write rows of objects. Their keys must be above the keys of all rows that were written before."""
        for some in sized(rows, value_bytes, most_bytes=OBJECT_BYTES, most=_OBJECT_ROWS):
            self._content.add(self.size, some)
            self._block(Kind.OBJECTS, _compressed(some))

    def finish(self) -> Trailer:
        """Write the index and the trailer, and return the trailer."""
        self._block(Kind.INDEX, _compressed(self._content.index))
        trailer = self._content.trailer(self._references, self._digest.digest())
        self._block(Kind.TRAILER, _encode(trailer))
        return trailer

    def _block(self, kind: Kind, payload: bytes) -> None:
        if len(payload) > MAX_BYTES:
            raise InputError(
                f"a block of {len(payload):,} bytes exceeds the maximum of a realm file, {MAX_BYTES:,} bytes"
            )
        data = _START.pack(kind.value, len(payload)) + payload
        self._raw(data + _CHECKSUM.pack(zlib.crc32(data)))

    def _raw(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]  # a full disk can take a part of it
        except OSError as error:
            raise unwritable(str(self._path), error) from error
        self._digest.update(data)
        self.size += len(data)


class _Block(NamedTuple):
    offset: int
    kind: Kind
    payload: bytes
    before: bytes
    """SHA-256 digest of all bytes before the block; empty if the file was not read from its beginning."""


class RealmFile:
    """A complete realm file. Opening it reads the whole file and checks every byte of it.

    Takes memory for the heads of all references, and about 100 bytes for each block of objects. Use it in a `with`
    statement.
    """

    def __init__(self, path: Path) -> None:
        """
        Raises:
            InputError: there is no readable file at `path`, or it is not a realm file.
            SourceError: the file is incomplete or damaged.
            NewerFormatError: a newer release wrote the file.
        """
        self.path = path
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise InputError(f"cannot read {str(path)!r}: {error.strerror}") from error
        try:
            self._check()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> RealmFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def digest(self) -> str:
        """Digest of the file, in hexadecimal. It identifies the file."""
        return self.trailer.sha256.hex()

    @property
    def blocks(self) -> int:
        """Number of blocks of objects."""
        return len(self._offsets)

    def rows(self, number: int) -> list[ObjectRow]:
        """Return the rows of a block of objects, given its number from 0. Not thread-safe.

        Raises:
            SourceError: the block has changed since the file was opened.
        """
        self._file.seek(self._offsets[number])
        for block in self._blocks(self._offsets[number]):
            if block.kind is Kind.OBJECTS:
                return self._decoded_rows(block)
            break
        raise self._damaged(self._offsets[number], "the file has changed since it was opened")

    def _check(self) -> None:
        """Read and check the whole file."""
        self._offsets = array("q")
        heads: list[Held] = []
        content = _Content()
        listed: list[Indexed] | None = None
        trailer = None
        for block in self._blocks_in_order():
            if block.kind is Kind.HEADER:
                self.header = self._header(block)
            elif block.kind is Kind.REFERENCES:
                for name, value in self._inflated(block, _References):
                    heads.append(Held(name, self._head(block, name, value)))
            elif block.kind is Kind.OBJECTS:
                found = self._decoded_rows(block)
                self._require_ascending(block, content.last, found)
                content.add(block.offset, found)
                self._offsets.append(block.offset)
            elif block.kind is Kind.INDEX:
                listed = self._inflated(block, list[Indexed])
            else:
                trailer = self._payload(block, block.payload, Trailer)
                if trailer.sha256 != block.before:
                    raise self._damaged(
                        block.offset, "the SHA-256 digest of the file does not match the one in its trailer"
                    )
        if trailer is None:
            raise SourceError(
                f"the realm file {str(self.path)!r} is incomplete: it ends without a trailer; copy it again, or "
                "export again"
            )
        if content.trailer(len(heads), trailer.sha256) != trailer or listed != content.index or not heads:
            raise self._damaged(0, "the counts or the index differ from the content")
        self.trailer = trailer
        self.heads: Sequence[Held] = heads
        """The heads of all references."""

    def _blocks_in_order(self) -> Iterator[_Block]:
        """Yield all blocks from the beginning, and check the order of their kinds."""
        last = None
        for block in self._blocks_from_start():
            if last is Kind.TRAILER:
                raise self._damaged(block.offset, "there are bytes after the trailer")
            stage, at = -1 if last is None else _ORDER[last], _ORDER[block.kind]
            if at < stage or (at == stage and block.kind not in _REPEATED) or (stage < 0 and at):
                raise self._damaged(block.offset, f"a block of kind {block.kind.name} is not allowed here")
            last = block.kind
            yield block

    def _require_ascending(self, block: _Block, last: tuple[int, int], rows: Sequence[ObjectRow]) -> None:
        """Check the order of the rows in a block of objects.

        Args:
            last: id and part of the row before the block.
        """
        if not rows:
            raise self._damaged(block.offset, "a block of objects is empty")
        for row in rows:
            expected = (last[0], last[1] + 1) if row.part else (max(row.id, last[0] + 1), 0)
            if (row.id, row.part) != expected:
                raise self._damaged(block.offset, f"row {row.id}/{row.part} is not in ascending order")
            last = expected

    def _head(self, block: _Block, name: str, value: bytes) -> Any:
        try:
            return read_head(ReferenceRow(b"", value), name)
        except CorruptionError as error:
            raise self._damaged(block.offset, str(error)) from error

    def _header(self, block: _Block) -> FileHeader:
        format = self._payload(block, block.payload, _Format).format
        if format > FORMAT:
            raise NewerFormatError(
                f"the realm file {str(self.path)!r} has format {format}, but this release can read formats only up to "
                f"{FORMAT}: use a newer release of polaris_spark"
            )
        return self._payload(block, block.payload, FileHeader)

    def _decoded_rows(self, block: _Block) -> list[ObjectRow]:
        return [ObjectRow(*row) for row in self._inflated(block, _Rows)]

    def _inflated(self, block: _Block, type: type[T]) -> T:
        inflating = zlib.decompressobj()
        try:
            data = inflating.decompress(block.payload, MAX_BYTES)
        except zlib.error as error:
            raise self._damaged(block.offset, str(error)) from error
        if not inflating.eof or inflating.unused_data:
            raise self._damaged(block.offset, "its payload is not one compressed text of the allowed size")
        return self._payload(block, data, type)

    def _payload(self, block: _Block, data: bytes, type: type[T]) -> T:
        try:
            return msgspec.msgpack.decode(data, type=type)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._damaged(block.offset, str(error)) from error

    def _blocks_from_start(self) -> Iterator[_Block]:
        digest = hashlib.sha256()
        magic = self._read(len(MAGIC))
        if magic != MAGIC:
            raise InputError(f"{str(self.path)!r} is not a realm file, or its first bytes are damaged")
        digest.update(magic)
        yield from self._blocks(len(MAGIC), digest)

    def _blocks(self, offset: int, digest: Any = None) -> Iterator[_Block]:
        while start := self._read(_START.size):
            kind, size = _START.unpack(start) if len(start) == _START.size else (b"", MAX_BYTES)
            if kind in _KINDS and size > MAX_BYTES:
                raise self._damaged(
                    offset, f"its size of {size:,} bytes exceeds the maximum of {MAX_BYTES:,}"
                )
            rest = self._read(size + _CHECKSUM.size) if kind in _KINDS else b""
            if kind and kind not in _KINDS:
                raise self._damaged(offset, f"there is no kind {kind!r}")
            if len(rest) < size + _CHECKSUM.size:
                raise SourceError(
                    f"the realm file {str(self.path)!r} is incomplete: it ends within the block at byte {offset:,}; "
                    "copy it again, or export again"
                )
            payload, checksum = rest[:size], rest[size:]
            if zlib.crc32(payload, zlib.crc32(start)) != _CHECKSUM.unpack(checksum)[0]:
                raise self._damaged(offset, "its checksum does not match")
            yield _Block(offset, Kind(kind), payload, b"" if digest is None else digest.digest())
            if digest is not None:
                digest.update(start)
                digest.update(rest)
            offset += _START.size + len(rest)

    def _read(self, size: int) -> bytes:
        """Return up to `size` bytes. Only the bytes that exist are allocated, however large `size` is."""
        found: list[bytes] = []
        try:
            while size and (some := self._file.read(min(size, _READ_BYTES))):
                found.append(some)
                size -= len(some)
        except OSError as error:
            raise SourceError(f"cannot read the realm file {str(self.path)!r}: {error}") from error
        return b"".join(found)

    def _damaged(self, offset: int, problem: str) -> SourceError:
        return SourceError(
            f"the realm file {str(self.path)!r} is damaged at the block at byte {offset:,}: {problem}; copy it again, "
            "or export again"
        )


_KINDS: Final = frozenset(kind.value for kind in Kind)
_ORDER: Final = {kind: position for position, kind in enumerate(Kind)}
_REPEATED: Final = (Kind.REFERENCES, Kind.OBJECTS)


def _compressed(value: object) -> bytes:
    return zlib.compress(_encode(value), _LEVEL)
