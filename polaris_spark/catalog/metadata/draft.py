"""A table that is being changed: the values of a row, changed by requests, then frozen into a new row and new pieces.

A draft is cheap if little changes: nothing is read or parsed before it is needed, so a change of properties reads
neither schemas nor snapshots. The rules of the individual updates are in `table_updates`. The checks after all updates
are applied are here and in `snapshot_history` (Iceberg's `TableMetadata.Builder.build`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping
from typing import Any

from polaris_spark.catalog.metadata import logs, overflow
from polaris_spark.catalog.metadata.bounds import (
    encoded_bytes,
    require_properties_growth,
    require_totals_growth,
)
from polaris_spark.catalog.metadata.overflow import PROPERTY_CODEC, REF_CODEC, Frozen, SpilledValues, spill
from polaris_spark.catalog.metadata.pieces import IndexedPieces, NumberedPieces
from polaris_spark.catalog.metadata.rows import (
    EMPTY_TABLE,
    Log,
    NewId,
    NewRows,
    Numbered,
    ObjectReader,
    Overflow,
    PartitionSpec,
    PartitionStatistics,
    Ref,
    Schema,
    Snapshot,
    SortOrder,
    Statistics,
    Table,
)
from polaris_spark.catalog.metadata.schemas import SchemaIndex, schema_form
from polaris_spark.catalog.metadata.snapshot_history import LogEntry, updated_log
from polaris_spark.catalog.metadata.spec_fields import SpecFields
from polaris_spark.catalog.metadata.table_checks import check_final
from polaris_spark.catalog.metadata.texts import encode, invalid
from polaris_spark.catalog.metadata.transforms import sort_order_form, spec_form
from polaris_spark.clock import CheckTime, unlimited
from polaris_spark.index import IndexRoot

SNAPSHOT_QUOTA = 1024
"""Maximum number of bytes of the snapshot index that a table's row embeds."""
STATISTICS_QUOTA = 512
"""Maximum number of bytes of each statistics index that a table's row embeds."""

_PLAIN = frozenset({"assign-uuid", "set-location", "set-properties", "remove-properties"})
_ADDING = frozenset({"add-schema", "add-spec", "add-sort-order"})
_PREVIOUS_VERSIONS = "write.metadata.previous-versions-max"
_PREVIOUS_VERSIONS_DEFAULT = 100


