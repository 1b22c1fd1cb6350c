"""Planning the view `files`: runs of tables of about as many files each, and parts of tables that have more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from polaris_spark.catalog.metadata.overflow import current_piece
from polaris_spark.catalog.metadata.rows import Snapshot, Table
from polaris_spark.catalog.rows import TABLE
from polaris_spark.catalog.summaries import number_in
from polaris_spark.commits.state import StoredObjects
from polaris_spark.index.keys import key_after
from polaris_spark.spark.views.entities import Named, NamesTask, by_id, named, plan_names, with_loaded
from polaris_spark.spark.views.view import Request
from polaris_spark.store.objects import ObjectStore

FILES_TOGETHER = 5_000
"""About how many files one task reads."""

MOST_PARTS = 256
"""Of one table."""

TABLE_WEIGHT = 50
"""Opening a list and a manifest takes about as long as so many entries."""

WEIGHED_TABLES = 20_000
"""Where there are more tables, they are not looked at: enough of them make partitions even."""


class PlannedFiles(NamedTuple):
    """Tables to be read by one task: of their manifests, this part of so many."""

    tables: NamesTask
    part: int
    parts: int
    weight: int


class _Summary(msgspec.Struct):
    summary: dict[str, str] | None = None


_decode = msgspec.json.Decoder(_Summary, strict=False).decode


def plan_files(request: Request) -> Iterator[PlannedFiles]:
    """Tasks for the tables asked for; reads tables' rows, and summaries of their current snapshots."""
    planned = plan_names(request, TABLE, WEIGHED_TABLES)
    realm = request.store.realm(request.options.realm)
    are_many = sum(planned_range.weight for planned_range in planned) > WEIGHED_TABLES
    for tables, entries in planned:
        if are_many:
            yield PlannedFiles(tables, 0, 1, entries * TABLE_WEIGHT)
        else:
            yield from _cut(realm.store, tables)


def _cut(store: ObjectStore, tables: NamesTask) -> Iterator[PlannedFiles]:
    start, together = tables.start, 0
    for entry, weight in _weighed(store, tables):
        following = key_after(entry.key)
        if weight > FILES_TOGETHER:
            if together:
                yield PlannedFiles(tables._replace(start=start, end=entry.key), 0, 1, together)
            parts = min(MOST_PARTS, -(-weight // FILES_TOGETHER))
            alone = tables._replace(start=entry.key, end=following)
            yield from (PlannedFiles(alone, part, parts, weight // parts) for part in range(parts))
            start, together = following, 0
            continue
        together += weight
        if together > FILES_TOGETHER:
            yield PlannedFiles(tables._replace(start=start, end=following), 0, 1, together)
            start, together = following, 0
    if together:
        yield PlannedFiles(tables._replace(start=start), 0, 1, together)


def _weighed(store: ObjectStore, tables: NamesTask) -> Iterator[tuple[Named, int]]:
    """Tables in the order of their keys, each with about how many entries reading it is worth."""
    reader = StoredObjects(store)
    for run, unread in with_loaded(store, named(tables.pin.snapshot(store), tables, TABLE), Table):
        pieces = [current_piece(table, reader) for _, table in run]
        found = by_id(store, pieces, Snapshot)
        weights = [(entry, TABLE_WEIGHT) for entry, _ in unread]
        for (entry, table), piece in zip(run, pieces, strict=True):
            snapshot = found.get(piece)
            if snapshot is not None:
                weights.append((entry, TABLE_WEIGHT + _files(snapshot.text)))
            elif table.snapshots.shard or table.snapshots.keys:
                weights.append((entry, TABLE_WEIGHT))
        yield from sorted(weights, key=lambda one: one[0].key)


def _files(snapshot: bytes) -> int:
    """How many files a snapshot has, by its summary; 0 where that does not tell."""
    try:
        summary = _decode(snapshot).summary or {}
    except msgspec.MsgspecError:
        return 0
    return sum(number_in(summary, name) or 0 for name in ("total-data-files", "total-delete-files"))
