"""The rows that hold tables and views: small objects that point to immutable pieces of JSON text.

A piece keeps its original text, so loading a table concatenates texts, and fields unknown to this release are kept. A
table's row points to its schemas, specs and sort orders directly, and to its snapshots and statistics through indexes,
so that the row does not grow with the table's history. Large refs or properties are in indexes as well
(`metadata.overflow`). (Specification: https://iceberg.apache.org/spec/#table-metadata,
https://iceberg.apache.org/view-spec/).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol, TypeVar

import msgspec

from polaris_spark.errors import CorruptionError
from polaris_spark.index import IndexRoot, Shard
from polaris_spark.objects import Strong, object_type

DEFAULT_FORMAT_VERSION = 2
"""Format version of a new table."""
SUPPORTED_FORMAT_VERSION = 4
"""Newest supported format version of tables, as in Iceberg 1.12."""
ROW_LINEAGE_VERSION = 3
"""First format version whose snapshots have row ids."""
OPTIONAL_LOCATION_VERSION = 4
"""First format version in which a table may have no location."""

VIEW_FORMAT_VERSION = 1
"""The only format version of views."""

S = TypeVar("S", bound=msgspec.Struct)

MATERIALIZED: Final = "materialized_view_metadata"
"""Property of materialized views (`catalog.entities.materialized_views`)."""


class Piece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A part of the metadata of a table or view, as compact JSON text."""

    text: bytes


@object_type("schema", revision=1)
class Schema(Piece, frozen=True, array_like=True, gc=False):
    """One schema of a table or view, as JSON text."""


@object_type("partition-spec", revision=1)
class PartitionSpec(Piece, frozen=True, array_like=True, gc=False):
    """One partition spec of a table, as JSON text."""


@object_type("sort-order", revision=1)
class SortOrder(Piece, frozen=True, array_like=True, gc=False):
    """One sort order of a table, as JSON text."""


@object_type("snapshot", revision=1)
class Snapshot(Piece, frozen=True, array_like=True, gc=False):
    """One snapshot of a table, as JSON text."""


@object_type("statistics", revision=1)
class Statistics(Piece, frozen=True, array_like=True, gc=False):
    """The metadata of one statistics file, as JSON text."""


@object_type("partition-statistics", revision=1)
class PartitionStatistics(Piece, frozen=True, array_like=True, gc=False):
    """The metadata of one partition statistics file, as JSON text."""


@object_type("view-version", revision=1)
class ViewVersion(Piece, frozen=True, array_like=True, gc=False):
    """One version of a view, as JSON text."""


@object_type("log", revision=1)
class LogItems(Piece, frozen=True, array_like=True, gc=False):
    """Consecutive items of a log of a table or view, joined by `logs.SEPARATOR`."""


class Numbered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The id and the pointer of a piece that has an id in the metadata: schema, spec, sort order or view version."""

    id: int
    piece: Strong


class Ref(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A branch or tag of a table: its JSON text, and the id and pointer of its snapshot."""

    name: str
    snapshot_id: int
    text: bytes
    order: int
    """Sort key of the snapshot in the JSON array `snapshots` of the metadata."""
    snapshot: Strong


class LogSegment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive items of a log that are in one piece: their number, and the pointer to the piece."""

    items: int
    piece: Strong


class Log(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A log of JSON items: older items in pieces (`segments`), the newest items inline (`tail`).

    The first `skip` items of the first piece are no longer part of the log.
    """

    segments: tuple[LogSegment, ...] = ()
    skip: int = 0
    tail: tuple[bytes, ...] = ()


