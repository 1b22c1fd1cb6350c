"""Manifest lists and manifests are read entry by entry, and compared with those that pyiceberg wrote."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import fastavro
import pytest
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntryStatus,
    ManifestFile,
    read_manifest_list,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.manifest import ManifestEntry as TheirEntry
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType, TimestampType

from polaris_spark.catalog.files.files import Files
from polaris_spark.catalog.manifests import manifest_entries as m
from polaris_spark.errors import MissingFileError, UnreadableFileError

IO = PyArrowFileIO()
FILES = Files({})
SCHEMA = Schema(
    NestedField(1, "n", LongType(), required=False),
    NestedField(2, "at", TimestampType(), required=False),
    NestedField(3, "what", StringType(), required=False),
)
SPEC = PartitionSpec(
    PartitionField(2, 1000, DayTransform(), "at_day"),
    PartitionField(3, 1001, IdentityTransform(), "what"),
    spec_id=3,
)
Version = Literal[1, 2]


class Elsewhere(PyArrowFileIO):
    """Local files under a URI scheme that only this FileIO knows."""

    def new_input(self, location: str) -> PyArrowFile:
        return super().new_input(location.removeprefix("elsewhere://"))


def a_file(number: int, **more: Any) -> DataFile:
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"s3://lake/t/data/{number}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(20_000 + number, None if number % 2 else "odd"),
        record_count=10 + number,
        file_size_in_bytes=1_000 + number,
        column_sizes={1: 80, 2: 90},
        value_counts={1: 10},
        null_value_counts={1: 0},
        nan_value_counts={},
        lower_bounds={1: b"\x00" * 8},
        upper_bounds={1: b"\xff" * 8},
        split_offsets=[4, 400],
        sort_order_id=0,
        **more,
    )


def write(folder: Path, version: Version, files: int = 5) -> tuple[str, ManifestFile]:
    """Write a manifest list and its only manifest. The manifest has added files, one existing file, and one deleted
    file."""
    with write_manifest(
        version, SPEC, SCHEMA, IO.new_output(str(folder / "m.avro")), 77, "deflate"
    ) as writer:
        for number in range(files):
            writer.add(entry(number, ManifestEntryStatus.ADDED))
        writer.existing(entry(100, ManifestEntryStatus.EXISTING, sequence_number=3, file_sequence_number=2))
        writer.delete(entry(101, ManifestEntryStatus.DELETED, sequence_number=3, file_sequence_number=2))
    manifest, location = writer.to_manifest_file(), str(folder / "list.avro")
    with write_manifest_list(version, IO.new_output(location), 77, None, 9, "deflate") as lists:
        lists.add_manifests([manifest])
    [listed] = read_manifest_list(IO.new_input(location))
    return location, listed


def entry(number: int, status: ManifestEntryStatus, **numbers: int) -> TheirEntry:
    of = {"snapshot_id": 77, "sequence_number": None, "file_sequence_number": None, **numbers}
    return TheirEntry.from_args(status=status, data_file=a_file(number), **of)


@pytest.mark.parametrize("version", [1, 2])
def test_lists_and_entries_are_those_that_pyiceberg_reads(tmp_path: Path, version: Version) -> None:
    location, theirs = write(tmp_path, version)
    [ours] = m.listed_manifests(FILES, location)
    assert ours == m.ListedManifest(
        path=theirs.manifest_path,
        length=theirs.manifest_length,
        spec_id=3,
        content=int(theirs.content or 0),
        sequence_number=theirs.sequence_number or 0,
        added_snapshot_id=77,
        added_files=5,
        existing_files=1,
    )
    fields = (m.CONTENT, m.FILE_PATH, m.FILE_FORMAT, m.PARTITION, m.RECORD_COUNT, m.FILE_SIZE, m.LOWER_BOUNDS)
    found = list(m.manifest_entries(FILES, ours, (*fields, m.COLUMN_SIZES, m.SPLIT_OFFSETS), deleted=True))
    expected = theirs.fetch_manifest_entry(IO, discard_deleted=False)
    assert len(found) == len(expected) == 7
    for mine, other in zip(found, expected, strict=True):
        assert mine[:4] == (
            other.status.value,
            other.snapshot_id,
            other.sequence_number,
            other.file_sequence_number,
        )
        file = other.data_file
        assert mine.file[m.FILE_PATH] == file.file_path
        assert mine.file[m.FILE_FORMAT] == file.file_format.value
        assert mine.file.get(m.CONTENT, 0) == int(file.content)
        assert list(mine.file[m.PARTITION].values()) == [file.partition[0], file.partition[1]]
        assert (mine.file[m.RECORD_COUNT], mine.file[m.FILE_SIZE]) == (
            file.record_count,
            file.file_size_in_bytes,
        )
        assert dict(mine.file[m.LOWER_BOUNDS]) == file.lower_bounds
        assert dict(mine.file[m.COLUMN_SIZES]) == {1: 80, 2: 90}
        assert mine.file[m.SPLIT_OFFSETS] == [4, 400]


def test_only_the_fields_asked_for_are_given(tmp_path: Path) -> None:
    location, _ = write(tmp_path, 2)
    [manifest] = m.listed_manifests(FILES, location)
    for found in m.manifest_entries(FILES, manifest):
        assert list(found.file) == [m.FILE_PATH]


def test_files_that_a_snapshot_removed_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    location, _ = write(tmp_path, 2)
    [manifest] = m.listed_manifests(FILES, location)
    live = [found.status for found in m.manifest_entries(FILES, manifest)]
    every = [found.status for found in m.manifest_entries(FILES, manifest, deleted=True)]
    assert live == [m.ADDED] * 5 + [m.EXISTING]
    assert every == [*live, m.DELETED]
    assert manifest.live_files == len(live)


def test_an_old_snapshot_names_its_manifests_itself(tmp_path: Path) -> None:
    location, theirs = write(tmp_path, 1)
    named = m.snapshot_manifests(FILES, {"snapshot-id": 77, "manifests": [theirs.manifest_path]})
    listed = m.snapshot_manifests(FILES, {"snapshot-id": 77, "manifest-list": location})
    [[one], [other]] = [list(manifests) for manifests in (named, listed)]
    assert list(m.manifest_entries(FILES, one)) == list(m.manifest_entries(FILES, other))
    assert one.live_files is None


def test_rows_are_numbered_from_the_manifests_own_number(tmp_path: Path) -> None:
    location, _ = write(tmp_path, 2)
    [manifest] = m.listed_manifests(FILES, location)
    numbered = manifest._replace(first_row_id=1_000)
    found = m.manifest_entries(FILES, numbered, (m.FIRST_ROW_ID,), deleted=True)
    # Files have 10, 11, ... records; what was deleted takes no number.
    assert [one.file[m.FIRST_ROW_ID] for one in found] == [1_000, 1_010, 1_021, 1_033, 1_046, 1_060, None]
    assert {one.file[m.FIRST_ROW_ID] for one in m.manifest_entries(FILES, manifest, (m.FIRST_ROW_ID,))} == {
        None
    }


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def scramble(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-32:] = bytes(255 - byte for byte in data[-32:])
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def compress(path: Path) -> None:
    path.write_bytes(gzip.compress(path.read_bytes()))


def other_records(path: Path) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": "long", "field-id": 1}]}
    with path.open("wb") as file:
        fastavro.writer(file, schema, [{"x": 1}])


def avro_field(id: int, name: str, type: Any) -> dict[str, Any]:
    return {"name": name, "type": type, "field-id": id}


def avro_record(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


PATH = avro_field(m.FILE_PATH, "file_path", ["null", "string"])
SIZE = avro_field(m.FILE_SIZE, "size", "long")
STATUS = avro_field(0, "status", "int")


@pytest.mark.parametrize(
    ("fields", "entry"),
    [
        ((STATUS, avro_field(2, "data_file", avro_record("f", SIZE))), {"data_file": {"size": 1}}),
        ((STATUS, avro_field(2, "data_file", avro_record("f", PATH))), {"data_file": {"file_path": None}}),
        ((STATUS, avro_field(2, "data_file", ["null", avro_record("f", PATH)])), {"data_file": None}),
        ((STATUS, avro_field(2, "data_file", "string")), {"data_file": "s3://lake/f"}),
        ((avro_field(2, "data_file", avro_record("f", PATH)),), {"data_file": {"file_path": "s3://lake/f"}}),
    ],
)
def test_a_manifest_whose_entries_name_no_files_is_named(
    tmp_path: Path, fields: tuple[dict[str, Any], ...], entry: dict[str, Any]
) -> None:
    manifest = tmp_path / "m.avro"
    with manifest.open("wb") as file:
        fastavro.writer(file, avro_record("entry", *fields), [{"status": 1, **entry}])
    with pytest.raises(UnreadableFileError, match=str(manifest)):
        list(m.manifest_entries(FILES, m.ListedManifest(str(manifest))))


def test_a_manifest_list_that_names_null_is_named(tmp_path: Path) -> None:
    listing = tmp_path / "list.avro"
    path = avro_field(500, "manifest_path", ["null", "string"])
    with listing.open("wb") as file:
        fastavro.writer(file, avro_record("manifest_file", path), [{"manifest_path": None}])
    with pytest.raises(UnreadableFileError, match=str(listing)):
        list(m.listed_manifests(FILES, str(listing)))


@pytest.mark.parametrize("damage", [cut, scramble, empty, compress, other_records])
def test_a_damaged_file_is_named(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    location, theirs = write(tmp_path, 2)
    [manifest] = m.listed_manifests(FILES, location)
    damage(Path(theirs.manifest_path))
    with pytest.raises(UnreadableFileError, match=r"m\.avro") as caught:
        list(m.manifest_entries(FILES, manifest))
    assert caught.value.location == theirs.manifest_path
    assert not isinstance(caught.value, MissingFileError)
    damage(Path(location))
    with pytest.raises(UnreadableFileError, match=r"list\.avro"):
        list(m.listed_manifests(FILES, location))


def test_a_missing_file_raises_its_own_error_with_the_location(tmp_path: Path) -> None:
    location, theirs = write(tmp_path, 2)
    [manifest] = m.listed_manifests(FILES, location)
    Path(theirs.manifest_path).unlink()
    for missing in (manifest, manifest._replace(path=f"file://{tmp_path}/other.avro")):
        with pytest.raises(MissingFileError) as caught:
            list(m.manifest_entries(FILES, missing))
        assert caught.value.location == missing.path
    with pytest.raises(UnreadableFileError, match="regular"):
        list(m.listed_manifests(FILES, str(tmp_path)))
    with pytest.raises(UnreadableFileError, match="nowhere"):
        list(m.listed_manifests(FILES, "nowhere://x/y.avro"))


def test_a_file_is_read_through_the_file_io_of_its_place(tmp_path: Path) -> None:
    location, theirs = write(tmp_path, 2)
    remote = Files({"py-io-impl": f"{__name__}.{Elsewhere.__name__}"})
    assert list(m.listed_manifests(remote, f"elsewhere://{location}")) == list(
        m.listed_manifests(FILES, location)
    )
    manifest = m.ListedManifest(f"elsewhere://{theirs.manifest_path}")
    assert len(list(m.manifest_entries(remote, manifest))) == 6
    with pytest.raises(MissingFileError):
        list(m.listed_manifests(remote, f"elsewhere://{location}.no"))


def test_memory_does_not_grow_with_a_manifest(tmp_path: Path) -> None:
    location, theirs = write(tmp_path, 2)
    path = Path(theirs.manifest_path)
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        schema: Any = reader.writer_schema
        records = list(reader)
    [manifest] = m.listed_manifests(FILES, location)
    peaks = []
    for times in (100, 1_000):
        with path.open("wb") as file:
            fastavro.writer(file, schema, (r for _ in range(times) for r in records), codec="deflate")
        tracemalloc.start()
        assert sum(1 for _ in m.manifest_entries(FILES, manifest, deleted=True)) == 7 * times
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0]
