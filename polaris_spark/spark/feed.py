"""The feed: a stream reads the log of one reference in order.

A position in the log is a commit and the number of its log entries that have been read. Before each batch, the position
is checked against the reference's current head (newest commit). The stream fails if the position's commit is no longer
in the history of the head, or if commits after the position were trimmed. The stream never skips changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import msgspec

from polaris_spark.catalog.references import head_name
from polaris_spark.clock import SystemClock
from polaris_spark.commits.as_of import AsOf, pinned
from polaris_spark.commits.log import ancestor
from polaris_spark.commits.rows import Commit, Entries, Head
from polaris_spark.errors import (
    BeforeHistoryError,
    HistoryTrimmedError,
    InputError,
    NotFoundError,
    ReferenceGoneError,
    StateError,
)
from polaris_spark.spark.options import EARLIEST, LATEST, ViewOptions
from polaris_spark.spark.realm_reader import RealmReader
from polaris_spark.spark.views.history import READ_TOGETHER, HistoryTask
from polaris_spark.spark.views.view import partition_count
from polaris_spark.store.objects import ObjectStore
from polaris_spark.system.registry import ROOT

COMMITS_PER_PARTITION = 200
"""Approximate minimum number of commits in a partition. Reading fewer commits takes less time than starting a task."""


class Position(NamedTuple):
    """A position in a log: the last commit that was read, completely or in part."""

    commit: int
    """Id of this commit."""
    number: int
    """Commit number of this commit."""
    entries: int | None = None
    """Number of the commit's log entries that have been read; None if all have been read."""

    @property
    def next(self) -> int:
        """Commit number of the first commit that has not been read completely."""
        return self.number + (self.entries is None)

    def __str__(self) -> str:
        read = "" if self.entries is None else f", {self.entries} of its log entries"
        return f"commit {self.commit} (number {self.number}{read})"


class Followed(NamedTuple):
    """The reference that a stream reads, and the current head of the reference."""

    realm: str
    """Instance id of the realm that contains the reference."""
    catalog: str | None
    name: str
    row_name: str
    """Name of the reference's database row: the reference's name and generation. The generation differs after the
    reference is dropped and created again."""
    head: Head


class FeedTask(NamedTuple):
    """The input of one task: a range of commits, and limits on the log entries of its first and last commit."""

    history: HistoryTask
    skip: int
    """Number of log entries at the start of the first commit that an earlier batch has read, so the task skips them."""
    until: int | None
    """Number of log entries of the last commit after which the task stops, counted from the start of the commit. None
    to read all its log entries."""

    def wants(self, number: int, position: int) -> bool:
        """Return whether the task reads the log entry at `position` (from 0) of the commit with this commit number."""
        if number == self.history.low and position < self.skip:
            return False
        return self.until is None or number < self.history.high or position < self.until


def follow(realm: RealmReader, options: ViewOptions) -> Followed:
    """Return the reference that the options name: a catalog's branch, or the reference in the option `reference`.

    Raises:
        InputError: the options name neither a catalog nor a reference, or both.
        ReferenceGoneError: the catalog or the reference was dropped, or never existed.
    """
    name, catalog = options.stream.reference, None
    if (name is None) == (options.catalog is None):
        raise InputError("a stream reads one reference: give either 'catalog' (and 'branch') or 'reference'")
    if name == ROOT:
        return Followed(realm.store.realm, None, ROOT, ROOT, realm.root())
    try:
        if name is None:
            found = realm.catalog(str(options.catalog))
            name, catalog = head_name(found, options.branch), found.name
        registered, head = realm.live(name)
    except (ReferenceGoneError, NotFoundError) as error:
        what = (
            repr(name)
            if options.catalog is None
            else f"of catalog {options.catalog!r}, branch {options.branch!r}"
        )
        raise ReferenceGoneError(
            f"the reference {what} cannot be followed: it was dropped or never existed ({error})"
        ) from None
    return Followed(realm.store.realm, catalog, name, registered.row_name, head)