class Overflow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The index of the refs or properties of a table that its row does not embed (`metadata.overflow`)."""

    index: IndexRoot
    count: int
    """Number of entries in the index."""
    size: int
    """Size of the names and values in the index, in bytes."""


@object_type("table", revision=3, appended=(("unconfirmed",), ("more_refs", "more_properties")))
class Table(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """The row of an Iceberg table. Its fields are named like those of the specification. Times are milliseconds since
    1970 UTC."""

    entity_id: int
    uuid: str
    format_version: int
    location: str
    """Location without a trailing slash; empty if a version 4 table has no location."""
    last_updated_ms: int
    last_sequence_number: int
    last_column_id: int
    current_schema_id: int
    default_spec_id: int
    last_partition_id: int
    default_sort_order_id: int
    current_snapshot_id: int | None
    next_row_id: int
    properties: dict[str, str]
    refs: tuple[Ref, ...]
    schemas: tuple[Numbered, ...]
    specs: tuple[Numbered, ...]
    sort_orders: tuple[Numbered, ...]
    snapshots: IndexRoot
    statistics: IndexRoot
    partition_statistics: IndexRoot
    next_order: int
    """Sort key that the next added snapshot or statistics file gets. The arrays `snapshots`, `statistics` and
    `partition-statistics` of the metadata are sorted by it."""
    encryption_keys: tuple[tuple[str, bytes], ...]
    """The id and the JSON text of each encryption key."""
    snapshot_log: Log
    metadata_log: Log
    metadata_location: str
    extra: bytes
    """Top-level fields of the metadata that are unknown to this release, as JSON text: empty, or `,"name":value...`."""
    snapshot_log_gaps: bool = False
    """Whether the snapshot log contains ids of snapshots that were already missing in the imported metadata."""
    unconfirmed: tuple[str, ...] = ()
    """Locations in the imported metadata where the table reads and writes, but which it does not own
    (`catalog.files.ownership`), such as locations outside the folder of its metadata file."""
    more_refs: Overflow | None = None
    """Index of the refs that are not in `refs`: all except the branch `main`. None if `refs` holds all refs."""
    more_properties: Overflow | None = None
    """Index of the properties that are not in `properties` (`overflow.stays_in_row`). None if there
    are none."""


EMPTY_TABLE = Table(
    entity_id=0,
    uuid="",
    format_version=DEFAULT_FORMAT_VERSION,
    location="",
    last_updated_ms=0,
    last_sequence_number=0,
    last_column_id=0,
    current_schema_id=0,
    default_spec_id=0,
    last_partition_id=0,
    default_sort_order_id=0,
    current_snapshot_id=None,
    next_row_id=0,
    properties={},
    refs=(),
    schemas=(),
    specs=(),
    sort_orders=(),
    snapshots=IndexRoot(),
    statistics=IndexRoot(),
    partition_statistics=IndexRoot(),
    next_order=0,
    encryption_keys=(),
    snapshot_log=Log(),
    metadata_log=Log(),
    metadata_location="",
    extra=b"",
)
"""Initial values of a new table."""


@object_type("view", revision=3, appended=(("unconfirmed",), ("definer",)))
class View(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """The row of an Iceberg view. Its fields are named like those of the view specification."""

    entity_id: int
    uuid: str
    format_version: int
    location: str
    current_version_id: int
    properties: dict[str, str]
    schemas: tuple[Numbered, ...]
    versions: tuple[Numbered, ...]
    version_log: Log
    metadata_location: str
    extra: bytes
    unconfirmed: tuple[str, ...] = ()
    """Locations in the imported metadata that the view does not own (`catalog.files.ownership`), such as locations
    outside the folder of its metadata file."""
    definer: str = ""
    """Principal that made the current version, in a realm with access control. Principals that may read the view can
    read through it everything that this principal may read (`catalog.materialized.view_chains`). Empty if it is not
    known."""


EMPTY_VIEW = View(
    entity_id=0,
    uuid="",
    format_version=VIEW_FORMAT_VERSION,
    location="",
    current_version_id=0,
    properties={},
    schemas=(),
    versions=(),
    version_log=Log(),
    metadata_location="",
    extra=b"",
)
"""Initial values of a new view."""


class ObjectReader(Protocol):
    """Reader of stored immutable objects. Implementations read from a store or from a dictionary in memory."""

    def get(self, id: int, cls: type[S]) -> S:
        """Return the object with this id.

        Raises:
            CorruptionError: the object is missing, or has another type.
        """

    def get_many(self, ids: Collection[int], cls: type[S]) -> Mapping[int, S]:
        """Return several objects of one type, by id."""

    def prefetch(self, ids: Collection[int]) -> None:
        """Prepare for reads of these objects, which may have different types.

        A reader whose single reads are slow, such as the reader of a database, reads all of the objects now, in one
        request.
        """

    @property
    def read_shards(self) -> Callable[[Collection[int]], Mapping[int, Shard]]:
        """A function that reads shards of an index and returns them by id."""


NewId = Callable[[], int]
"""A function that returns a new object id at each call."""

NewRows = list[tuple[int, msgspec.Struct]]
"""(id, object) of each new object that is to be written, in any order."""


class NoObjects:
    """The `ObjectReader` for drafts of new tables and views, which have no stored objects."""

    def get(self, id: int, cls: type[S]) -> S:
        """Raise CorruptionError, because there are no objects."""
        raise CorruptionError(
            f"a new table or view refers to the stored object {id} ({cls.__name__}), but it has no stored objects yet; "
            "this is a bug, please report it"
        )

    def get_many(self, ids: Collection[int], cls: type[S]) -> Mapping[int, S]:
        """Raise CorruptionError, unless `ids` is empty."""
        return {id: self.get(id, cls) for id in ids}

    def prefetch(self, ids: Collection[int]) -> None:
        """Do nothing, because there are no objects to read."""

    def read_shards(self, ids: Collection[int]) -> Mapping[int, Shard]:
        """Raise CorruptionError, because there are no shards."""
        raise CorruptionError(
            f"a new table or view refers to the stored shards {sorted(ids)}, but it has no stored objects yet; this is "
            "a bug, please report it"
        )


NO_OBJECTS = NoObjects()


class WithNew:
    """An `ObjectReader` that also returns new objects that are not written yet."""

    def __init__(self, reader: ObjectReader, rows: NewRows) -> None:
        self._reader = reader
        self._new = dict(rows)
        self.read_shards = reader.read_shards

    def get(self, id: int, cls: type[S]) -> S:
        """Return the object with this id, whether it is new or already written."""
        found = self._new.get(id)
        return found if isinstance(found, cls) else self._reader.get(id, cls)

    def get_many(self, ids: Collection[int], cls: type[S]) -> Mapping[int, S]:
        """Return several objects of one type by id, whether they are new or already written."""
        return {id: self.get(id, cls) for id in ids}

    def prefetch(self, ids: Collection[int]) -> None:
        """Call `prefetch` of the underlying reader for the objects that are not new."""
        self._reader.prefetch([id for id in ids if id not in self._new])
