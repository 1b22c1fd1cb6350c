"""The feed: a stream reads the log of one reference in order, first the archived log of trimmed commits.

A position in the log is a commit and the number of its log entries that have been read. Before each batch, the position
is checked against the reference's current head (newest commit). The stream fails if the position's commit is no longer
in the history of the head, or if the log of commits after the position is gone. The stream never skips changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import msgspec

from polaris_spark.catalog.branches.archived_log import ArchivedLog, first_after
from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.clock import SystemClock
from polaris_spark.commits.as_of import AsOf
from polaris_spark.commits.log import ancestor, oldest_first
from polaris_spark.commits.rows import Commit, Entries, Head
from polaris_spark.errors import (
    HistoryTrimmedError,
    InputError,
    NotFoundError,
    ReferenceGoneError,
    StateError,
)
from polaris_spark.spark.options import EARLIEST, LATEST, ViewOptions
from polaris_spark.spark.realm_reader import RealmReader
from polaris_spark.spark.views.history import HistoryTask, sees_log
from polaris_spark.store.objects import ObjectStore
from polaris_spark.system.registry import ROOT

COMMITS_PER_PARTITION = 200
"""Approximate minimum number of commits in a partition. Reading fewer commits takes less time than starting a task."""


_COMMITS_OF_A_TASK = 50
"""Maximum number of stored commits that one task reads. A partition can have several tasks."""


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
    archived: ArchivedLog
    """The log of the commits that were trimmed."""

    def commit(self, store: ObjectStore, number: int) -> tuple[int, Commit]:
        """Return the id of a commit in the log, and the commit, which can be an archived one."""
        found = self.archived.commit(store, number) if number < self.head.floor_number else None
        if found is not None:
            return found.id, found.commit
        id = ancestor(store, self.head, number)
        return id, store.get(id, Commit)


class FeedTask(NamedTuple):
    """The input of one task: a range of commits, and limits on the log entries of its first and last commit."""

    history: HistoryTask
    skip: int
    """Number of log entries at the start of the first commit that an earlier batch has read, so the task skips them."""
    until: int | None
    """Number of log entries of the last commit after which the task stops, counted from the start of the commit. None
    to read all its log entries."""

    @property
    def commits(self) -> int:
        """Number of commits to read."""
        return self.history.high - self.history.low + 1

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
    if name == ROOT and (realm.scope is None or realm.scope.sees_realm):
        root = realm.root()
        return Followed(realm.store.realm, None, ROOT, ROOT, root, realm.archive().of(root, ROOT, ROOT))
    try:
        if name is not None and realm.scope is not None and not sees_log(realm.scope, name):
            raise ReferenceGoneError(f"reference {name!r} of realm {realm.record.name!r} does not exist")
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
    archived = realm.archive().of(head, name, registered.row_name)
    return Followed(realm.store.realm, catalog, name, registered.row_name, head, archived)


def starting(store: ObjectStore, followed: Followed, start: str | AsOf) -> Position:
    """Return the position after which a stream begins. A time before the first commit means `EARLIEST`.

    Raises:
        HistoryTrimmedError: log entries are missing between `start` and the oldest commit whose log is kept.
        InputError: `start` is a time in the future, or the number or id of a commit that is not in this history.
    """
    head = followed.head
    oldest = followed.archived.oldest
    earliest = Position(followed.commit(store, oldest)[0], oldest, 0)
    if isinstance(start, AsOf):
        if start.time is not None and start.time > max(head.time, SystemClock().now_ms()):
            raise InputError(
                f"start is {start.text!r}, which is in the future by this machine's clock: a stream cannot begin after "
                "commits that do not exist yet; use start=latest and filter by committed_at, or start the stream later"
            )
        first = first_after(store, head, followed.archived, start)
        if first == oldest:
            return earliest
        return Position(followed.commit(store, first - 1)[0], first - 1)
    assert start in (EARLIEST, LATEST)
    return earliest if start == EARLIEST else Position(head.commit, head.number)


def verify(store: ObjectStore, followed: Followed, at: Position) -> None:
    """Check that a position is in the history of the reference's head, and that the logs of all commits after the
    position are still stored.

    Raises:
        HistoryTrimmedError: the log of a commit after the position is gone.
        StateError: the position is not in the head's history.
    """
    head, oldest = followed.head, followed.archived.oldest
    if at.next < oldest:
        raise HistoryTrimmedError(
            f"the stream has read {followed.name!r} up to {at}, but the reference's log was trimmed meanwhile and "
            f"begins with commit number {oldest}: this stream has missed changes; begin a new stream, with another "
            "checkpoint, and keep the log for longer (log-retention)"
        )
    if at.number > head.number:
        there = None
    elif at.number >= oldest:
        there = followed.commit(store, at.number)[0]
    else:  # the commit before the oldest one whose log is kept
        there = followed.commit(store, oldest)[1].parents[0]
    if there != at.commit:
        raise StateError(
            f"the stream has read {followed.name!r} up to {at}, which is not in the history of its head, commit "
            f"{head.commit} (number {head.number}): {followed.name!r} was recovered to an older state; begin a new "
            "stream, with another checkpoint"
        )


def advanced(store: ObjectStore, followed: Followed, at: Position, most: int | None) -> Position:
    """Return the end of the batch that begins at `at`. This is the head, or an earlier position if `most` limits the
    batch.

    Args:
        most: maximum number of changes in the batch; None for no limit. With a limit, this function reads the log
            entries of the batch to count them.
    """
    head = followed.head
    end = Position(head.commit, head.number)
    if most is None or at == end:
        return end
    for id, commit, count in _counted(store, followed, at.next):
        read = (at.entries or 0) if commit.number == at.number else 0
        if count - read > most:
            return Position(id, commit.number, read + most) if most else at
        most -= count - read
        at = Position(id, commit.number)
    return end


def _counted(store: ObjectStore, followed: Followed, first: int) -> Iterator[tuple[int, Commit, int]]:
    """Yield the commits from number `first` on, oldest first, as (id, commit, number of its log entries)."""
    head = followed.head
    for one in followed.archived.oldest_first(store, first):
        yield one.id, one.commit, len(one.entries)
    for id, commit in chain.from_iterable(
        oldest_first(store, head, max(first, head.floor_number), head.number)
    ):
        yield id, commit, len(store.get(commit.entries, Entries).entries) if commit.entries else 0


def tasks(store: ObjectStore, followed: Followed, start: Position, end: Position) -> list[FeedTask]:
    """Return small tasks that together read the changes between two positions. The tasks are in the order of the log.

    Raises:
        HistoryTrimmedError: the log of a commit after the start is gone.
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

    def task(head: Head, first: int, last: int, parts: tuple[int, ...] = ()) -> FeedTask:
        history = HistoryTask(
            followed.realm, followed.catalog, followed.name, head, first, last, parts, followed.head
        )
        skip = start.entries or 0 if first == start.number else 0
        return FeedTask(history, skip, end.entries if last == high else None)

    low, high, floor = start.next, end.number, followed.head.floor_number
    found = [
        task(followed.head, max(low, part.first), min(high, floor - 1, part.range.last), (part.id,))
        for part in followed.archived.between(low, min(high, floor - 1))
    ]
    low = max(low, floor)
    if low > high:
        return found
    time = store.get(end.commit, Commit).time
    head = msgspec.structs.replace(followed.head, commit=end.commit, number=end.number, time=time)
    step = _COMMITS_OF_A_TASK
    return found + [task(head, first, min(high, first + step - 1)) for first in range(low, high + 1, step)]


def _read(at: Position) -> float:
    return float("inf") if at.entries is None else at.entries
