"""A table that is being changed. A draft starts with the values of the table's row. Updates change these values. Then
`freeze` returns a new row, and the new pieces: schemas, snapshots and other parts of the metadata that are stored as
separate objects.

`table_values` holds the values. The rules of the individual updates are in `table_updates`. The checks that follow the
last update are in this module, in `table_checks` and in `snapshot_history` (Iceberg's `TableMetadata.Builder.build`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from polaris_spark.catalog.metadata import logs
from polaris_spark.catalog.metadata.bounds import (
    encoded_bytes,
    require_properties_growth,
    require_totals_growth,
)
from polaris_spark.catalog.metadata.change_details import table_details
from polaris_spark.catalog.metadata.overflow import PROPERTY_CODEC, REF_CODEC, Frozen, SpilledValues, spill
from polaris_spark.catalog.metadata.pieces import IndexedPieces, NumberedPieces
from polaris_spark.catalog.metadata.rows import (
    Log,
    NewId,
    NewRows,
    Numbered,
    Overflow,
    Ref,
    Table,
)
from polaris_spark.catalog.metadata.snapshot_history import updated_log
from polaris_spark.catalog.metadata.table_checks import check_final
from polaris_spark.catalog.metadata.table_values import TableValues
from polaris_spark.catalog.metadata.texts import encode, invalid
from polaris_spark.index import IndexRoot

SNAPSHOT_QUOTA = 1024
"""Maximum size of the part of the snapshot index that a table's row embeds, in bytes. Above this size, changes move
from the row into the index's shards."""
STATISTICS_QUOTA = 512
"""Maximum size of the part of the statistics index that a table's row embeds, in bytes; it applies separately to the
index of partition statistics."""

_ORDINARY = frozenset({"add-snapshot", "set-snapshot-ref"})
"""The updates of an ordinary commit of data."""

_PREVIOUS_VERSIONS = "write.metadata.previous-versions-max"
_PREVIOUS_VERSIONS_DEFAULT = 100


class TableDraft(TableValues):
    """A table with changes that are not yet written."""

    __slots__ = ()

    def summary(self) -> dict[str, str]:
        """Return a description of the changes for the audit log. Call this before `freeze`.

        `updates` lists the distinct updates, joined by commas; it is missing for a commit that only adds snapshots and
        moves branches to them. If snapshots were added, the result also contains the id, the operation, the counts and
        the client's own fields of the last added snapshot. The other items are described in `change_details`.
        """
        actions = dict.fromkeys([action for action, _ in self.changes])
        found = dict(self.summary_of_snapshot)
        if self.base is None or not found.get("operation") or actions.keys() - _ORDINARY:
            first = [self.origin] if self.base is None else []
            found["updates"] = ",".join((*first, *actions))
        return found if self.origin == "register" else found | table_details(self)

    def freeze(
        self, new_id: NewId, *, metadata_location: str, entity_id: int | None = None
    ) -> tuple[Table, NewRows]:
        """Return the row of the table after the changes, and the other new rows: parts of the metadata that are stored
        apart (pieces), and index shards. Call this only once.

        The metadata location of the table before the changes is added to the metadata log. The log keeps at most
        `write.metadata.previous-versions-max` items (default 100).

        Args:
            new_id: returns a new object id at each call.
            metadata_location: location of the new version's metadata file.
            entity_id: entity id of a new table; None for a changed table, which keeps its id.
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
        content = self._frozen_content(new_id, rows) if self.base is None or self.changes_content else {}
        refs, more_refs = self._frozen_refs(new_id, rows)
        properties = self._frozen_properties(properties_bytes, new_id, rows)
        return msgspec.structs.replace(
            start,
            entity_id=start.entity_id if entity_id is None else entity_id,
            uuid=self.uuid,
            location=self.location,
            last_updated_ms=self.last_updated_ms,
            properties=dict(properties.embedded),
            refs=refs,
            metadata_log=self._frozen_metadata_log(new_id, rows),
            metadata_location=metadata_location,
            more_refs=more_refs,
            more_properties=properties.others,
            **content,
        ), rows

    def _frozen_content(self, new_id: NewId, rows: NewRows) -> dict[str, Any]:
        """Return the fields of the row that only change with `changes_content`."""
        start = self._start
        snapshots = _frozen_index(self._snapshots, start.snapshots, new_id, rows, SNAPSHOT_QUOTA)
        snapshot_log, gaps = updated_log(self, start.snapshot_log, new_id, rows)
        return {
            "format_version": self.format_version,
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
            "schemas": _frozen(self._schemas, start.schemas, new_id, rows),
            "specs": _frozen(self._specs, start.specs, new_id, rows),
            "sort_orders": _frozen(self._sort_orders, start.sort_orders, new_id, rows),
            "snapshots": snapshots,
            "statistics": _frozen_index(self._statistics, start.statistics, new_id, rows, STATISTICS_QUOTA),
            "partition_statistics": _frozen_index(
                self._partition_statistics, start.partition_statistics, new_id, rows, STATISTICS_QUOTA
            ),
            "snapshot_log": snapshot_log,
            "snapshot_log_gaps": gaps,
        }

    # The code below tests for `dict` instead of `SpilledValues`, because `isinstance` takes several times as long for a
    # class that is derived from an abstract class.

    def _check_properties(self) -> int:
        """Check the bounds of the properties. Return their size as JSON in bytes, or 0 if an index holds some of them.

        Raises:
            BadRequestError: the properties have grown beyond a bound.
        """
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
            if not refs:
                return refs, more
            most = sum([len(ref.text) + 4 * len(ref.name) for ref in refs])  # a character has at most 4 bytes
            if more is not None or most <= self.overflow_bound:
                return refs, more
            by_name = {ref.name: ref for ref in refs}
            frozen = spill(by_name, self.reader, REF_CODEC, self.overflow_bound, new_id, rows)
        return tuple(frozen.embedded.values()), frozen.others

    def _placed(self, ref: Ref) -> Ref:
        """Return a branch or tag. If its pointer and sort key are missing, fill them in from the index of snapshots.

        Raises:
            BadRequestError: the snapshot does not exist.
        """
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
