"""Walking the history of a reference: ancestors by number, commits newest first, log entries."""

from __future__ import annotations

from collections.abc import Iterator

from polaris_spark.clock import iso_text
from polaris_spark.commits.rows import FIRST_SKIP, Commit, Entries, Head, LogEntry
from polaris_spark.errors import HistoryTrimmedError
from polaris_spark.store.objects import ObjectStore


def ancestor(store: ObjectStore, head: Head, number: int) -> int:
    """The id of the commit with `number` in the history of `head`, in O(log n) reads.

    Raises:
        HistoryTrimmedError: it lies below the history floor.
        ValueError: it is newer than the head, or negative.
    """
    if number < 0 or number > head.number:
        raise ValueError(f"no commit {number} in a history of {head.number}")
    if number < head.floor_number:
        raise HistoryTrimmedError(f"commit {number} lies below the history floor, commit {head.floor_number}")
    id, at = head.commit, head.number
    while at > number:
        id, at = _step(store.get(id, Commit), number)
    return id


def _step(commit: Commit, target: int) -> tuple[int, int]:
    """The farthest known ancestor of `commit` that is not older than number `target`: (id, its number)."""
    distance = commit.number - target
    if distance <= len(commit.parents):
        return commit.parents[distance - 1], target
    last = commit.number - 1
    for level in range(len(commit.skips) - 1, -1, -1):
        shift = level + FIRST_SKIP
        number = last >> shift << shift
        if number >= target:
            return commit.skips[level], number
    return commit.parents[-1], commit.number - len(commit.parents)


def commit_at(store: ObjectStore, head: Head, time: int) -> int:
    """The id of the newest commit whose time is at most `time` (milliseconds since 1970), by bisection.

    Raises:
        HistoryTrimmedError: every commit from the floor on is newer.
    """
    low, high = head.floor_number, head.number
    first = store.get(ancestor(store, head, low), Commit).time
    if first > time:
        raise HistoryTrimmedError(
            f"the history of this reference begins at {iso_text(first)}, after the time asked for, {iso_text(time)}"
        )
    while low < high:
        middle = (low + high + 1) // 2
        if store.get(ancestor(store, head, middle), Commit).time <= time:
            low = middle
        else:
            high = middle - 1
    return ancestor(store, head, low)


def commits(store: ObjectStore, head: Head) -> Iterator[tuple[int, Commit]]:
    """(id, commit) from the head back to the history floor."""
    pending = [head.commit]
    while pending:
        loaded = store.get_many(pending, Commit)
        for id in pending:
            commit = loaded[id]
            yield id, commit
        wanted = min(len(commit.parents), commit.number - head.floor_number)
        pending = list(commit.parents[: max(0, wanted)])


def entries(store: ObjectStore, head: Head) -> Iterator[tuple[int, Commit, int, LogEntry]]:
    """(commit id, commit, position, entry) from the newest change back to the history floor."""
    for id, commit in commits(store, head):
        if commit.entries:
            listed = store.get(commit.entries, Entries).entries
            for position in range(len(listed) - 1, -1, -1):
                yield id, commit, position, listed[position]
