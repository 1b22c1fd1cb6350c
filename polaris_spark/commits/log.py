"""Functions that walk the history of a reference: find an ancestor by number or time, and list commits and log entries
from the newest back."""

from __future__ import annotations

from collections.abc import Iterator

from polaris_spark.clock import AHEAD_MS, iso_text
from polaris_spark.commits.rows import FIRST_SKIP, INLINE_PARENTS, Commit, Entries, Head, LogEntry
from polaris_spark.errors import BeforeHistoryError, HistoryTrimmedError
from polaris_spark.store.objects import ObjectStore


def ancestor(store: ObjectStore, head: Head, number: int) -> int:
    """Return the id of the commit with `number` in the history of `head`, in O(log n) reads.

    Raises:
        HistoryTrimmedError: `number` is below the history floor, the number of the oldest commit that is kept.
        ValueError: `number` is larger than the head's number, or negative.
    """
    if number < 0 or number > head.number:
        raise ValueError(f"there is no commit {number}: the newest commit has the number {head.number}")
    if number < head.floor_number:
        raise HistoryTrimmedError(
            f"commit {number} is no longer in the history, which begins at commit {head.floor_number}"
        )
    id, at = head.commit, head.number
    while at > number:
        id, at = _step(store.get(id, Commit), number)
    return id


def _step(commit: Commit, target: int) -> tuple[int, int]:
    """Return (id, number) of the farthest ancestor that `commit` lists and whose number is at least `target`."""
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
    """Return the id of the newest commit whose time is at most `time` (milliseconds since 1970), found by bisection.

    Raises:
        HistoryTrimmedError: every commit that is still in the history is later than `time`.
        BeforeHistoryError: every commit is later than `time`, and the history was never trimmed.
    """
    first = 0
    for low, high in reversed(_spans(head)):
        first = store.get(ancestor(store, head, low), Commit).time
        if first <= time:
            return _newest_until(store, head, low, high, time)
    if head.floor_number:
        raise HistoryTrimmedError(f"the history of this reference was trimmed and {_begins(first, time)}")
    raise before_history(first, time)


def before_history(first: int, time: int) -> BeforeHistoryError:
    """Return the error for a time before the first commit. Times are in milliseconds since 1970."""
    return BeforeHistoryError(f"the history of this reference {_begins(first, time)}")


def _begins(first: int, time: int) -> str:
    return f"begins at {iso_text(first)}, after the time asked for, {iso_text(time)}"


def last_before(store: ObjectStore, head: Head, time: int, now_ms: int) -> int | None:
    """Return the id of the newest commit such that it and all its ancestors have times of at most `time`.

    Return None if there is no such commit. Times are milliseconds since 1970. Commits more than `AHEAD_MS` after
    `now_ms` are ignored, because a process whose clock was ahead made them. All other commits count: if one is later
    than `time`, the result is one of its ancestors, even if it has a child with an earlier time because another clock
    was behind.
    """
    found = None
    for low, high in _spans(head):
        first = store.get(ancestor(store, head, low), Commit)
        if first.time <= time:
            found = _newest_until(store, head, low, high, time)
            number = store.get(found, Commit).number
            if number == high:
                continue
            first = store.get(ancestor(store, head, number + 1), Commit)
        if first.time <= now_ms + AHEAD_MS:
            break
    return found


def _spans(head: Head) -> list[tuple[int, int]]:
    """Return (first, last) commit number of each span of the history in which every commit is later than its parent,
    oldest span first."""
    resets = [number for number in head.time_resets if head.floor_number < number <= head.number]
    return list(
        zip((head.floor_number, *resets), (*(number - 1 for number in resets), head.number), strict=True)
    )


def _newest_until(store: ObjectStore, head: Head, low: int, high: int, time: int) -> int:
    """Return the id of the newest commit numbered `low` to `high` whose time is at most `time`.

    Times must increase in that range, and the time of commit `low` must be at most `time`.
    """
    while low < high:
        middle = (low + high + 1) // 2
        if store.get(ancestor(store, head, middle), Commit).time <= time:
            low = middle
        else:
            high = middle - 1
    return ancestor(store, head, low)


def commits(store: ObjectStore, head: Head) -> Iterator[tuple[int, Commit]]:
    """Yield (id, commit) from the head back to the history floor, the oldest commit that is kept."""
    pending = [head.commit]
    while pending:
        loaded = store.get_many(pending, Commit)
        for id in pending:
            commit = loaded[id]
            yield id, commit
        wanted = min(len(commit.parents), commit.number - head.floor_number)
        pending = list(commit.parents[: max(0, wanted)])


def oldest_first(store: ObjectStore, head: Head, low: int, high: int) -> Iterator[list[tuple[int, Commit]]]:
    """Yield the commits from number `low` to number `high` (both included), oldest first, in lists of (id, commit).

    Each list is read from the database in one batch: a commit, and the ancestors that it lists in `parents`.
    """
    for first in range(low, high + 1, INLINE_PARENTS):
        last = ancestor(store, head, min(high, first + INLINE_PARENTS - 1))
        newest = store.get(last, Commit)
        ids = [last, *newest.parents[: newest.number - first]]
        found = store.get_many(ids, Commit)
        yield [(id, found[id]) for id in reversed(ids)]


def entries(store: ObjectStore, head: Head) -> Iterator[tuple[int, Commit, int, LogEntry]]:
    """Yield (commit id, commit, position of the entry in the commit, entry) from the newest change back to the oldest
    commit that is kept."""
    for id, commit in commits(store, head):
        if commit.entries:
            listed = store.get(commit.entries, Entries).entries
            for position in range(len(listed) - 1, -1, -1):
                yield id, commit, position, listed[position]
