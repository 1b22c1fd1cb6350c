"""Manifest lists as Avro files (specification: https://iceberg.apache.org/spec/#manifest-lists).

Records are read with the schema in their own file. Fields are identified by their Iceberg field ids, because writers
name some fields differently. A record is copied to another list only if the schema of that list has all fields of the
record.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import fastavro

from polaris_spark.catalog.files.memory import charge
from polaris_spark.catalog.manifests.avro_blocks import AvroBlocks
from polaris_spark.catalog.metadata.texts import Json
from polaris_spark.errors import BadRequestError, PolarisError

PATH = 500
LENGTH = 501
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
"""Value of the field `content` for manifests of data files. Format version 1 does not have this field."""

Manifest = dict[int | str, Any]
"""One record of a manifest list: values by Iceberg field id, or by name if a field has no id. Null fields are left out.
"""

_BLOCK_BYTES = 64_000
"""Maximum size of a block that results from joining two blocks, in bytes before compression. Avro's Java library fills
blocks up to the same size."""

_WEIGHT = 8
"""Estimated memory of a list, as a multiple of the decompressed size of its blocks: parsed records take more memory
than encoded records."""


class Block:
    """Consecutive records of a manifest list, in Avro's binary encoding."""

    __slots__ = ("_packed", "count", "data")

    def __init__(self, count: int, data: bytes) -> None:
        self.count = count
        self.data = data
        self._packed: bytes | None = None

    def packed(self, codec: str) -> bytes:
        """Return the encoded records: uncompressed for the codec `null`, otherwise compressed with deflate.

        No other codec is used for writing. The compressed bytes are cached.
        """
        if codec == "null":
            return self.data
        if self._packed is None:
            compressor = zlib.compressobj(wbits=-15)
            self._packed = compressor.compress(self.data) + compressor.flush()
        return self._packed


class ManifestList:
    """A manifest list that was read, or is to be written. Immutable; records are parsed when they are first used."""

    def __init__(
        self, schema: Json, metadata: dict[str, str], codec: str, blocks: Sequence[Block], weight: int
    ) -> None:
        self.schema = schema
        """The Avro schema of the records."""
        self.metadata = metadata
        """The key-value metadata of the file, without Avro's own keys."""
        self.codec = codec
        """Avro's name of the compression codec."""
        self.blocks = tuple(blocks)
        self.count = sum(block.count for block in blocks)
        """Number of manifests in the list."""
        self.weight = weight
        """Approximate memory of the list, in bytes, without the blocks that it shares with other lists."""

    @cached_property
    def manifests(self) -> tuple[Manifest, ...]:
        """The records of the list, one for each manifest.

        Raises:
            BadRequestError: the records cannot be read.
        """
        found = [_decode(self, block.data, block.count) for block in self.blocks]
        return tuple(manifest for manifests in found for manifest in manifests)

    @cached_property
    def fields(self) -> dict[int | str, str]:
        """The names of the records' fields, by Iceberg field id, or by name if a field has no id."""
        return {field.get("field-id", field["name"]): field["name"] for field in self.schema["fields"]}

    @cached_property
    def parsed(self) -> Any:
        """The Avro schema of the records, as parsed by fastavro."""
        return fastavro.parse_schema(self.schema)

    @property
    def format_version(self) -> int:
        """The version of the table format of the records: 3, 2 or 1. It is inferred from the fields that the records
        have."""
        return 3 if FIRST_ROW_ID in self.fields else 2 if SEQUENCE_NUMBER in self.fields else 1

    @property
    def body(self) -> bytes:
        """All records in Avro's encoding."""
        return b"".join(block.data for block in self.blocks)

    def __contains__(self, path: str) -> bool:
        """Return whether the list has a manifest with this path."""
        text = path.encode()
        # Search the bytes first: if they do not contain the path, nothing needs to be parsed.
        return any(text in block.data for block in self.blocks) and any(
            manifest[PATH] == path for manifest in self.manifests
        )


def parse(data: bytes) -> ManifestList:
    """Return the manifest list that the content of a file encodes.

    Raises:
        BadRequestError: the content is not a manifest list, or is encrypted.
    """
    try:
        reader = AvroBlocks(io.BytesIO(data))
        schema = reader.schema
        if PATH not in {field.get("field-id") for field in schema["fields"]}:
            raise ValueError(f"the file's records have no manifest_path (field id {PATH})")
        blocks = []
        for block in reader:
            charge(_WEIGHT * len(block.data))
            blocks.append(Block(block.records, block.data))
        metadata = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
    except PolarisError:
        raise
    except Exception as error:  # decoders raise errors of many types for bytes that are not Avro
        raise BadRequestError(f"the file is not a manifest list: {error}") from error
    weight = _WEIGHT * sum(len(block.data) for block in blocks)
    return ManifestList(schema, metadata, reader.codec, blocks, weight)


