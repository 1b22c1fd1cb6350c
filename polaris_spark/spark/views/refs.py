"""The system view `refs`: one row for each branch and tag of each Iceberg table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from polaris_spark.access.needs import Need, On
from polaris_spark.catalog.metadata.overflow import MAIN_REF, all_refs
from polaris_spark.catalog.metadata.rows import Ref, Snapshot, Table
from polaris_spark.catalog.rows import TABLE
from polaris_spark.commits.state import StoredObjects
from polaris_spark.spark.views.columns import BOOLEAN, INT, LONG, STRING, TIMESTAMP, ViewColumn, micros
from polaris_spark.spark.views.entities import (
    IDENTITY,
    WITHOUT_UNLOADED,
    EntityEntry,
    EntityView,
    loaded,
    with_pieces,
)
from polaris_spark.store.objects import ObjectStore

_SNAPSHOT = "snapshot"


class _Settings(msgspec.Struct, rename="kebab"):
    type: str
    max_ref_age_ms: int | None = None
    min_snapshots_to_keep: int | None = None
    max_snapshot_age_ms: int | None = None


class _Time(msgspec.Struct, rename="kebab"):
    timestamp_ms: int | None = None


_settings = msgspec.json.Decoder(_Settings).decode
_time = msgspec.json.Decoder(_Time).decode


class RefRow(NamedTuple):
    """A branch or tag of a table. `time` is its snapshot's time in milliseconds since 1970; None if not requested."""

    entry: EntityEntry
    ref: Ref
    settings: _Settings
    time: int | None


class Refs(EntityView[RefRow]):
    """A system view with one row for each branch and tag of each table."""

    comment = (
        "Branches and tags of every table, one row each; branches of catalogs are in the view branches; "
        f"{WITHOUT_UNLOADED}"
    )
    shown = (Need("TABLE_READ_PROPERTIES", On.TABLE),)
    kind = TABLE
    columns = (
        *IDENTITY,
        ViewColumn("ref", STRING, "Name of the branch or tag", lambda row: row.ref.name),
        ViewColumn("type", STRING, "BRANCH or TAG", lambda row: row.settings.type.upper()),
        ViewColumn("snapshot_id", LONG, "Snapshot that it names", lambda row: row.ref.snapshot_id),
        ViewColumn(
            "snapshot_at",
            TIMESTAMP,
            "Time of that snapshot, by the clock of its author",
            lambda row: micros(row.time),
            _SNAPSHOT,
        ),
        ViewColumn(
            "max_reference_age_in_ms",
            LONG,
            "Age of the snapshot in milliseconds after which expiry drops the ref; null for the table's default",
            lambda row: row.settings.max_ref_age_ms,
        ),
        ViewColumn(
            "min_snapshots_to_keep",
            INT,
            "Of a branch: minimum number of snapshots that expiry keeps; null for the table's default",
            lambda row: row.settings.min_snapshots_to_keep,
        ),
        ViewColumn(
            "max_snapshot_age_in_ms",
            LONG,
            "Of a branch: age in milliseconds up to which expiry keeps snapshots; null for the table's default",
            lambda row: row.settings.max_snapshot_age_ms,
        ),
        ViewColumn("is_main", BOOLEAN, "Whether it is the branch main", lambda row: row.ref.name == MAIN_REF),
    )

    def of(
        self, store: ObjectStore, entries: Iterator[EntityEntry], needs: frozenset[str]
    ) -> Iterator[RefRow]:
        reader = StoredObjects(store)
        refs = (
            RefRow(entry, ref, _settings(ref.text), None)
            for entry, table in loaded(store, entries, Table)
            for ref in all_refs(table, reader)
        )
        if _SNAPSHOT not in needs:
            return refs
        with_snapshots = with_pieces(store, refs, lambda row: row.ref.snapshot, Snapshot)
        return (row._replace(time=_time(found.text).timestamp_ms) for row, found in with_snapshots)

    def weigh(self, row: RefRow) -> int:
        return 256


SYSTEM_VIEW = Refs()
