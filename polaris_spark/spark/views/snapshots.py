"""The system view `snapshots`: one row for each snapshot of each table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from polaris_spark.access.needs import Need, On
from polaris_spark.catalog.metadata.overflow import all_refs
from polaris_spark.catalog.metadata.pieces import placed
from polaris_spark.catalog.metadata.rows import Snapshot, Table
from polaris_spark.catalog.rows import TABLE
from polaris_spark.commits.state import StoredObjects
from polaris_spark.index import Index
from polaris_spark.spark.views.columns import (
    BOOLEAN,
    INT,
    LONG,
    STRING,
    STRING_MAP,
    STRINGS,
    TIMESTAMP,
    ViewColumn,
    micros,
)
from polaris_spark.spark.views.entities import (
    IDENTITY,
    WITHOUT_UNLOADED,
    EntityEntry,
    EntityView,
    loaded,
    with_pieces,
)
from polaris_spark.store.objects import ObjectStore


class _Snapshot(msgspec.Struct, rename="kebab"):
    snapshot_id: int
    parent_snapshot_id: int | None = None
    sequence_number: int = 0
    timestamp_ms: int | None = None
    manifest_list: str | None = None
    summary: dict[str, Any] | None = None
    schema_id: int | None = None


_REFS = "refs"
_decode = msgspec.json.Decoder(_Snapshot).decode


class SnapshotRow(NamedTuple):
    """A snapshot of a table."""

    entry: EntityEntry
    table: Table
    snapshot: _Snapshot
    refs: Mapping[int, list[str]]
    """Names of the table's branches and tags, by the id of their snapshot; empty if no column needs the names."""

    @property
    def summary(self) -> dict[str, Any]:
        """The snapshot's summary; empty if it has no summary, as in some old tables."""
        return self.snapshot.summary or {}


class Snapshots(EntityView[SnapshotRow]):
    """A system view with one row for each snapshot of each table."""

    comment = f"Snapshots of every table, one row each; {WITHOUT_UNLOADED}"
    shown = (Need("TABLE_READ_PROPERTIES", On.TABLE),)
    kind = TABLE
    rows_per_partition = 100
    columns = (
        *IDENTITY,
        ViewColumn("snapshot_id", LONG, "Id of the snapshot", lambda row: row.snapshot.snapshot_id),
        ViewColumn(
            "parent_id",
            LONG,
            "Parent snapshot; null for the first",
            lambda row: row.snapshot.parent_snapshot_id,
        ),
        ViewColumn(
            "sequence_number",
            LONG,
            "Number by which the table orders its changes; 0 in tables of version 1",
            lambda row: row.snapshot.sequence_number,
        ),
        ViewColumn(
            "committed_at",
            TIMESTAMP,
            "Time of the snapshot, by the clock of its author",
            lambda row: micros(row.snapshot.timestamp_ms),
        ),
        ViewColumn(
            "operation",
            STRING,
            "append, replace, overwrite or delete",
            lambda row: row.summary.get("operation"),
        ),
        ViewColumn(
            "summary",
            STRING_MAP,
            "Changes of the snapshot, and totals after it",
            lambda row: [(k, str(v)) for k, v in row.summary.items() if k != "operation"],
        ),
        ViewColumn(
            "manifest_list", STRING, "Location of its manifest list", lambda row: row.snapshot.manifest_list
        ),
        ViewColumn(
            "schema_id", INT, "Schema at the time of the snapshot", lambda row: row.snapshot.schema_id
        ),
        ViewColumn(
            "refs",
            STRINGS,
            "Branches and tags of the table that name it",
            lambda row: row.refs.get(row.snapshot.snapshot_id, []),
            _REFS,
        ),
        ViewColumn(
            "is_current",
            BOOLEAN,
            "Whether it is the table's current snapshot",
            lambda row: row.table.current_snapshot_id == row.snapshot.snapshot_id,
        ),
    )

    def of(
        self, store: ObjectStore, entries: Iterator[EntityEntry], needs: frozenset[str]
    ) -> Iterator[SnapshotRow]:
        reader = StoredObjects(store)
        places = (
            (entry, table, refs, pointer)
            for entry, table in loaded(store, entries, Table)
            for refs in [_names(table, reader) if _REFS in needs else {}]
            for _, pointer, _ in placed(Index(table.snapshots, reader.read_shards))
        )
        for (entry, table, refs, _), found in with_pieces(store, places, lambda place: place[-1], Snapshot):
            yield SnapshotRow(entry, table, _decode(found.text), refs)

    def weigh(self, row: SnapshotRow) -> int:
        return 512 + 64 * len(row.summary)


SYSTEM_VIEW = Snapshots()


def _names(table: Table, reader: StoredObjects) -> dict[int, list[str]]:
    """Return the names of a table's branches and tags, by the id of their snapshot."""
    found: dict[int, list[str]] = {}
    for ref in all_refs(table, reader):
        found.setdefault(ref.snapshot_id, []).append(ref.name)
    return found
