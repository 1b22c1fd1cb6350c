"""The rows that hold tables and views: small objects that point to immutable pieces of JSON text.

A piece keeps the text that it came with, so a load concatenates texts, and fields that this release does not
know survive. A table's row names its schemas, specs and sort orders directly, and its snapshots and
statistics through indexes, so neither grows with the table's history; many refs or properties are in indexes as well
(`metadata.overflow`). (Specification:
https://iceberg.apache.org/spec/#table-metadata, https://iceberg.apache.org/view-spec/).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol, TypeVar

import msgspec

from polaris_spark.catalog.metadata.versions import DEFAULT_FORMAT_VERSION, VIEW_FORMAT_VERSION
from polaris_spark.errors import CorruptionError
from polaris_spark.index import IndexRoot, Shard
from polaris_spark.objects import Strong, object_type

S = TypeVar("S", bound=msgspec.Struct)


class Piece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A part of some metadata, as compact JSON text."""

    text: bytes


@object_type("schema", revision=1)
class Schema(Piece, frozen=True, array_like=True, gc=False):
    """One schema of a table or view."""


@object_type("partition-spec", revision=1)
class PartitionSpec(Piece, frozen=True, array_like=True, gc=False):
    """One partition spec."""


@object_type("sort-order", revision=1)
class SortOrder(Piece, frozen=True, array_like=True, gc=False):
    """One sort order."""


@object_type("snapshot", revision=1)
class Snapshot(Piece, frozen=True, array_like=True, gc=False):
    """One snapshot."""


@object_type("statistics", revision=1)
class Statistics(Piece, frozen=True, array_like=True, gc=False):
    """One statistics file."""


@object_type("partition-statistics", revision=1)
class PartitionStatistics(Piece, frozen=True, array_like=True, gc=False):
    """One partition statistics file."""


@object_type("view-version", revision=1)
class ViewVersion(Piece, frozen=True, array_like=True, gc=False):
    """One version of a view."""


@object_type("log", revision=1)
class LogItems(Piece, frozen=True, array_like=True, gc=False):
    """Consecutive items of a log, joined by `logs.SEPARATOR`."""


class Numbered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A piece that metadata names by a number: schema, spec, sort order or view version."""

    id: int
    piece: Strong


class Ref(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A branch or tag of a table: its JSON text, and the snapshot that it names."""

    name: str
    snapshot_id: int
    text: bytes
    order: int
    """Position of the snapshot among all: the sort key of the `snapshots` array."""
    snapshot: Strong


class LogSegment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some consecutive items of a log that are held in a piece."""

    items: int
    piece: Strong


class Log(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A log: older items in pieces, the newest inline; the first `skip` items of the first piece are gone."""

    segments: tuple[LogSegment, ...] = ()
    skip: int = 0
    tail: tuple[bytes, ...] = ()


class Overflow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Refs or properties of a table that its row does not embed (`metadata.overflow`)."""

    index: IndexRoot
    count: int
    """Entries of the index."""
    size: int
    """Bytes of their names and values."""


@object_type("table", revision=3, appended=(("unconfirmed",), ("more_refs", "more_properties")))
class Table(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """An Iceberg table; names follow the specification's fields. Times are milliseconds since 1970 UTC."""

    entity_id: int
    uuid: str
    format_version: int
    location: str
    """Without a trailing slash; empty where a version 4 table has none."""
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
    """Position that the next piece put into one of the three indexes takes in its array."""
    encryption_keys: tuple[tuple[str, bytes], ...]
    """Key ids with their JSON texts."""
    snapshot_log: Log
    metadata_log: Log
    metadata_location: str
    extra: bytes
    """Unknown top-level fields as JSON text to be appended: empty, or `,"name":value...`."""
    snapshot_log_gaps: bool = False
    """Whether the snapshot log names snapshots that the imported metadata did not hold."""
    unconfirmed: tuple[str, ...] = ()
    """Locations that imported metadata names outside its own folder; the table reads them and does not own them
    (`catalog.ownership`)."""
    more_refs: Overflow | None = None
    """Refs besides those in `refs`: all but the branch `main`. None where `refs` holds all."""
    more_properties: Overflow | None = None
    """Properties besides those in `properties` (`overflow.stays_in_row`). None where `properties` holds all."""


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
"""What a table is built from."""


@object_type("view", revision=2, appended=(("unconfirmed",),))
class View(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """An Iceberg view; names follow the view specification's fields."""

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
    """As for tables."""


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
"""What a view is built from."""


class ObjectReader(Protocol):
    """Where drafts and renderers read immutable objects; `store` and in-memory dictionaries serve alike."""

    def get(self, id: int, cls: type[S]) -> S:
        """The object with this id.

        Raises:
            CorruptionError: it is missing, or of another type.
        """

    def get_many(self, ids: Collection[int], cls: type[S]) -> Mapping[int, S]:
        """Several objects of one type, by id."""

    def prefetch(self, ids: Collection[int]) -> None:
        """Objects of any types will be asked for: one read for all of them, where reads take time."""

    @property
    def read_shards(self) -> Callable[[Collection[int]], Mapping[int, Shard]]:
        """Reads shards of an index, by id."""


NewId = Callable[[], int]
"""Issues the id of a new object."""

NewRows = list[tuple[int, msgspec.Struct]]
"""New objects with their ids, in any order."""


class NoObjects:
    """The reader of drafts that are built from nothing."""

    def get(self, id: int, cls: type[S]) -> S:
        """There is none."""
        raise CorruptionError(f"object {id} of type {cls.__name__} is read by a draft that has no objects")

    def get_many(self, ids: Collection[int], cls: type[S]) -> Mapping[int, S]:
        """None of them is there."""
        return {id: self.get(id, cls) for id in ids}

    def prefetch(self, ids: Collection[int]) -> None:
        """There is nothing to read."""

    def read_shards(self, ids: Collection[int]) -> Mapping[int, Shard]:
        """None of them is there."""
        raise CorruptionError(f"shards {sorted(ids)} are read by a draft that has no objects")


NO_OBJECTS = NoObjects()


class WithNew:
    """A reader that knows new objects before they are written."""

    def __init__(self, reader: ObjectReader, rows: NewRows) -> None:
        self._reader = reader
        self._new = dict(rows)
        self.read_shards = reader.read_shards

    def get(self, id: int, cls: type[S]) -> S:
        """The new or written object with this id."""
        found = self._new.get(id)
        return found if isinstance(found, cls) else self._reader.get(id, cls)

    def get_many(self, ids: Collection[int], cls: type[S]) -> Mapping[int, S]:
        """Several new or written objects."""
        return {id: self.get(id, cls) for id in ids}

    def prefetch(self, ids: Collection[int]) -> None:
        """Read those that are not new."""
        self._reader.prefetch([id for id in ids if id not in self._new])
