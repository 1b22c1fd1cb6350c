"""Reads the manifest list of a snapshot, its manifests, and their entries, as streams.

The system view `files`, the expiry of snapshots and the search for orphan files use this module. Reading a manifest of
any size takes the memory of one block, about 64 kB uncompressed if Iceberg's Java library wrote the manifest
(specification: https://iceberg.apache.org/spec/#manifests).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from polaris_spark.catalog.files.files import Files
from polaris_spark.catalog.manifests import manifest_lists
from polaris_spark.catalog.manifests.avro_files import AvroFile, open_avro
from polaris_spark.errors import UnreadableFileError

EXISTING, ADDED, DELETED = 0, 1, 2
"""Values of `ManifestEntry.status`."""

DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
"""Values of the field `CONTENT` of a file. Deletion vectors have the value `POSITION_DELETES`; they are in Puffin
files."""

DATA_MANIFEST, DELETE_MANIFEST = 0, 1
"""Values of `ListedManifest.content`."""

CONTENT = 134
FILE_PATH = 100
FILE_FORMAT = 101
PARTITION = 102
RECORD_COUNT = 103
FILE_SIZE = 104
COLUMN_SIZES = 108
VALUE_COUNTS = 109
NULL_VALUE_COUNTS = 110
NAN_VALUE_COUNTS = 137
LOWER_BOUNDS = 125
UPPER_BOUNDS = 128
KEY_METADATA = 131
SPLIT_OFFSETS = 132
EQUALITY_IDS = 135
SORT_ORDER_ID = 140
FIRST_ROW_ID = 142
REFERENCED_DATA_FILE = 143
CONTENT_OFFSET = 144
CONTENT_SIZE = 145

_STATUS, _SNAPSHOT_ID, _DATA_FILE, _SEQUENCE_NUMBER, _FILE_SEQUENCE_NUMBER = 0, 1, 2, 3, 4
_LENGTH, _EXISTING_COUNT, _ADDED_COUNT = 501, 505, 504


class ListedManifest(NamedTuple):
    """A manifest, as described by its entry in a manifest list. Counts are None if the entry lacks them."""

    path: str
    length: int = 0
    """Size in bytes; 0 if unknown."""
    spec_id: int = 0
    content: int = DATA_MANIFEST
    sequence_number: int = 0
    added_snapshot_id: int | None = None
    added_files: int | None = None
    existing_files: int | None = None
    first_row_id: int | None = None

    @property
    def live_files(self) -> int | None:
        """Number of entries with status `ADDED` or `EXISTING`; None if the manifest list lacks these counts."""
        if self.added_files is None or self.existing_files is None:
            return None
        return self.added_files + self.existing_files


class ManifestEntry(NamedTuple):
    """An entry of a manifest, including the values that it inherits from the manifest list. `file` maps the ids of the
    requested fields of the file to their values."""

    status: int
    snapshot_id: int | None
    """Id of the snapshot that added or deleted the file."""
    sequence_number: int | None
    file_sequence_number: int | None
    file: dict[int, Any]


def listed_manifests(files: Files, location: str) -> Iterator[ListedManifest]:
    """Yield the manifests of a manifest list, in the order of the list.

    Raises:
        MissingFileError: the file does not exist.
        UnreadableFileError: the file cannot be read, or is not a manifest list.
    """
    with open_avro(files, location) as avro:
        _require(avro, manifest_lists.PATH, location, "manifest list")
        for record in avro.records(dict.fromkeys(_LIST_FIELDS)):
            if not isinstance(record[manifest_lists.PATH], str):
                raise UnreadableFileError(
                    f"{location!r} has an entry without a manifest path", location=location
                )
            yield ListedManifest(
                record[manifest_lists.PATH],
                record.get(_LENGTH) or 0,
                record.get(manifest_lists.SPEC_ID) or 0,
                record.get(manifest_lists.CONTENT) or DATA_MANIFEST,
                record.get(manifest_lists.SEQUENCE_NUMBER) or 0,
                record.get(manifest_lists.ADDED_SNAPSHOT_ID),
                record.get(_ADDED_COUNT),
                record.get(_EXISTING_COUNT),
                record.get(manifest_lists.FIRST_ROW_ID),
            )


def snapshot_manifests(files: Files, snapshot: Mapping[str, Any]) -> Iterator[ListedManifest]:
    """Yield the manifests of a snapshot.

    Args:
        snapshot: the snapshot as in the JSON of a table's metadata. In old tables, it may have a list of manifests
            instead of the location of a manifest list.
    Raises:
        MissingFileError: the manifest list does not exist.
        UnreadableFileError: the manifest list cannot be read.
    """
    listed = snapshot.get("manifest-list")
    if listed:
        yield from listed_manifests(files, listed)
    else:
        id = snapshot.get("snapshot-id")
        for path in snapshot.get("manifests") or ():
            yield ListedManifest(path, added_snapshot_id=id)


class OpenManifest:
    """A manifest that is being read."""

    def __init__(self, manifest: ListedManifest, avro: AvroFile) -> None:
        self._manifest = manifest
        self._avro = avro

    @property
    def metadata(self) -> Mapping[str, str]:
        """Key-value metadata of the file, including `schema`, `partition-spec` and `partition-spec-id`."""
        return self._avro.metadata

    @property
    def partition_fields(self) -> list[Mapping[str, Any]]:
        """Fields of the manifest's partition tuples, in the form of an Avro schema."""
        data_file = self._avro.fields[_DATA_FILE]["type"]
        [partition] = [f for f in data_file["fields"] if f.get("field-id") == PARTITION]
        fields: list[Mapping[str, Any]] = partition["type"]["fields"]
        return fields

    def entries(self, fields: Collection[int], *, deleted: bool = False) -> Iterator[ManifestEntry]:
        """Yield the entries of the manifest. They can be read only once.

        Args:
            fields: ids of the fields of files to read, such as `FILE_PATH`; other fields are not decoded.
            deleted: whether to yield also the entries with status `DELETED`, which stand for files that the snapshot
                removed.
        Raises:
            UnreadableFileError: the manifest is damaged, or an entry has no file path.
        """
        inherited, row_ids = self._manifest, _RowIds(self._manifest.first_row_id)
        numbers_rows, has_path = FIRST_ROW_ID in fields, FILE_PATH in fields
        inner = {*fields, RECORD_COUNT} if numbers_rows else fields
        for record in self._avro.records({**_ENTRY_FIELDS, _DATA_FILE: inner}):
            status, file = record[_STATUS], record[_DATA_FILE]
            if not isinstance(file, dict) or (has_path and not isinstance(file.get(FILE_PATH), str)):
                raise UnreadableFileError(
                    f"{inherited.path!r} has an entry without a file path", location=inherited.path
                )
            if status == DELETED and not deleted:
                continue
            if numbers_rows:
                file[FIRST_ROW_ID] = row_ids.of(status, file)
            # Added files without a sequence number inherit that of the manifest. In tables of version 1, all files do,
            # and the number is 0.
            own = inherited.sequence_number
            default = own if status == ADDED or own == 0 else None
            snapshot = record.get(_SNAPSHOT_ID)
            sequence, file_sequence = record.get(_SEQUENCE_NUMBER), record.get(_FILE_SEQUENCE_NUMBER)
            yield ManifestEntry(
                status,
                inherited.added_snapshot_id if snapshot is None else snapshot,
                default if sequence is None else sequence,
                default if file_sequence is None else file_sequence,
                file,
            )


