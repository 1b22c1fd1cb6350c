"""Avro files that decode to far more bytes than their size are refused before they are decoded."""

from __future__ import annotations

import bz2
import io
import json
import lzma
import zlib
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DecimalType, NestedField

from polaris_spark.catalog.files.files import Files
from polaris_spark.catalog.files.memory import Claim, MemoryBound
from polaris_spark.catalog.manifests import manifest_lists
from polaris_spark.catalog.manifests.avro_blocks import MAX_BLOCK_BYTES, MAX_BLOCK_RECORDS, AvroBlocks
from polaris_spark.catalog.manifests.avro_files import AvroFile
from polaris_spark.catalog.manifests.manifest_entries import listed_manifests
from polaris_spark.catalog.manifests.manifest_lists import avro_long
from polaris_spark.errors import BadRequestError, RequestTooLargeError, UnreadableFileError
from polaris_spark.pyiceberg import PolarisCatalog

SYNC = b"s" * 16
PATH = {"name": "manifest_path", "type": "string", "field-id": 500}


def listing(*fields: Any) -> Any:
    """The schema of a manifest list with additional fields."""
    return {"type": "record", "name": "manifest_file", "fields": [PATH, *fields]}


def array(items: Any) -> Any:
    """A field that holds an array."""
    return {"name": "junk", "type": {"type": "array", "items": items}, "field-id": 9_999}


def text(value: str) -> bytes:
    """A string as Avro writes it."""
    return avro_long(len(value)) + value.encode()


def file_of(schema: Any, *blocks: tuple[int, bytes], codec: str = "null") -> bytes:
    """Return an Avro file of blocks that are already encoded."""
    header = {"avro.schema": json.dumps(schema), "avro.codec": codec}
    written = b"".join(text(name) + text(value) for name, value in header.items())
    body = b"".join(avro_long(count) + avro_long(len(data)) + data + SYNC for count, data in blocks)
    return b"Obj\x01" + avro_long(len(header)) + written + avro_long(0) + SYNC + body


