"""Figures from the log of a branch: commits over time, busiest tables, waits, writers, growth."""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from polaris_spark.catalog.branches.change_log import entity_name
from polaris_spark.catalog.rows import TABLE
from polaris_spark.catalog.tables.summaries import number_in
from polaris_spark.commits.log import commits
from polaris_spark.commits.rows import Commit, Entries, LogEntry
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import CorruptionError
from polaris_spark.ids import unpack
from polaris_spark.index.keys import decode_key
from polaris_spark.store.objects import read_each

_READ_TOGETHER = 200


@dataclass
class CommitFigures:
    """Figures of the newest commits of a branch. Times and durations are in milliseconds."""

    commits: int
    """Number of commits from the history floor to the head."""
    floor: int
    """Number of the commit at the history floor, which is the oldest commit kept."""
    read: int = 0
    """Number of commits that were read, beginning with the newest. The figures below are about these commits."""
    changes: int = 0
    """Number of changes in the commits that were read."""
    times: array[int] = field(default_factory=lambda: array("q"))
    """Times of the commits in milliseconds since 1970, the newest first."""
    sizes: array[int] = field(default_factory=lambda: array("q"))
    """Number of changes in each commit, the newest commit first."""
    waits: array[int] = field(default_factory=lambda: array("q"))
    """For each change, the time from its last preparation (attempt to compute it) to its commit, in milliseconds."""
    writers: Counter[str] = field(default_factory=Counter)
    """Number of commits by principal. A commit with changes of several principals counts for each of them."""
    takeovers: int = 0
    """Number of commits whose parent was made by another process. The processes are distinguished by the node numbers
    in the ids."""
    actions: Counter[str] = field(default_factory=Counter)
    """Number of changes by action."""
    tables: Counter[int] = field(default_factory=Counter)
    """Number of changes by the table's entity id."""
    names: dict[int, str] = field(default_factory=dict)
    """The newest name of each table, by entity id."""
    births: list[tuple[int, int]] = field(default_factory=list)
    """(time, 1 if a table was created or -1 if it was dropped) for each of these changes, the newest first."""
    written: list[tuple[int, int]] = field(default_factory=list)
    """(time, records that the snapshot added minus records that it deleted) for each new snapshot, the newest first."""
    damaged: list[str] = field(default_factory=list)
    """A message, with the row's key, for each part of the log that cannot be read."""


def read_history(head: CommitReader, until: float) -> CommitFigures:
    """Return figures from the log of a branch. The log is read from the head `head` (the newest commit) backwards until
    the time `until` of `time.monotonic`."""
    found = CommitFigures(head.head.number - head.head.floor_number + 1, head.head.floor_number)
    walk = commits(head.store, head.head)
    newer: int | None = None
    while run := _next(walk, found):
        entries = _entries(head, [commit for _, commit in run], found)
        for id, commit in run:
            node = unpack(id).node
            found.takeovers += newer is not None and newer != node
            newer = node
            _count(found, commit, entries.get(commit.entries, ()))
        if time.monotonic() >= until:
            break
    return found


def _next(walk: Iterator[tuple[int, Commit]], found: CommitFigures) -> list[tuple[int, Commit]]:
    try:
        return list(islice(walk, _READ_TOGETHER))
    except CorruptionError as error:  # earlier commits cannot be found
        found.damaged.append(str(error))
        return []


def _entries(
    head: CommitReader, run: Iterable[Commit], found: CommitFigures
) -> dict[int, tuple[LogEntry, ...]]:
    ids = [commit.entries for commit in run if commit.entries]
    entries: dict[int, tuple[LogEntry, ...]] = {}
    for id, one in read_each(ids, lambda some: head.store.get_many(some, Entries)).items():
        if isinstance(one, CorruptionError):
            found.damaged.append(str(one))
        else:
            entries[id] = one.entries
    return entries


def _count(found: CommitFigures, commit: Commit, entries: tuple[LogEntry, ...]) -> None:
    found.read += 1
    found.times.append(commit.time)
    found.sizes.append(len(entries))
    found.changes += len(entries)
    found.writers.update({entry.principal for entry in entries})
    for entry in reversed(entries):
        found.actions[entry.action] += 1
        found.waits.append(max(0, commit.time - entry.time))
        if not _is_table(entry.key):
            continue
        found.tables[entry.entity] += 1
        found.names.setdefault(entry.entity, entity_name(entry.key)[1])
        if bool(entry.before) != bool(entry.after):
            found.births.append((commit.time, 1 if entry.after else -1))
        if "snapshot-id" in entry.summary:
            added, deleted = (
                number_in(entry.summary, f"{what}-records") or 0 for what in ("added", "deleted")
            )
            found.written.append((commit.time, added - deleted))


def _is_table(key: bytes) -> bool:
    try:
        return decode_key(key).kind == TABLE
    except CorruptionError:  # from a recovery: the key is a reference's name
        return False