def first_records(whole: ManifestList, rest: ManifestList) -> tuple[Manifest, ...] | None:
    """Return the records of `whole` that precede the records of `rest`.

    Return None unless the schemas are equal and `whole` ends with the records of `rest`, byte for byte.
    """
    if whole.schema != rest.schema:
        return None
    body, tail = whole.body, rest.body
    if not body.endswith(tail):
        return None
    try:
        return _decode(whole, body[: len(body) - len(tail)], whole.count - rest.count)
    except BadRequestError:  # `whole` ends with the same bytes, but they do not begin with a record
        return None


def prepend(
    like: ManifestList,
    new: Sequence[Manifest],
    rest: ManifestList | None,
    metadata: dict[str, str],
    sync: bytes,
) -> tuple[ManifestList, bytes]:
    """Return a manifest list of the records `new` followed by the records of `rest`, and the content of its file.

    If `rest` and `like` have the same schema, the blocks of `rest` are copied without decoding their records. A long
    `rest` then costs little more than a short one.

    Args:
        like: the list whose schema and codec are used; a codec other than `null` is replaced by deflate.
        new: the records to write first.
        rest: the list whose records follow; None if no records follow.
        metadata: key-value metadata of the file.
        sync: 16 bytes that separate the blocks of the file.
    Raises:
        BadRequestError: a record has a field that the schema does not have, or lacks a required field.
    """
    codec = like.codec if like.codec in ("null", "deflate") else "deflate"
    blocks = [_encode(like, new)] if new else []
    if rest is not None and rest.schema == like.schema:
        blocks += rest.blocks
    elif rest is not None and rest.count:
        blocks.append(_encode(like, rest.manifests))
    if len(blocks) > 1 and len(blocks[0].data) + len(blocks[1].data) <= _BLOCK_BYTES:
        first, second = blocks[:2]
        blocks[:2] = [Block(first.count + second.count, first.data + second.data)]
    out = io.BytesIO()
    fastavro.writer(out, like.schema, [], codec=codec, metadata=metadata, sync_marker=sync)
    for block in blocks:
        packed = block.packed(codec)
        out.write(avro_long(block.count) + avro_long(len(packed)) + packed + sync)
    weight = _WEIGHT * len(blocks[0].data) if blocks else 0
    return ManifestList(like.schema, metadata, codec, blocks, weight), out.getvalue()


def _decode(like: ManifestList, data: bytes, count: int) -> tuple[Manifest, ...]:
    stream = io.BytesIO(data)
    names = [(name, key) for key, name in like.fields.items()]
    found = []
    try:
        for _ in range(count):
            record: Any = fastavro.schemaless_reader(stream, like.parsed, None)
            found.append({key: value for name, key in names if (value := record[name]) is not None})
    except Exception as error:  # decoders raise errors of many types for bytes that are not Avro
        raise BadRequestError(f"the file is not a manifest list: {error}") from error
    if stream.tell() != len(data) or not all(isinstance(manifest.get(PATH), str) for manifest in found):
        raise BadRequestError(
            "the file is not a manifest list: a record has no manifest_path, or a block has bytes after its last record"
        )
    return tuple(found)


def _encode(like: ManifestList, manifests: Sequence[Manifest]) -> Block:
    fields = like.fields
    out = io.BytesIO()
    for manifest in manifests:
        unknown = manifest.keys() - fields.keys()
        if unknown:
            raise BadRequestError(
                f"manifest {manifest[PATH]} cannot be added to the manifest list: the list's schema lacks the "
                f"fields {sorted(map(str, unknown))}"
            )
        record = {name: manifest.get(key) for key, name in fields.items()}
        try:
            fastavro.schemaless_writer(out, like.parsed, record, strict=True)
        except (
            Exception
        ) as error:  # a null or type that the schema does not allow: TypeError, ValueError, ...
            raise BadRequestError(
                f"manifest {manifest[PATH]} cannot be added to the manifest list: its record does not fit the "
                f"list's schema: {error}"
            ) from error
    return Block(len(manifests), out.getvalue())


def avro_long(number: int) -> bytes:
    """Return the Avro encoding of a non-negative number: zigzag, seven bits per byte, lowest bits first."""
    number <<= 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
