"""Planning of the system view `files`. A task reads a range of tables, or one part of the files of a very large
table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from polaris_spark.catalog.metadata.overflow import current_piece
from polaris_spark.catalog.metadata.rows import Snapshot, Table
from polaris_spark.catalog.rows import TABLE
from polaris_spark.catalog.tables.summaries import number_in
from polaris_spark.commits.state import StoredObjects
from polaris_spark.index.keys import key_after
from polaris_spark.spark.views.entities import EntityEntry, NamesTask, by_id, named, plan_names, with_loaded
from polaris_spark.spark.views.view import ScanRequest, Weighted
from polaris_spark.store.objects import ObjectStore

FILES_TOGETHER = 5_000
"""Approximate number of files that one task reads."""

MOST_PARTS = 256
"""Maximum number of tasks that read one table."""

TABLE_WEIGHT = 50
"""Cost of opening a manifest list and a manifest: the number of manifest entries that can be read in the same time."""

WEIGHED_TABLES = 20_000
"""Maximum number of tables for which planning counts the files of each table. If there are more tables, planning
assumes that all tables have equally many files."""


class FilesPart(NamedTuple):
    """Tables whose files a task shows.

    If `parts` is more than 1, the range is a single large table that several tasks share: this one reads every
    `parts`-th manifest of the table, starting with manifest `number`, counted from 0.
    """

    tables: NamesTask
    number: int = 0
    parts: int = 1


class _Summary(msgspec.Struct):
    summary: dict[str, str] | None = None


_decode = msgspec.json.Decoder(_Summary, strict=False).decode


def plan_files(request: ScanRequest) -> Iterator[Weighted[FilesPart]]:
    """Yield the tasks that read the requested tables, each with its approximate cost.

    Planning takes the number of files of each table from the summary of the table's current snapshot. If there are more
    than `WEIGHED_TABLES` tables, it reads no summaries, and assumes that every table costs the same.
    """
    planned = plan_names(request, TABLE, WEIGHED_TABLES)
    realm = request.store.realm(request.options.realm)
    are_many = sum(planned_range.weight for planned_range in planned) > WEIGHED_TABLES
    for tables, entries in planned:
        if are_many:
            yield Weighted(FilesPart(tables), entries * TABLE_WEIGHT)
        else:
            yield from _cut(realm.store, tables)


def _cut(store: ObjectStore, tables: NamesTask) -> Iterator[Weighted[FilesPart]]:
    start, together = tables.start, 0
    for entry, weight in _weighed(store, tables):
        following = key_after(entry.key)
        if weight > FILES_TOGETHER:
            if together:
                yield Weighted(FilesPart(tables._replace(start=start, end=entry.key)), together)
            parts = min(MOST_PARTS, -(-weight // FILES_TOGETHER))
            alone = tables._replace(start=entry.key, end=following)
            yield from (Weighted(FilesPart(alone, part, parts), weight // parts) for part in range(parts))
            start, together = following, 0
            continue
        together += weight
        if together > FILES_TOGETHER:
            yield Weighted(FilesPart(tables._replace(start=start, end=following)), together)
            start, together = following, 0
    if together:
        yield Weighted(FilesPart(tables._replace(start=start)), together)


def _weighed(store: ObjectStore, tables: NamesTask) -> Iterator[tuple[EntityEntry, int]]:
    """Yield the tables in the order of their keys, each with the cost of reading it, in manifest entries."""
    reader = StoredObjects(store)
    for run, unread in with_loaded(store, named(tables.pin.reader(store), tables, TABLE), Table):
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
    """Return the number of files of a snapshot from its summary; 0 if the summary does not contain the number."""
    try:
        summary = _decode(snapshot).summary or {}
    except msgspec.MsgspecError:
        return 0
    return sum(number_in(summary, name) or 0 for name in ("total-data-files", "total-delete-files"))
