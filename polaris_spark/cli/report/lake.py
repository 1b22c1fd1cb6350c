"""Figures of the tables in the newest commit of a branch: storage, records, and the age of their snapshots."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from polaris_spark.catalog.rows import NAMES, NAMESPACE, TABLE, id_from
from polaris_spark.commits.state import CommitReader
from polaris_spark.index import Entry
from polaris_spark.index.keys import decode_key
from polaris_spark.names import sql_name
from polaris_spark.spark.views.entities import EntityEntry
from polaris_spark.spark.views.tables import Tables

MOST_TABLES = 200_000
"""Maximum number of tables that are read. If there are more, a random sample of this size is read."""

_SEED = 20250301
_LOOK_EVERY = 1_000


class Storage(NamedTuple):
    """Number of tables, and sums of their records and bytes according to the summaries of their current snapshots."""

    tables: int = 0
    records: int = 0
    bytes: int = 0

    def and_one(self, records: int, bytes: int) -> Storage:
        """Return these sums with one more table, which has `records` records and `bytes` bytes."""
        return Storage(self.tables + 1, self.records + records, self.bytes + bytes)


@dataclass
class Lake:
    """Figures of the tables in the newest commit of a branch."""

    namespaces: int = 0
    tables: int = 0
    views: int = 0
    counted: bool = True
    """Whether all tables, views and namespaces were counted within the time limit."""
    read: int = 0
    """Number of tables that were read. If not all were read, they are a random sample of the counted tables."""
    unloaded: int = 0
    """Number of tables read that were imported but never loaded. They are not included in the figures below."""
    total: Storage = field(default_factory=Storage)
    by_namespace: dict[str, Storage] = field(default_factory=dict)
    largest: list[tuple[int, str]] = field(default_factory=list)
    """(bytes, name) of the 100 largest tables with files, the largest first."""
    ages: list[int] = field(default_factory=list)
    """Ages of the current snapshots, in milliseconds."""
    empty: int = 0
    """Number of tables without a current snapshot."""
    kept: list[int] = field(default_factory=list)
    """Number of snapshots of each table."""


def read_lake(head: CommitReader, now_ms: int, until: float) -> Lake:
    """Return figures of a commit's tables. They come from a random sample of at most `MOST_TABLES` tables, or fewer if
    the time `until` of `time.monotonic` is reached first."""
    found = Lake()
    chosen = _choose(head, found, until)
    names = (_named(key, entry) for key, entry in chosen)
    for row in Tables().of(head.store, names, frozenset({"snapshot", "count"})):
        found.read += 1
        namespace = sql_name(row.entry.path)
        if row.unloaded is not None:
            found.unloaded += 1
            continue
        records, size = row.total("total-records") or 0, row.total("total-files-size") or 0
        found.total = found.total.and_one(records, size)
        found.by_namespace[namespace] = found.by_namespace.get(namespace, Storage()).and_one(records, size)
        found.kept.append(row.snapshots)
        if size:
            found.largest.append((size, sql_name((*row.entry.path, row.entry.name))))
        if row.snapshot is None or row.snapshot.timestamp_ms is None:
            found.empty += 1
        else:
            found.ages.append(max(0, now_ms - row.snapshot.timestamp_ms))
        if time.monotonic() >= until:
            break
    found.largest = sorted(found.largest, reverse=True)[:100]
    return found


def _choose(head: CommitReader, found: Lake, until: float) -> list[tuple[bytes, Entry]]:
    """Return at most `MOST_TABLES` tables in random order. This also counts all tables, views and namespaces in
    `found`."""
    draw = random.Random(_SEED)
    chosen: list[tuple[bytes, Entry]] = []
    for key, entry in _names(head, found, until):
        if len(chosen) < MOST_TABLES:
            chosen.append((key, entry))
        elif (place := draw.randrange(found.tables)) < MOST_TABLES:  # reservoir sampling: equal probabilities
            chosen[place] = (key, entry)
    draw.shuffle(chosen)
    return chosen


def _names(head: CommitReader, found: Lake, until: float) -> Iterator[tuple[bytes, Entry]]:
    if NAMES not in head.commit.index_names:
        return
    for position, (key, entry) in enumerate(head.index(NAMES).range()):
        kind = decode_key(key).kind
        if kind == TABLE:
            found.tables += 1
            yield key, entry
        elif kind == NAMESPACE:
            found.namespaces += 1
        else:
            found.views += 1
        if position % _LOOK_EVERY == 0 and time.monotonic() >= until:
            found.counted = False
            return


def _named(key: bytes, entry: Entry) -> EntityEntry:
    path, kind, name = decode_key(key)
    return EntityEntry("", path, kind, name, id_from(entry.value), entry.pointer, key)