def deflated(data: bytes) -> bytes:
    """Compress bytes with raw deflate, as in Avro."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


EMPTY: dict[str, list[Any]] = {
    "nulls": [array("null")],
    "records without fields": [array({"type": "record", "name": "r", "fields": []})],
    "fixed of no bytes": [array({"type": "fixed", "name": "f", "size": 0})],
    "a name of a fixed of no bytes": [
        {"name": "f", "type": {"type": "fixed", "name": "a.f", "size": 0}},
        array("a.f"),
    ],
    "records of nulls": [array({"type": "record", "name": "r", "fields": [{"name": "n", "type": "null"}]})],
    "arrays of nulls": [array({"type": "array", "items": "null"})],
    "values of a map": [{"name": "m", "type": {"type": "map", "values": array("null")["type"]}}],
    "choices": [{"name": "c", "type": ["null", array("null")["type"]]}],
}


@pytest.mark.parametrize("fields", EMPTY.values(), ids=EMPTY)
def test_arrays_whose_items_take_no_bytes_are_refused(fields: list[Any], tmp_path: Path) -> None:
    # These few bytes would decode to 2**50 items, in native code that no thread can interrupt.
    content = file_of(listing(*fields), (1, text("x") + avro_long(2**50) + avro_long(0)))
    with pytest.raises(BadRequestError, match="encoded in zero bytes"):
        manifest_lists.parse(content)
    (tmp_path / "list.avro").write_bytes(content)
    with pytest.raises(UnreadableFileError, match="encoded in zero bytes"):
        list(listed_manifests(Files({}), str(tmp_path / "list.avro")))


def test_records_that_contain_themselves_are_refused() -> None:
    node = {"type": "record", "name": "n.node", "fields": [{"name": "next", "type": ["null", "node"]}]}
    content = file_of(listing({"name": "first", "type": node}), (1, text("x") + b"\x02" * 1_000_000))
    with pytest.raises(BadRequestError, match="contains itself"):
        manifest_lists.parse(content)


def nested(levels: int, innermost: Any) -> Any:
    """Return a record type in which each level contains the next one twice, so the innermost occurs 2**levels times."""
    found: Any = {"type": "record", "name": "level0", "fields": [innermost]}
    for level in range(1, levels + 1):
        again = {"name": "again", "type": f"level{level - 1}"}
        found = {
            "type": "record",
            "name": f"level{level}",
            "fields": [{"name": "first", "type": found}, again],
        }
    return found


MULTIPLIED: dict[str, Any] = {
    "a record": {"name": "junk", "type": nested(50, {"name": "n", "type": "null"})},
    "items of an array": array(nested(50, {"name": "n", "type": "null"})),
    "a choice": {"name": "junk", "type": ["null", nested(50, {"name": "n", "type": "null"})]},
}


@pytest.mark.parametrize("field", MULTIPLIED.values(), ids=MULTIPLIED)
def test_records_that_multiply_by_their_names_are_refused(field: Any) -> None:
    # A single record would decode to 2**50 nulls, without a byte.
    with pytest.raises(BadRequestError, match="more than 100 records and nulls"):
        manifest_lists.parse(file_of(listing(field), (1, text("x"))))


def test_many_nulls_beside_a_byte_are_refused() -> None:
    # A block of 64 MiB would decode to 2**26 times as many nulls.
    nulls = [{"name": f"n{n}", "type": "null"} for n in range(100)]
    with pytest.raises(BadRequestError, match="more than 100 records and nulls"):
        manifest_lists.parse(file_of(listing(*nulls), (1, text("x"))))


def test_records_that_share_types_by_name_are_read() -> None:
    shared = nested(3, {"name": "n", "type": ["null", "int"]})
    record = {"name": "record", "type": {"type": "record", "name": "record", "fields": [PATH]}}
    content = file_of(
        listing({"name": "shared", "type": shared}, record), (1, text("x") + bytes(2**3) + text("y"))
    )
    assert [one[500] for one in manifest_lists.parse(content).manifests] == ["x"]


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "null": lambda data: data,
    "deflate": deflated,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}


@pytest.mark.parametrize("codec", PACKED)
def test_a_block_is_decompressed_up_to_a_bound(codec: str) -> None:
    packed = PACKED[codec](bytes(MAX_BLOCK_BYTES + 1))
    blocks = AvroBlocks(io.BytesIO(file_of(listing(), (1, packed), codec=codec)))
    with pytest.raises(ValueError, match=str(MAX_BLOCK_BYTES)):
        next(iter(blocks))


def test_a_zstandard_block_is_decompressed_up_to_a_bound() -> None:
    zstandard = pytest.importorskip("zstandard", reason="an optional library of fastavro")
    for size in (MAX_BLOCK_BYTES, MAX_BLOCK_BYTES + 1):
        packer = zstandard.ZstdCompressor().compressobj()
        packed = packer.compress(bytes(size)) + packer.flush()
        blocks = iter(AvroBlocks(io.BytesIO(file_of(listing(), (1, packed), codec="zstandard"))))
        if size <= MAX_BLOCK_BYTES:
            assert next(blocks).data == bytes(size)
        else:
            with pytest.raises(ValueError, match=str(MAX_BLOCK_BYTES)):
                next(blocks)


def test_a_snappy_block_that_announces_too_much_is_refused() -> None:
    packed = b"\xff\xff\xff\xff\x0f" + bytes(99)
    blocks = AvroBlocks(io.BytesIO(file_of(listing(), (1, packed), codec="snappy")))
    with pytest.raises(ValueError, match=str(MAX_BLOCK_BYTES)):
        next(iter(blocks))


@pytest.mark.parametrize("codec", PACKED)
def test_blocks_that_fastavro_writes_are_read(codec: str) -> None:
    out = io.BytesIO()
    paths = [f"s3://b/{n}.avro" for n in range(2_000)]
    records = [{"manifest_path": path} for path in paths]
    fastavro.writer(out, listing(), records, codec=codec, sync_interval=4_000)
    out.seek(0)
    blocks = list(AvroBlocks(out))
    assert len(blocks) > 1
    assert sum(block.records for block in blocks) == len(paths)
    assert b"".join(block.data for block in blocks) == b"".join(map(text, paths))


@pytest.mark.parametrize("count", [MAX_BLOCK_RECORDS + 1, 2**50, 9])
def test_a_block_holds_no_more_records_than_fit(count: int) -> None:
    with pytest.raises(BadRequestError, match=f"claims to hold {count} records"):
        manifest_lists.parse(file_of(listing(), (count, text("1234567"))))


def test_a_file_that_ends_within_a_block_is_refused() -> None:
    content = file_of(listing(), (1, text("x")))
    for missing in range(1, len(SYNC) + 4):
        with pytest.raises(BadRequestError):
            manifest_lists.parse(content[:-missing])


def test_the_memory_of_a_block_counts_while_it_is_decoded(tmp_path: Path) -> None:
    rows = 20_000
    content = file_of(listing(), (rows, deflated(text("file:///x") * rows)), codec="deflate")
    (tmp_path / "list.avro").write_bytes(content)
    bound = MemoryBound(10 * rows)
    with Claim(bound) as claim, claim.charged():
        with pytest.raises(RequestTooLargeError):
            list(listed_manifests(Files({}), str(tmp_path / "list.avro")))
        assert bound.claimed == 0
        with pytest.raises(RequestTooLargeError):
            manifest_lists.parse(content)
    bound = MemoryBound(10_000 * rows)
    with Claim(bound) as claim, claim.charged():
        found = listed_manifests(Files({}), str(tmp_path / "list.avro"))
        next(found)
        assert bound.claimed > 100 * rows
        assert len(list(found)) == rows - 1
        assert bound.claimed == 0


def test_a_manifest_that_defines_the_type_of_two_partition_columns_twice_is_read(tmp_path: Path) -> None:
    columns = Schema(NestedField(1, "a", DecimalType(9, 2)), NestedField(2, "b", DecimalType(9, 2)))
    fields = [PartitionField(n, 999 + n, IdentityTransform(), name) for n, name in enumerate("ab", 1)]
    row = {name: pa.array([Decimal(n)], pa.decimal128(9, 2)) for n, name in enumerate("ab", 1)}
    with PolarisCatalog("lake", store="memory:decimals", warehouse=str(tmp_path)) as catalog:
        catalog.create_namespace("db")
        table = catalog.create_table("db.t", columns, partition_spec=PartitionSpec(*fields))
        table.append(pa.table(row))
    (manifest,) = tmp_path.rglob("*-m0.avro")
    data_file, path, partition = 2, 100, 102
    with manifest.open("rb") as stream:
        (entry,) = AvroFile(stream, str(manifest)).records({data_file: {path, partition}})
    assert entry[data_file][path].endswith(".parquet")
    assert entry[data_file][partition] == {1000: b"\x00\x00\x00\x64", 1001: b"\x00\x00\x00\xc8"}
