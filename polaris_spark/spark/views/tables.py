"""The system view `tables`: one row for each Iceberg table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from pyspark.sql.types import LongType, MapType, StringType

from polaris_spark.access.needs import Need, On
from polaris_spark.catalog.metadata.overflow import all_properties, all_refs, current_piece
from polaris_spark.catalog.metadata.rows import (
    EMPTY_TABLE,
    Numbered,
    PartitionSpec,
    Ref,
    Schema,
    Snapshot,
    SortOrder,
    Table,
)
from polaris_spark.catalog.rows import TABLE, Unloaded
from polaris_spark.catalog.tables.summaries import number_in
from polaris_spark.commits.state import StoredObjects
from polaris_spark.index import Index, IndexRoot
from polaris_spark.spark.views.columns import (
    INT,
    LONG,
    STRING,
    STRING_MAP,
    STRINGS,
    TIMESTAMP,
    ViewColumn,
    field_names,
    micros,
    pairs,
    text_bytes,
)
from polaris_spark.spark.views.entities import (
    IDENTITY,
    EntityEntry,
    EntityView,
    by_id,
    of_loaded,
    with_loaded,
)
from polaris_spark.store.objects import ObjectStore

_SCHEMA, _SPEC, _ORDER, _SNAPSHOT, _COUNT = "schema", "spec", "order", "snapshot", "count"
_REFS, _PROPERTIES = "refs", "properties"


class _Summary(msgspec.Struct, rename="kebab"):
    timestamp_ms: int | None = None
    summary: dict[str, Any] | None = None


_summary = msgspec.json.Decoder(_Summary).decode


class TableRow(NamedTuple):
    """A table, with those parts of its metadata that the requested columns need."""

    entry: EntityEntry
    table: Table
    schema: bytes
    spec: bytes
    order: bytes
    snapshot: _Summary | None
    snapshots: int
    refs: tuple[Ref, ...] = ()
    properties: Mapping[str, str] = {}
    """Properties of the table. `properties` and `refs` include entries that are stored outside the table's own
    object."""
    unloaded: Unloaded | None = None
    """Stored data of a table that was imported lazily and is not loaded yet; None for other tables. If set, the other
    fields except `entry` are meaningless."""

    def total(self, name: str) -> int | None:
        """Return a number, such as `total-records`, from the current snapshot's summary; None if it is missing."""
        summary = self.snapshot.summary if self.snapshot else None
        return number_in(summary or {}, name)


