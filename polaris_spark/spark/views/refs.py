"""The view `refs`: one row per branch and tag of every table."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import NamedTuple

import msgspec

from polaris_spark.catalog.metadata.overflow import MAIN_REF, all_refs
from polaris_spark.catalog.metadata.rows import Ref, Snapshot, Table
from polaris_spark.catalog.rows import TABLE
from polaris_spark.commits.state import StoredObjects
from polaris_spark.spark.views.columns import BOOLEAN, INT, LONG, STRING, TIMESTAMP, ViewColumn, micros
from polaris_spark.spark.views.entities import (
    IDENTITY,
    READ_TOGETHER,
    EntityEntry,
    EntityView,
    by_id,
    with_loaded,
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
    """A branch or tag of a table; `time` is its snapshot's time in milliseconds since 1970, if it was requested."""

    entry: EntityEntry
    ref: Ref
    settings: _Settings
    time: int | None


class Refs(EntityView[RefRow]):
    """One row per branch and tag."""

    name = "refs"
    comment = "Branches and tags of every table, one row each"
    kind = TABLE
    one_each = False
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
        tables = chain.from_iterable(run for run, _ in with_loaded(store, entries, Table))
        reader = StoredObjects(store)
        refs = ((entry, ref) for entry, table in tables for ref in all_refs(table, reader))
        while some := list(islice(refs, READ_TOGETHER)):
            wanted = [ref.snapshot for _, ref in some] if _SNAPSHOT in needs else []
            snapshots = by_id(store, wanted, Snapshot)
            for entry, ref in some:
                found = snapshots.get(ref.snapshot)
                time = _time(found.text).timestamp_ms if found else None
                yield RefRow(entry, ref, _settings(ref.text), time)

    def weigh(self, row: RefRow) -> int:
        return 256
