"""The values of a table during a change: the values in its row, and the updates that have been applied to them.

Schemas, snapshots and so on are read only when they are needed, so a change of properties reads neither schemas nor
snapshots.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping
from typing import Any, NamedTuple

from polaris_spark.catalog.metadata import overflow
from polaris_spark.catalog.metadata.overflow import PROPERTY_CODEC, REF_CODEC, SpilledValues
from polaris_spark.catalog.metadata.pieces import IndexedPieces, NumberedPieces
from polaris_spark.catalog.metadata.rows import (
    EMPTY_TABLE,
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
from polaris_spark.catalog.metadata.schemas import SchemaIndex, schema_form
from polaris_spark.catalog.metadata.spec_fields import SpecFields
from polaris_spark.catalog.metadata.texts import invalid
from polaris_spark.catalog.metadata.transforms import sort_order_form, spec_form
from polaris_spark.clock import CheckTime, unlimited

_PLAIN = frozenset({"assign-uuid", "set-location", "set-properties", "remove-properties"})
_ADDING = frozenset({"add-schema", "add-spec", "add-sort-order"})


class LogEntry(NamedTuple):
    """An entry of the snapshot log: when a snapshot became current, in milliseconds since 1970 UTC, and its id."""

    timestamp_ms: int
    snapshot_id: int


class TableValues:
    """The values of a table with changes that are not yet written. The attributes are named like the fields of `Table`.

    The checks use this class. Its subclass `TableDraft` also returns the values as a new row.
    """

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
        "added_parents",
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
        """
        Args:
            table: the table in its current state; None for a new table.
            reader: reads the stored pieces of the table and the shards of its indexes.
            now_ms: the time of the change, milliseconds since 1970 UTC.
            check_time: called at each step; raises an error to abort work that takes too long.
        """
        self.base = table
        self.reader = reader
        self.check_time = check_time
        self.now_ms = now_ms
        self.overflow_bound: float = overflow.BOUND
        """Maximum size of the refs (branches and tags) that the row embeds, in bytes. The same maximum applies to the
        properties. It is infinite if the realm does not allow an index of refs or properties."""
        self._start = start = EMPTY_TABLE if table is None else table
        self.origin = "create"
        """Origin of a new table: `register` if it comes from a metadata file, otherwise `create`."""
        self.changes: list[tuple[str, Any]] = []
        """(action, detail) of each update that had an effect, in order; see `record`."""
        self.added: set[tuple[str, int | None]] = set()
        """The items of `changes` that added a schema, a partition spec or a sort order."""
        self.changes_content = False
        """Whether anything other than the uuid, location or properties has changed."""
        self.uuid = start.uuid
        self.format_version = start.format_version
        self.location = start.location
        self.last_updated_ms = max(now_ms, start.last_updated_ms)
        """Time of the last update, milliseconds since 1970 UTC. It is never earlier than the last update of the table
        before the changes, so that the new metadata is valid even if the clock is wrong."""
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
        """Ids of the snapshots that this draft added, with their timestamps in milliseconds since 1970 UTC."""
        self.added_parents: dict[int, int | None] = {}
        """Ids of the snapshots that this draft added, with the ids of their parents."""
        self.log_entries: list[LogEntry] = []
        """Entries that this draft adds to the snapshot log."""
        self.summary_of_snapshot: dict[str, str] = {}
        self.imported_log: list[bytes] = []
        """Items of the snapshot log in the parsed metadata file; empty if no metadata file was parsed."""
        self._metadata_items: list[bytes] = []
        self._forget()

    def _forget(self) -> None:
        """Reset the values that are read or copied at their first use, so that their next use reads or copies them
        again."""
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

    @property
    def changed(self) -> bool:
        """Whether there is anything to write: an update had an effect, or the table is new."""
        return bool(self.changes) or self.base is None

    def record(self, action: str, detail: Any = None) -> None:
        """Record that an update had an effect. `detail` tells what it changed, such as an id."""
        self.changes.append((action, detail))
        self.changes_content = self.changes_content or action not in _PLAIN
        if action in _ADDING:
            self.added.add((action, detail))

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties of the table. To change them, use `own_properties`."""
        if self._properties is None and self._start.more_properties is None:
            return self._start.properties
        return self.own_properties()

    def own_properties(self) -> MutableMapping[str, str]:
        """Return the properties as a mutable mapping. Changes of the mapping change the draft."""
        if self._properties is None:
            own, more = self._start.properties, self._start.more_properties
            self._properties = (
                dict(own) if more is None else SpilledValues(own, more, self.reader, PROPERTY_CODEC)
            )
        return self._properties

    @property
    def encryption_keys(self) -> tuple[tuple[str, bytes], ...]:
        """The id and the JSON text of each encryption key. To change the keys, use `own_encryption_keys`."""
        if self._encryption_keys is None:
            return self._start.encryption_keys
        return tuple([(id, text) for id, texts in self._encryption_keys.items() for text in texts])

    def own_encryption_keys(self) -> dict[str, list[bytes]]:
        """Return the JSON texts of the encryption keys by id, as a dict. Changes of the dict change the draft.

        An imported table may have several keys with the same id.
        """
        if self._encryption_keys is None:
            self._encryption_keys = {}
            for id, text in self._start.encryption_keys:
                self._encryption_keys.setdefault(id, []).append(text)
        return self._encryption_keys

    @property
    def refs(self) -> MutableMapping[str, Ref]:
        """The branches and tags by name. To change them, use `set_ref` and `remove_ref`.

        A new branch or tag has 0 as the pointer to its snapshot until the draft is frozen.
        """
        if self._refs is None:
            own, more = {ref.name: ref for ref in self._start.refs}, self._start.more_refs
            self._refs = own if more is None else SpilledValues(own, more, self.reader, REF_CODEC)
        return self._refs

    def set_ref(self, ref: Ref) -> None:
        """Add a branch or tag, or replace the branch or tag that has its name."""
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
        """Return the names of the branches and tags that reference a snapshot."""
        if self._refs_of is None:
            self._refs_of = {}
            for ref in self.refs.values():
                self._refs_of.setdefault(ref.snapshot_id, {})[ref.name] = None
        return list(self._refs_of.get(snapshot_id, ()))

    @property
    def schemas(self) -> NumberedPieces:
        """The schemas of the table, by id."""
        if self._schemas is None:
            self._schemas = NumberedPieces(
                Schema, self._start.schemas, self.reader, schema_form, self.check_time
            )
        return self._schemas

    @property
    def specs(self) -> NumberedPieces:
        """The partition specs of the table, by id."""
        if self._specs is None:
            self._specs = NumberedPieces(
                PartitionSpec, self._start.specs, self.reader, spec_form, self.check_time
            )
        return self._specs

    @property
    def spec_fields(self) -> SpecFields:
        """A lookup table for the fields of all partition specs. Code that adds or removes a spec must update it,
        too."""
        if self._spec_fields is None:
            self._spec_fields = SpecFields(self.specs.all())
        return self._spec_fields

    @property
    def sort_orders(self) -> NumberedPieces:
        """The sort orders of the table, by id."""
        if self._sort_orders is None:
            self._sort_orders = NumberedPieces(
                SortOrder, self._start.sort_orders, self.reader, sort_order_form, self.check_time
            )
        return self._sort_orders

    @property
    def snapshots(self) -> IndexedPieces:
        """The snapshots of the table, by id."""
        if self._snapshots is None:
            self._snapshots = IndexedPieces(Snapshot, self._start.snapshots, self.reader)
        return self._snapshots

    @property
    def statistics(self) -> IndexedPieces:
        """The statistics files of the table, by snapshot id."""
        if self._statistics is None:
            self._statistics = IndexedPieces(Statistics, self._start.statistics, self.reader)
        return self._statistics

    @property
    def partition_statistics(self) -> IndexedPieces:
        """The partition statistics files of the table, by snapshot id."""
        if self._partition_statistics is None:
            root = self._start.partition_statistics
            self._partition_statistics = IndexedPieces(PartitionStatistics, root, self.reader)
        return self._partition_statistics

    def take_order(self) -> int:
        """Return the number that determines the position of the next snapshot or statistics file in its JSON array, and
        increment `next_order`."""
        self.next_order += 1
        return self.next_order - 1

    def current_schema(self) -> SchemaIndex:
        """Return the columns of the current schema, by id and by name.

        Raises:
            BadRequestError: the table has no current schema yet.
        """
        found = self.schema_index(self.current_schema_id)
        if found is None:
            raise invalid(f"Cannot find current schema: {self.current_schema_id}")
        return found

    def schema_index(self, id: int) -> SchemaIndex | None:
        """Return the columns of a schema, by id and by name; None if there is no schema with this id."""
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
        """Set the logs of a draft that was parsed from a metadata file. Each item is a compact JSON text."""
        self.imported_log = snapshot_log
        self._metadata_items = metadata_log