class TableDraft:
    """A table with changes that are not yet written. Its fields are those of `Table`. Created by `TableDraft.of`."""

    __slots__ = (
        "_encryption_keys",
        "_metadata_items",
        "_partition_statistics",
        "_properties",
        "_refs",
        "_refs_of",
        "_schema_indexes",
        "_schemas",
        "_snapshots",
        "_sort_orders",
        "_spec_fields",
        "_specs",
        "_start",
        "_statistics",
        "added",
        "added_snapshots",
        "base",
        "changes",
        "changes_content",
        "check_time",
        "current_schema_id",
        "current_snapshot_id",
        "default_sort_order_id",
        "default_spec_id",
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
        "overflow_bound",
        "reader",
        "snapshot_log_gaps",
        "summary_of_snapshot",
        "uuid",
    )

    def __init__(
        self, table: Table | None, reader: ObjectReader, *, now_ms: int, check_time: CheckTime = unlimited
    ) -> None:
        self.base = table
        self.reader = reader
        self.check_time = check_time
        self.now_ms = now_ms
        self.overflow_bound: float = overflow.BOUND
        """Maximum number of bytes of refs, and of properties, that the row embeds; infinite if the realm does not allow
        an index of them."""
        self._start = start = EMPTY_TABLE if table is None else table
        self.origin = "create"
        """How a draft without a base was created: `create` or `register`."""
        self.changes: list[tuple[str, Any]] = []
        """(action, detail) of each update that had an effect, in order; see `record`."""
        self.added: set[tuple[str, int | None]] = set()
        """The items of `changes` that added a schema, a spec or a sort order."""
        self.changes_content = False
        """Whether anything but the uuid, location or properties is changed."""
        self.uuid = start.uuid
        self.format_version = start.format_version
        self.location = start.location
        self.last_updated_ms = max(now_ms, start.last_updated_ms)
        """Milliseconds since 1970. Never before the base's time, so that written metadata stays valid even if the clock
        is wrong."""
        self.last_sequence_number = self.highest_sequence_number = start.last_sequence_number
        self.last_column_id = start.last_column_id
        self.current_schema_id = start.current_schema_id
        self.default_spec_id = start.default_spec_id
        self.last_partition_id = start.last_partition_id
        self.default_sort_order_id = start.default_sort_order_id
        self.current_snapshot_id = start.current_snapshot_id
        self.next_row_id = start.next_row_id
        self.next_order = start.next_order
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
        """Items of the snapshot log of the metadata file that was parsed."""
        self._metadata_items: list[bytes] = []
        self._forget()

    def _forget(self) -> None:
        """Begin with nothing of the base read or copied."""
        self._properties: dict[str, str] | SpilledValues[str] | None = None
        self._encryption_keys: dict[str, list[bytes]] | None = None
        self._refs: dict[str, Ref] | SpilledValues[Ref] | None = None
        self._schemas: NumberedPieces | None = None
        self._specs: NumberedPieces | None = None
        self._sort_orders: NumberedPieces | None = None
        self._snapshots: IndexedPieces | None = None
        self._statistics: IndexedPieces | None = None
        self._partition_statistics: IndexedPieces | None = None
        self._schema_indexes: dict[int, SchemaIndex] = {}
        self._spec_fields: SpecFields | None = None
        self._refs_of: dict[int, dict[str, None]] | None = None

    @classmethod
    def of(
        cls, table: Table | None, reader: ObjectReader, *, now_ms: int, check_time: CheckTime = unlimited
    ) -> TableDraft:
        """Return a draft of a table, or of a new table.

        Args:
            table: the table in its current state; None creates a new table, as `assert-create` commits do.
            reader: reads pieces and shards.
            now_ms: the time of the change, milliseconds since 1970 UTC.
            check_time: called at each step; an error that it raises ends the change.
        """
        return cls(table, reader, now_ms=now_ms, check_time=check_time)

    @property
    def changed(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.changes) or self.base is None

    def record(self, action: str, detail: Any = None) -> None:
        """Record that an update had an effect."""
        self.changes.append((action, detail))
        self.changes_content = self.changes_content or action not in _PLAIN
        if action in _ADDING:
            self.added.add((action, detail))

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties; change them through `own_properties` only."""
        if self._properties is None and self._start.more_properties is None:
            return self._start.properties
        return self.own_properties()

    def own_properties(self) -> MutableMapping[str, str]:
        """Return the properties as a mapping that may be changed."""
        if self._properties is None:
            own, more = self._start.properties, self._start.more_properties
            self._properties = (
                dict(own) if more is None else SpilledValues(own, more, self.reader, PROPERTY_CODEC)
            )
        return self._properties

    @property
    def encryption_keys(self) -> tuple[tuple[str, bytes], ...]:
        """Id and text of each encryption key; change them through `own_encryption_keys` only."""
        if self._encryption_keys is None:
            return self._start.encryption_keys
        return tuple([(id, text) for id, texts in self._encryption_keys.items() for text in texts])

    def own_encryption_keys(self) -> dict[str, list[bytes]]:
        """Return the texts of the encryption keys by id, as a dict that may be changed. An imported table may have
        several keys with the same id."""
        if self._encryption_keys is None:
            self._encryption_keys = {}
            for id, text in self._start.encryption_keys:
                self._encryption_keys.setdefault(id, []).append(text)
        return self._encryption_keys

    @property
    def refs(self) -> MutableMapping[str, Ref]:
        """Branches and tags by name; the pointer of a new one is 0 until the draft is frozen. Change them through
        `set_ref` and `remove_ref` only."""
        if self._refs is None:
            own, more = {ref.name: ref for ref in self._start.refs}, self._start.more_refs
            self._refs = own if more is None else SpilledValues(own, more, self.reader, REF_CODEC)
        return self._refs

    def set_ref(self, ref: Ref) -> None:
        """Add a branch or tag, or move it."""
        before = self.refs.get(ref.name)
        self.refs[ref.name] = ref
        if self._refs_of is not None:
            if before is not None:
                del self._refs_of[before.snapshot_id][ref.name]
            self._refs_of.setdefault(ref.snapshot_id, {})[ref.name] = None

    def remove_ref(self, name: str) -> bool:
        """Remove a branch or tag. Return whether it existed."""
        before = self.refs.pop(name, None)
        if before is not None and self._refs_of is not None:
            del self._refs_of[before.snapshot_id][name]
        return before is not None

    def refs_of(self, snapshot_id: int) -> list[str]:
        """Return the names of the branches and tags of a snapshot."""
        if self._refs_of is None:
            self._refs_of = {}
            for ref in self.refs.values():
                self._refs_of.setdefault(ref.snapshot_id, {})[ref.name] = None
        return list(self._refs_of.get(snapshot_id, ()))

    @property
    def schemas(self) -> NumberedPieces:
        """The schemas."""
        if self._schemas is None:
            self._schemas = NumberedPieces(
                Schema, self._start.schemas, self.reader, schema_form, self.check_time
            )
        return self._schemas

    @property
    def specs(self) -> NumberedPieces:
        """The partition specs."""
        if self._specs is None:
            self._specs = NumberedPieces(
                PartitionSpec, self._start.specs, self.reader, spec_form, self.check_time
            )
        return self._specs

    @property
    def spec_fields(self) -> SpecFields:
        """The fields of the partition specs. Code that adds or removes a spec must update this, too."""
        if self._spec_fields is None:
            self._spec_fields = SpecFields(self.specs.all())
        return self._spec_fields

    @property
    def sort_orders(self) -> NumberedPieces:
        """The sort orders."""
        if self._sort_orders is None:
            self._sort_orders = NumberedPieces(
                SortOrder, self._start.sort_orders, self.reader, sort_order_form, self.check_time
            )
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
        """Return the array position of the next indexed piece, and advance the position."""
        self.next_order += 1
        return self.next_order - 1

    def current_schema(self) -> SchemaIndex:
        """Return the columns of the current schema.

        Raises:
            BadRequestError: the table has no current schema yet.
        """
        found = self.schema_index(self.current_schema_id)
        if found is None:
            raise invalid(f"Cannot find current schema: {self.current_schema_id}")
        return found

    def schema_index(self, id: int) -> SchemaIndex | None:
        """Return the columns of the schema with this id; None if there is no schema with this id."""
        found = self._schema_indexes.get(id)
        if found is None:
            schema = self.schemas.get(id)
            if schema is None:
                return None
            found = self._schema_indexes[id] = SchemaIndex(schema)
        return found

    def remove_schemas(self, ids: Collection[int]) -> None:
        """Remove the schemas with these ids."""
        self.schemas.remove(ids)
        for id in ids:
            self._schema_indexes.pop(id, None)

    def import_logs(self, snapshot_log: list[bytes], metadata_log: list[bytes]) -> None:
        """Set the logs of a table without a base; the texts are compact JSON."""
        self.imported_log = snapshot_log
        self._metadata_items = metadata_log

    def summary(self) -> dict[str, str]:
        """Return a description of the changes for the audit log: all their actions, joined by commas, in `action`; the
        id, operation and counts of the last added snapshot."""
        actions = dict.fromkeys(action for action, _ in self.changes)
        first = [self.origin] if self.base is None else []
        return {"action": ",".join((*first, *actions)), **self.summary_of_snapshot}

    def freeze(
        self, new_id: NewId, *, metadata_location: str, entity_id: int | None = None
    ) -> tuple[Table, NewRows]:
        """Return the table after the changes, and the new pieces and shards that it points to. Call this only once.

        The base's metadata location is added to the metadata log, which keeps at most
        `write.metadata.previous-versions-max` items.

        Args:
            new_id: returns the ids of new objects.
            metadata_location: location of the new version's metadata file.
            entity_id: entity id of a new table; None keeps the id of a changed table.
        Raises:
            BadRequestError: the result would not be valid metadata.
        """
        if self.base is not None and not self.changes:
            return self.base, []
        check_final(self)
        properties_bytes = self._check_properties()
        self.check_time()
        if self.changes:
            self.last_updated_ms = max(self.last_updated_ms, self.now_ms)
        rows: NewRows = []
        start = self._start
        snapshots = _frozen_index(self._snapshots, start.snapshots, new_id, rows, SNAPSHOT_QUOTA)
        snapshot_log, gaps = updated_log(self, start.snapshot_log, new_id, rows)
        refs, more_refs = self._frozen_refs(new_id, rows)
        properties = self._frozen_properties(properties_bytes, new_id, rows)
        return Table(
            **self._plain_fields(),
            entity_id=start.entity_id if entity_id is None else entity_id,
            properties=dict(properties.embedded),
            refs=refs,
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
            unconfirmed=start.unconfirmed,
            more_refs=more_refs,
            more_properties=properties.others,
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
            "next_order": self.next_order,
            "encryption_keys": self.encryption_keys,
            "extra": self.extra,
        }

    # Of two classes, `dict` is tested for: to test for the other one, an abstract class, takes several times as long.

    def _check_properties(self) -> int:
        """Return `encoded_bytes` of the properties that the row embeds, or 0 if an index holds the others."""
        own, more, after = self._start.properties, self._start.more_properties, self._properties
        if isinstance(after, dict):
            return require_properties_growth(own, after)
        if more is None:
            return encoded_bytes(own)
        if after is not None:
            before = SpilledValues(own, more, self.reader, PROPERTY_CODEC)
            require_totals_growth((len(before), before.size), (len(after), after.size))
        return 0

    def _frozen_properties(self, size: int, new_id: NewId, rows: NewRows) -> Frozen[str]:
        own, more = self._properties, self._start.more_properties
        if own is not None and not isinstance(own, dict):
            return own.freeze(new_id, rows, self.overflow_bound)
        embedded = self._start.properties if own is None else own
        if more is not None or size <= self.overflow_bound:
            return Frozen(embedded, more)
        return spill(embedded, self.reader, PROPERTY_CODEC, self.overflow_bound, new_id, rows)

    def _frozen_refs(self, new_id: NewId, rows: NewRows) -> tuple[tuple[Ref, ...], Overflow | None]:
        own, more = self._refs, self._start.more_refs
        if own is not None and not isinstance(own, dict):
            own.replace(self._placed)
            frozen = own.freeze(new_id, rows, self.overflow_bound)
        else:
            refs = self._start.refs if own is None else tuple([self._placed(ref) for ref in own.values()])
            most = sum([len(ref.text) + 4 * len(ref.name) for ref in refs])  # a character has at most 4 bytes
            if more is not None or most <= self.overflow_bound:
                return refs, more
            by_name = {ref.name: ref for ref in refs}
            frozen = spill(by_name, self.reader, REF_CODEC, self.overflow_bound, new_id, rows)
        return tuple(frozen.embedded.values()), frozen.others

    def _placed(self, ref: Ref) -> Ref:
        """Return a branch or tag with the pointer to its snapshot."""
        if ref.snapshot:
            return ref
        place = self.snapshots.place(ref.snapshot_id)
        if place is None:
            raise invalid(f"Snapshot for reference {ref.name} does not exist: {ref.snapshot_id}")
        return Ref(ref.name, ref.snapshot_id, ref.text, place.order, place.pointer)

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