def starting(store: ObjectStore, head: Head, start: str | AsOf) -> Position:
    """Return the position after which a stream begins. A time before the first commit means `EARLIEST`.

    Raises:
        HistoryTrimmedError: `start` is older than the oldest commit that is still stored.
        InputError: `start` is a time in the future, or the number or id of a commit that is not in this history.
    """
    earliest = Position(ancestor(store, head, head.floor_number), head.floor_number, 0)
    if isinstance(start, AsOf):
        if start.time is not None and start.time > max(head.time, SystemClock().now_ms()):
            raise InputError(
                f"start is {start.text!r}, which is in the future by this machine's clock: a stream cannot begin after "
                "commits that do not exist yet; use start=latest and filter by committed_at, or start the stream later"
            )
        try:
            point = pinned(store, head, start)
        except BeforeHistoryError:
            return earliest
        return Position(point.commit, point.number)
    assert start in (EARLIEST, LATEST)
    return earliest if start == EARLIEST else Position(head.commit, head.number)


def verify(store: ObjectStore, followed: Followed, at: Position) -> None:
    """Check that a position is in the history of the reference's head, and that no commit after it was trimmed.

    Raises:
        HistoryTrimmedError: a commit after the position was trimmed.
        StateError: the position is not in the head's history.
    """
    head = followed.head
    if at.next < head.floor_number:
        raise HistoryTrimmedError(
            f"the stream has read {followed.name!r} up to {at}, but the reference's history was trimmed meanwhile and "
            f"begins with commit number {head.floor_number}: this stream has missed changes; begin a new stream, with "
            "another checkpoint, and keep history for longer (history-retention)"
        )
    if at.number > head.number:
        there = None
    elif at.number >= head.floor_number:
        there = ancestor(store, head, at.number)
    else:  # the newest trimmed commit is the parent of the oldest commit that is left
        there = store.get(ancestor(store, head, head.floor_number), Commit).parents[0]
    if there != at.commit:
        raise StateError(
            f"the stream has read {followed.name!r} up to {at}, which is not in the history of its head, commit "
            f"{head.commit} (number {head.number}): {followed.name!r} was recovered to an older state; begin a new "
            "stream, with another checkpoint"
        )


def advanced(store: ObjectStore, head: Head, at: Position, most: int | None) -> Position:
    """Return the end of the batch that begins at `at`. This is the head, or an earlier position if `most` limits the
    batch.

    Args:
        most: maximum number of changes in the batch; None for no limit. With a limit, this function reads the log
            entries of the batch to count them.
    """
    end = Position(head.commit, head.number)
    if most is None or at == end:
        return end
    for id, commit in chain.from_iterable(runs(store, head, at.next, head.number)):
        count = len(store.get(commit.entries, Entries).entries) if commit.entries else 0
        read = (at.entries or 0) if commit.number == at.number else 0
        if count - read > most:
            return Position(id, commit.number, read + most) if most else at
        most -= count - read
        at = Position(id, commit.number)
    return end


def tasks(
    store: ObjectStore, followed: Followed, start: Position, end: Position, splits: int
) -> list[FeedTask]:
    """Return tasks that together read the changes between two positions. The tasks are in the order of the log.

    Raises:
        HistoryTrimmedError: a commit after the start was trimmed.
        StateError: a position is not in the history of the head, or the end is before the start.
    """
    verify(store, followed, end)
    if start == end:
        return []
    verify(store, followed, start)
    if (start.number, _read(start)) > (end.number, _read(end)):
        raise StateError(
            f"the batch would end at {end}, which is before its start, {start}: check that the checkpoint belongs "
            "to this stream, and that the options are right"
        )
    time = store.get(end.commit, Commit).time
    head = msgspec.structs.replace(followed.head, commit=end.commit, number=end.number, time=time)
    low, high = start.next, end.number
    step = -(-(high - low + 1) // partition_count(splits, high - low + 1, COMMITS_PER_PARTITION))
    found = []
    for first in range(low, high + 1, step):
        last = min(high, first + step - 1)
        history = HistoryTask(followed.realm, followed.catalog, followed.name, head, first, last)
        skip = start.entries or 0 if first == start.number else 0
        found.append(FeedTask(history, skip, end.entries if last == high else None))
    return found


def _read(at: Position) -> float:
    return float("inf") if at.entries is None else at.entries


def runs(store: ObjectStore, head: Head, low: int, high: int) -> Iterator[list[tuple[int, Commit]]]:
    """Yield the commits from number `low` to number `high` (both included), oldest first, in lists of (id, commit).

    Each list is read from the database in one batch.
    """
    for first in range(low, high + 1, READ_TOGETHER):
        last = ancestor(store, head, min(high, first + READ_TOGETHER - 1))
        newest = store.get(last, Commit)
        ids = [last, *newest.parents[: newest.number - first]]
        found = store.get_many(ids, Commit)
        yield [(id, found[id]) for id in reversed(ids)]