class Tables(EntityView[TableRow]):
    """A system view with one row for each Iceberg table."""

    comment = "Iceberg tables, one row each"
    shown = (Need("TABLE_READ_PROPERTIES", On.TABLE),)
    kind = TABLE
    one_each = True
    columns = (
        *IDENTITY,
        *of_loaded(
            ViewColumn("uuid", STRING, "The table's UUID", lambda row: row.table.uuid),
            ViewColumn(
                "format_version", INT, "Version of the table format", lambda row: row.table.format_version
            ),
            ViewColumn(
                "location", STRING, "Base location of the table's files", lambda row: row.table.location
            ),
            ViewColumn(
                "metadata_location",
                STRING,
                "Location of this version's metadata file; the file itself may not be exported",
                lambda row: row.table.metadata_location,
            ),
            ViewColumn(
                "last_updated_at",
                TIMESTAMP,
                "Time of the last change of the table",
                lambda row: micros(row.table.last_updated_ms),
            ),
            ViewColumn(
                "last_sequence_number",
                LONG,
                "Highest sequence number of a snapshot",
                lambda row: row.table.last_sequence_number,
            ),
            ViewColumn(
                "current_snapshot_id",
                LONG,
                "Current snapshot of branch main; null if there is none",
                lambda row: row.table.current_snapshot_id,
            ),
            ViewColumn(
                "current_snapshot_at",
                TIMESTAMP,
                "Time at which the current snapshot was committed",
                lambda row: micros(row.snapshot.timestamp_ms) if row.snapshot else None,
                _SNAPSHOT,
            ),
            ViewColumn(
                "snapshot_count",
                INT,
                "Number of snapshots that the table keeps",
                lambda row: row.snapshots,
                _COUNT,
            ),
            ViewColumn(
                "record_count",
                LONG,
                "Records, by the summary of the current snapshot (total-records)",
                lambda row: row.total("total-records"),
                _SNAPSHOT,
            ),
            ViewColumn(
                "data_file_count",
                LONG,
                "Data files, by the summary of the current snapshot (total-data-files)",
                lambda row: row.total("total-data-files"),
                _SNAPSHOT,
            ),
            ViewColumn(
                "delete_file_count",
                LONG,
                "Delete files, by the summary of the current snapshot (total-delete-files)",
                lambda row: row.total("total-delete-files"),
                _SNAPSHOT,
            ),
            ViewColumn(
                "file_bytes",
                LONG,
                "Bytes of all data and delete files, by the summary of the current snapshot (total-files-size)",
                lambda row: row.total("total-files-size"),
                _SNAPSHOT,
            ),
            ViewColumn(
                "column_names",
                STRINGS,
                "Top-level columns of the current schema, in order",
                lambda row: field_names(row.schema) if row.schema else [],
                _SCHEMA,
            ),
            ViewColumn(
                "current_schema_id", INT, "Id of the current schema", lambda row: row.table.current_schema_id
            ),
            ViewColumn("schema", STRING, "Current schema as JSON", lambda row: _text(row.schema), _SCHEMA),
            ViewColumn(
                "schema_count",
                INT,
                "Number of schemas that the table keeps",
                lambda row: len(row.table.schemas),
            ),
            ViewColumn(
                "default_spec_id",
                INT,
                "Id of the default partition spec",
                lambda row: row.table.default_spec_id,
            ),
            ViewColumn(
                "partition_fields",
                STRINGS,
                "Names of the fields of the default partition spec; empty for an unpartitioned table",
                lambda row: field_names(row.spec) if row.spec else [],
                _SPEC,
            ),
            ViewColumn(
                "partition_spec", STRING, "Default partition spec as JSON", lambda row: _text(row.spec), _SPEC
            ),
            ViewColumn(
                "sort_order", STRING, "Default sort order as JSON", lambda row: _text(row.order), _ORDER
            ),
            ViewColumn(
                "refs",
                MapType(StringType(), LongType(), valueContainsNull=False),
                "Branches and tags of the table, to the snapshots that they name",
                lambda row: [(ref.name, ref.snapshot_id) for ref in row.refs],
                _REFS,
            ),
            ViewColumn(
                "properties", STRING_MAP, "Table properties", lambda row: pairs(row.properties), _PROPERTIES
            ),
        ),
    )

    def of(
        self, store: ObjectStore, entries: Iterator[EntityEntry], needs: frozenset[str]
    ) -> Iterator[TableRow]:
        reader = StoredObjects(store)
        for run, unread in with_loaded(store, entries, Table):
            for entry, unloaded in unread:
                yield TableRow(entry, EMPTY_TABLE, b"", b"", b"", None, 0, unloaded=unloaded)
            tables = [table for _, table in run]
            schemas = _pieces(store, needs, _SCHEMA, {id(t): _schema(t) for t in tables}, Schema)
            specs = _pieces(store, needs, _SPEC, {id(t): _spec(t) for t in tables}, PartitionSpec)
            orders = _pieces(store, needs, _ORDER, {id(t): _order(t) for t in tables}, SortOrder)
            snapshots = _pieces(
                store, needs, _SNAPSHOT, {id(t): current_piece(t, reader) for t in tables}, Snapshot
            )
            for entry, table in run:
                current = snapshots.get(id(table), b"")
                yield TableRow(
                    entry,
                    table,
                    schemas.get(id(table), b""),
                    specs.get(id(table), b""),
                    orders.get(id(table), b""),
                    _summary(current) if current else None,
                    count(table.snapshots, store) if _COUNT in needs else 0,
                    all_refs(table, reader) if _REFS in needs else (),
                    all_properties(table, reader) if _PROPERTIES in needs else {},
                )

    def weigh(self, row: TableRow) -> int:
        return 1_024 + len(row.schema) + len(row.spec) + text_bytes(row.properties)


SYSTEM_VIEW = Tables()


def count(root: IndexRoot, store: ObjectStore) -> int:
    """Return the number of entries of an index. It is the number in the tree, corrected by the changes in `root`."""
    if not root.shard:
        return sum(value is not None for value in root.values)
    tree = Index(IndexRoot(root.shard, root.height, root.count), StoredObjects(store).read_shards)
    present = tree.get_many(root.keys)
    changes = zip(root.values, present, strict=True)
    return root.count + sum((value is not None) - (before is not None) for value, before in changes)


def _pieces(
    store: ObjectStore, needs: frozenset[str], need: str, wanted: dict[int, int], cls: type[Any]
) -> dict[int, bytes]:
    """Read objects with parts of table metadata. Return their texts, by the keys of `wanted`, whose values are object
    ids.

    If `needs` does not contain `need`, read nothing and return an empty dict.
    """
    if need not in needs:
        return {}
    found = by_id(store, wanted.values(), cls)
    return {key: found[piece].text for key, piece in wanted.items() if piece}


def _numbered(pieces: tuple[Numbered, ...], number: int) -> int:
    return next((piece.piece for piece in pieces if piece.id == number), 0)


def _schema(table: Table) -> int:
    return _numbered(table.schemas, table.current_schema_id)


def _spec(table: Table) -> int:
    return _numbered(table.specs, table.default_spec_id)


def _order(table: Table) -> int:
    return _numbered(table.sort_orders, table.default_sort_order_id)


def _text(data: bytes) -> str | None:
    return data.decode() if data else None
