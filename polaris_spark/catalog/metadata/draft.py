"""A table being changed: what a row says, changed by requests, frozen into a new row and new pieces.

Drafts are cheap where little changes: nothing is read or parsed before it is needed, so a change of
properties costs neither schemas nor snapshots. The rules of the individual updates are in `table_updates`;
what is checked when all of them are applied is here and in `snapshot_history` (Iceberg's
`TableMetadata.Builder.build`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polaris_spark.catalog.metadata import logs
from polaris_spark.catalog.metadata.pieces import IndexedPieces, NumberedPieces
from polaris_spark.catalog.metadata.rows import (
    EMPTY_TABLE,
    Log,
    NewId,
    NewRows,
    Numbered,
    ObjectReader,
    PartitionSpec,
    PartitionStatistics,
    Ref,
    Schema,
    Snapshot,
    SortOrder,
    Statistics,
    Table,
)
from polaris_spark.catalog.metadata.schemas import SchemaIndex
from polaris_spark.catalog.metadata.snapshot_history import LogEntry, updated_log
from polaris_spark.catalog.metadata.table_checks import check_final
from polaris_spark.catalog.metadata.texts import encode, invalid
from polaris_spark.index import IndexRoot

MAIN = "main"
"""The branch that `current-snapshot-id` follows."""

SNAPSHOT_QUOTA = 1024
"""Bytes of the snapshot index that a table's row embeds."""
STATISTICS_QUOTA = 512
"""Bytes of each statistics index that a table's row embeds."""

_PLAIN = frozenset({"assign-uuid", "set-location", "set-properties", "remove-properties"})
_PREVIOUS_VERSIONS = "write.metadata.previous-versions-max"
_PREVIOUS_VERSIONS_DEFAULT = 100