@contextmanager
def open_manifest(files: Files, manifest: ListedManifest) -> Iterator[OpenManifest]:
    """Open a manifest.

    Raises:
        MissingFileError: the file does not exist.
        UnreadableFileError: the file cannot be read, or is not a manifest.
    """
    with open_avro(files, manifest.path) as avro:
        for field in (_STATUS, _DATA_FILE):
            _require(avro, field, manifest.path, "manifest")
        yield OpenManifest(manifest, avro)


def manifest_entries(
    files: Files, manifest: ListedManifest, fields: Collection[int] = (FILE_PATH,), *, deleted: bool = False
) -> Iterator[ManifestEntry]:
    """Open a manifest and yield its entries.

    Args:
        fields: ids of the fields of files to read.
        deleted: whether to yield also entries with status `DELETED`.
    Raises:
        MissingFileError: the manifest does not exist.
        UnreadableFileError: the manifest cannot be read, or is damaged.
    """
    with open_manifest(files, manifest) as opened:
        yield from opened.entries(fields, deleted=deleted)


class _RowIds:
    """Computes the first row id of each file in a manifest. Files whose entries have no first row id get consecutive
    ranges of row ids, beginning at the manifest's first row id.

    Specification: https://iceberg.apache.org/spec/#first-row-id-inheritance.
    """

    def __init__(self, first: int | None) -> None:
        self._next = first

    def of(self, status: int, file: Mapping[int, Any]) -> int | None:
        """Return the first row id of the file in the next entry; None if the file has no row ids. Call this once for
        each entry, in the order of the manifest.

        Args:
            status: status of the entry.
            file: fields of the file, by field id.
        """
        own: int | None = file.get(FIRST_ROW_ID)
        if self._next is None:
            return None
        if own is not None or status == DELETED:
            return own
        first, self._next = self._next, self._next + file[RECORD_COUNT]
        return first


_LIST_FIELDS = (
    manifest_lists.PATH,
    _LENGTH,
    manifest_lists.SPEC_ID,
    manifest_lists.CONTENT,
    manifest_lists.SEQUENCE_NUMBER,
    manifest_lists.ADDED_SNAPSHOT_ID,
    _ADDED_COUNT,
    _EXISTING_COUNT,
    manifest_lists.FIRST_ROW_ID,
)
_ENTRY_FIELDS = dict.fromkeys((_STATUS, _SNAPSHOT_ID, _SEQUENCE_NUMBER, _FILE_SEQUENCE_NUMBER))


def _require(avro: AvroFile, field: int, location: str, what: str) -> None:
    if field not in avro.fields:
        raise UnreadableFileError(
            f"{location!r} is not a {what}: it has no field with the id {field}", location=location
        )
