"""Columns of the system view `files`. They have the same names as in Iceberg's metadata tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
)

from polaris_spark.catalog.manifests import manifest_entries as m
from polaris_spark.catalog.manifests.manifest_entries import ListedManifest, ManifestEntry
from polaris_spark.spark.views.columns import BINARY, INT, LONG, LONGS, STRING, STRINGS, ViewColumn
from polaris_spark.spark.views.entities import IDENTITY, EntityEntry

CONTENTS = {
    m.DATA: "data",
    m.POSITION_DELETES: "position-deletes",
    m.EQUALITY_DELETES: "equality-deletes",
}
"""Names of the file contents in the REST protocol, by the number that Iceberg's manifests contain."""

ENTRY = "entry"
"""Value of `ViewColumn.needs` for columns that need the manifest entry, but no field of the data file in it."""

_INT_LONG = MapType(IntegerType(), LongType(), valueContainsNull=False)
_INT_BINARY = MapType(IntegerType(), BinaryType(), valueContainsNull=False)
_INTS = ArrayType(IntegerType(), containsNull=False)
_PARTITION = MapType(StringType(), StringType(), valueContainsNull=True)


class FileRow(NamedTuple):
    """A file. If `error` is set, the row stands for an unreadable manifest or manifest list instead of its files."""

    entry: EntityEntry
    snapshot_id: int | None
    refs: list[str] | None
    manifest: ListedManifest | None = None
    item: ManifestEntry | None = None
    """The manifest entry; None if no column needs it, or if `error` is set."""
    partition: list[tuple[str, str | None]] | None = None
    error: str | None = None


def _file(
    name: str, type: DataType, comment: str, field: int, of: Callable[[Any], Any] = lambda value: value
) -> ViewColumn[FileRow]:
    """Return a column that shows the field of the data file with the Iceberg field id `field`, converted by `of`."""

    def value(row: FileRow) -> Any:
        found = row.item.file.get(field) if row.item else None
        return None if found is None else of(found)

    return ViewColumn(name, type, comment, value, str(field))


def _of_manifest(
    name: str, type: DataType, comment: str, of: Callable[[ListedManifest], Any]
) -> ViewColumn[FileRow]:
    return ViewColumn(name, type, comment, lambda row: of(row.manifest) if row.manifest else None, "")


def _of_entry(
    name: str, type: DataType, comment: str, of: Callable[[ManifestEntry], Any]
) -> ViewColumn[FileRow]:
    return ViewColumn(name, type, comment, lambda row: of(row.item) if row.item else None, ENTRY)


def _content(row: FileRow) -> str | None:
    # Manifests of version 1 do not contain this field.
    return CONTENTS.get(row.item.file.get(m.CONTENT) or m.DATA) if row.item else None


FILE_COLUMNS: tuple[ViewColumn[Any], ...] = (
    *IDENTITY,
    ViewColumn(
        "snapshot_id",
        LONG,
        "Snapshot of the table that the file belongs to; null with snapshots=all",
        lambda row: row.snapshot_id,
        "",
    ),
    ViewColumn(
        "refs",
        STRINGS,
        "Branches and tags of the table that name that snapshot; null with snapshots=all",
        lambda row: row.refs,
        "",
    ),
    ViewColumn("content", STRING, "data, position-deletes or equality-deletes", _content, str(m.CONTENT)),
    _file("file_path", STRING, "Location of the file", m.FILE_PATH),
    _file(
        "file_format",
        STRING,
        "PARQUET, ORC, AVRO, or PUFFIN for deletion vectors",
        m.FILE_FORMAT,
        str.upper,
    ),
    _of_manifest(
        "spec_id", INT, "Partition spec with which the file was written", lambda found: found.spec_id
    ),
    ViewColumn(
        "partition",
        _PARTITION,
        "Partition values by the names of the spec's fields, as in the names of folders: 2026-01-31 for a day",
        lambda row: row.partition,
        str(m.PARTITION),
    ),
    _file(
        "record_count", LONG, "Number of records in the file, or of deletes in a delete file", m.RECORD_COUNT
    ),
    _file(
        "file_size_in_bytes",
        LONG,
        "Size of the whole file in bytes; a file may contain several deletion vectors",
        m.FILE_SIZE,
    ),
    _file("sort_order_id", INT, "Sort order of its records", m.SORT_ORDER_ID),
    _of_entry(
        "sequence_number",
        LONG,
        "Data sequence number: deletes apply to data files with lower numbers; 0 in tables of version 1",
        lambda item: item.sequence_number,
    ),
    _of_entry(
        "file_sequence_number",
        LONG,
        "Sequence number of the snapshot that added the file",
        lambda item: item.file_sequence_number,
    ),
    _of_entry("added_snapshot_id", LONG, "Snapshot that added the file", lambda item: item.snapshot_id),
    _of_manifest("manifest_path", STRING, "Manifest that names the file", lambda found: found.path),
    _file("column_sizes", _INT_LONG, "Size in bytes by column id", m.COLUMN_SIZES),
    _file(
        "value_counts", _INT_LONG, "Number of values by column id, including nulls and NaNs", m.VALUE_COUNTS
    ),
    _file("null_value_counts", _INT_LONG, "Number of nulls by column id", m.NULL_VALUE_COUNTS),
    _file("nan_value_counts", _INT_LONG, "Number of NaNs by column id", m.NAN_VALUE_COUNTS),
    _file("lower_bounds", _INT_BINARY, "Lower bounds by column id, in Iceberg's encoding", m.LOWER_BOUNDS),
    _file("upper_bounds", _INT_BINARY, "Upper bounds by column id, in Iceberg's encoding", m.UPPER_BOUNDS),
    _file(
        "key_metadata",
        BINARY,
        "Key metadata for decryption; null if the file is not encrypted",
        m.KEY_METADATA,
    ),
    _file("split_offsets", LONGS, "Positions at which readers may split the file, in bytes", m.SPLIT_OFFSETS),
    _file("equality_ids", _INTS, "Columns that equality deletes compare", m.EQUALITY_IDS),
    _file("first_row_id", LONG, "Row id of its first record, since format version 3", m.FIRST_ROW_ID),
    _file(
        "referenced_data_file",
        STRING,
        "Data file to which all its deletes apply, if there is only one",
        m.REFERENCED_DATA_FILE,
    ),
    _file("content_offset", LONG, "Position of a deletion vector in its file, in bytes", m.CONTENT_OFFSET),
    _file("content_size_in_bytes", LONG, "Size of a deletion vector in bytes", m.CONTENT_SIZE),
    ViewColumn(
        "error",
        STRING,
        "With unreadable=report: the manifest or list that cannot be read, and why; the row then represents its "
        "files",
        lambda row: row.error,
        ENTRY,
    ),
)
"""All columns of the view `files`."""