class TableDraft:
    """A table with changes that are not yet written. Fields are those of `Table`; see `TableDraft.of`."""

    __slots__ = (
        "_metadata_items",
        "_partition_statistics",
        "_properties",
        "_refs",
        "_schema_index",
        "_schemas",
        "_snapshots",
        "_sort_orders",
        "_specs",
        "_start",
        "_statistics",
        "added_snapshots",
        "base",
        "changes",
        "current_schema_id",
        "current_snapshot_id",
        "default_sort_order_id",
        "default_spec_id",
        "encryption_keys",
        "extra",
        "format_version",
        "highest_sequence_number",
        "imported_log",
        "last_added_schema_id",
        "last_added_sort_order_id",
        "last_added_spec_id",
        "last_column_id",
        "last_partition_id",
        "last_sequence_number",
        "last_updated_ms",
        "location",
        "log_entries",
        "next_order",
        "next_row_id",
        "now_ms",
        "origin",
        "reader",
        "snapshot_log_gaps",
        "summary_of_snapshot",
        "uuid",
    )

    def __init__(self, table: Table | None, reader: ObjectReader, *, now_ms: int) -> None:
        self.base = table
        self.reader = reader
        self.now_ms = now_ms
        self._start = start = EMPTY_TABLE if table is None else table
        self.origin = "create"
        """How a draft without a base came about: `create` or `register`."""
        self.changes: list[tuple[str, Any]] = []
        """(action, detail) of each update that had an effect, in order."""
        self.uuid = start.uuid
        self.format_version = start.format_version
        self.location = start.location
        self.last_updated_ms = max(now_ms, start.last_updated_ms)
        """Never behind the base's, so that what was written stays valid whatever the clock says."""
        self.last_sequence_number = self.highest_sequence_number = start.last_sequence_number
        self.last_column_id = start.last_column_id
        self.current_schema_id = start.current_schema_id
        self.default_spec_id = start.default_spec_id
        self.last_partition_id = start.last_partition_id
        self.default_sort_order_id = start.default_sort_order_id
        self.current_snapshot_id = start.current_snapshot_id
        self.next_row_id = start.next_row_id
        self.next_order = start.next_order
        self.encryption_keys = start.encryption_keys
        self.extra = start.extra
        self.snapshot_log_gaps = start.snapshot_log_gaps
        self.last_added_schema_id: int | None = None
        self.last_added_spec_id: int | None = None
        self.last_added_sort_order_id: int | None = None
        self.added_snapshots: dict[int, int] = {}
        """Snapshots added by this draft, with their timestamps in milliseconds."""
        self.log_entries: list[LogEntry] = []
        """New entries of the snapshot log."""
        self.summary_of_snapshot: dict[str, str] = {}
        self.imported_log: list[bytes] = []
        """Items of the snapshot log that a metadata file brought."""
        self._metadata_items: list[bytes] = []
        self._forget()

    def _forget(self) -> None:
        """Nothing of the base is read or copied yet."""
        self._properties: dict[str, str] | None = None
        self._refs: dict[str, Ref] | None = None
        self._schemas: NumberedPieces | None = None
        self._specs: NumberedPieces | None = None
        self._sort_orders: NumberedPieces | None = None
        self._snapshots: IndexedPieces | None = None
        self._statistics: IndexedPieces | None = None
        self._partition_statistics: IndexedPieces | None = None
        self._schema_index: tuple[int, SchemaIndex] | None = None

    @classmethod
    def of(cls, table: Table | None, reader: ObjectReader, *, now_ms: int) -> TableDraft:
        """A draft of a table, or of a new one.

        Args:
            table: the table as it is; None builds one from nothing, as `assert-create` commits do.
            reader: where pieces and shards are read.
            now_ms: the time of the change, milliseconds since 1970 UTC.
        """
        return cls(table, reader, now_ms=now_ms)

    @property
    def changed(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.changes) or self.base is None

    @property
    def changes_content(self) -> bool:
        """Whether anything but the uuid, location or properties is changed."""
        return any(action not in _PLAIN for action, _ in self.changes)

    @property
    def properties(self) -> dict[str, str]:
        """The properties; change them through `own_properties` only."""
        return self._start.properties if self._properties is None else self._properties

    def own_properties(self) -> dict[str, str]:
        """The properties, for changing them."""
        if self._properties is None:
            self._properties = dict(self._start.properties)
        return self._properties

    @property
    def refs(self) -> dict[str, Ref]:
        """Branches and tags by name; the pointer of a new one is 0 until the draft is frozen."""
        if self._refs is None:
            self._refs = {ref.name: ref for ref in self._start.refs}
        return self._refs

    @property
    def schemas(self) -> NumberedPieces:
        """The schemas."""
        if self._schemas is None:
            self._schemas = NumberedPieces(Schema, self._start.schemas, self.reader)
        return self._schemas

    @property
    def specs(self) -> NumberedPieces:
        """The partition specs."""
        if self._specs is None:
            self._specs = NumberedPieces(PartitionSpec, self._start.specs, self.reader)
        return self._specs

    @property
    def sort_orders(self) -> NumberedPieces:
        """The sort orders."""
        if self._sort_orders is None:
            self._sort_orders = NumberedPieces(SortOrder, self._start.sort_orders, self.reader)
        return self._sort_orders

    @property
    def snapshots(self) -> IndexedPieces:
        """The snapshots."""
        if self._snapshots is None:
            self._snapshots = IndexedPieces(Snapshot, self._start.snapshots, self.reader)
        return self._snapshots

    @property
    def statistics(self) -> IndexedPieces:
        """The statistics files."""
        if self._statistics is None:
            self._statistics = IndexedPieces(Statistics, self._start.statistics, self.reader)
        return self._statistics

    @property
    def partition_statistics(self) -> IndexedPieces:
        """The partition statistics files."""
        if self._partition_statistics is None:
            root = self._start.partition_statistics
            self._partition_statistics = IndexedPieces(PartitionStatistics, root, self.reader)
        return self._partition_statistics

    def take_order(self) -> int:
        """The position in its array of the next indexed piece."""
        self.next_order += 1
        return self.next_order - 1

    def current_schema(self) -> SchemaIndex:
        """The columns of the current schema.

        Raises:
            BadRequestError: there is none yet.
        """
        if self._schema_index is None or self._schema_index[0] != self.current_schema_id:
            schema = self.schemas.get(self.current_schema_id)
            if schema is None:
                raise invalid(f"Cannot find current schema: {self.current_schema_id}")
            self._schema_index = self.current_schema_id, SchemaIndex(schema)
        return self._schema_index[1]

    def import_logs(self, snapshot_log: list[bytes], metadata_log: list[bytes]) -> None:
        """Set the logs of a table that is built from nothing; the texts are compact."""
        self.imported_log = snapshot_log
        self._metadata_items = metadata_log

    def summary(self) -> dict[str, str]:
        """What the changes are, for the audit log: all their actions, joined by commas, in `action`; the last
        added snapshot's id, operation and counts."""
        actions = dict.fromkeys(action for action, _ in self.changes)
        first = [self.origin] if self.base is None else []
        return {"action": ",".join((*first, *actions)), **self.summary_of_snapshot}

    def freeze(
        self, new_id: NewId, *, metadata_location: str, entity_id: int | None = None
    ) -> tuple[Table, NewRows]:
        """The table after the changes, and the new pieces and shards that it points to. Call it once.

        The base's location goes into the metadata log, as far as `write.metadata.previous-versions-max` allows.

        Args:
            new_id: issues the ids of new objects.
            metadata_location: of the new version.
            entity_id: of a new table; a changed one keeps its own.
        Raises:
            BadRequestError: the result would not be valid metadata.
        """
        if self.base is not None and not self.changes:
            return self.base, []
        check_final(self)
        if self.changes:
            self.last_updated_ms = max(self.last_updated_ms, self.now_ms)
        rows: NewRows = []
        start = self._start
        snapshots = _frozen_index(self._snapshots, start.snapshots, new_id, rows, SNAPSHOT_QUOTA)
        snapshot_log, gaps = updated_log(self, start.snapshot_log, new_id, rows)
        return Table(
            **self._plain_fields(),
            entity_id=start.entity_id if entity_id is None else entity_id,
            refs=self._frozen_refs(),
            schemas=_frozen(self._schemas, start.schemas, new_id, rows),
            specs=_frozen(self._specs, start.specs, new_id, rows),
            sort_orders=_frozen(self._sort_orders, start.sort_orders, new_id, rows),
            snapshots=snapshots,
            statistics=_frozen_index(self._statistics, start.statistics, new_id, rows, STATISTICS_QUOTA),
            partition_statistics=_frozen_index(
                self._partition_statistics, start.partition_statistics, new_id, rows, STATISTICS_QUOTA
            ),
            snapshot_log=snapshot_log,
            metadata_log=self._frozen_metadata_log(new_id, rows),
            metadata_location=metadata_location,
            snapshot_log_gaps=gaps,
        ), rows

    def _plain_fields(self) -> dict[str, Any]:
        return {
            "uuid": self.uuid,
            "format_version": self.format_version,
            "location": self.location,
            "last_updated_ms": self.last_updated_ms,
            "last_sequence_number": self.last_sequence_number,
            "last_column_id": self.last_column_id,
            "current_schema_id": self.current_schema_id,
            "default_spec_id": self.default_spec_id,
            "last_partition_id": self.last_partition_id,
            "default_sort_order_id": self.default_sort_order_id,
            "current_snapshot_id": self.current_snapshot_id,
            "next_row_id": self.next_row_id,
            "properties": self.properties,
            "next_order": self.next_order,
            "encryption_keys": self.encryption_keys,
            "extra": self.extra,
        }

    def _frozen_refs(self) -> tuple[Ref, ...]:
        if self._refs is None:
            return self._start.refs
        frozen = []
        for ref in self._refs.values():
            if not ref.snapshot:
                place = self.snapshots.place(ref.snapshot_id)
                if place is None:
                    raise invalid(f"Snapshot for reference {ref.name} does not exist: {ref.snapshot_id}")
                ref = Ref(ref.name, ref.snapshot_id, ref.text, place.order, place.pointer)
            frozen.append(ref)
        return tuple(frozen)

    def _frozen_metadata_log(self, new_id: NewId, rows: NewRows) -> Log:
        log, items, base = self._start.metadata_log, self._metadata_items, self.base
        if base is not None and base.metadata_location:
            most = max(1, _int_or(self.properties.get(_PREVIOUS_VERSIONS), _PREVIOUS_VERSIONS_DEFAULT))
            log = logs.keep_last(log, most - 1)
            file = encode(base.metadata_location)
            items = [b'{"timestamp-ms":%d,"metadata-file":%b}' % (base.last_updated_ms, file)]
        if not items:
            return log
        log, new = logs.append(log, items, self.reader, new_id)
        rows += new
        return log


def _frozen(
    pieces: NumberedPieces | None, base: tuple[Numbered, ...], new_id: Callable[[], int], rows: NewRows
) -> tuple[Numbered, ...]:
    return base if pieces is None else pieces.freeze(new_id, rows)


def _frozen_index(
    pieces: IndexedPieces | None, base: IndexRoot, new_id: Callable[[], int], rows: NewRows, quota: int
) -> IndexRoot:
    return base if pieces is None else pieces.freeze(new_id, rows, quota)


def _int_or(text: str | None, default: int) -> int:
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        return default
