"""Walking the history of a reference: ancestors, commits in order, commits at a time."""

from __future__ import annotations

import itertools
import uuid

import msgspec
import pytest

from polaris_spark.backends.memory import MemoryBackend
from polaris_spark.clock import AHEAD_MS, ManualClock
from polaris_spark.commits.log import ancestor, commit_at, commits, entries
from polaris_spark.commits.rows import MOST_RESETS, next_time
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import BeforeHistoryError, HistoryTrimmedError

from .support import Add, committer, references


def test_every_ancestor_is_found_in_few_reads() -> None:
    c = committer()
    ids = [c.read().head.commit]
    for _ in range(700):
        c.commit(Add("a"))
        ids.append(c.read().head.commit)
    head = c.read()
    assert [ancestor(head.store, head.head, n) for n in range(701)] == ids
    reads: list[int] = []
    inner = head.store.get
    head.store.get = lambda id, cls: reads.append(id) or inner(id, cls)  # type: ignore[method-assign,func-returns-value]  # counts
    ancestor(head.store, head.head, 3)
    assert len(reads) <= 14


def test_the_history_walks_back_from_the_head_in_order_and_times_grow() -> None:
    clock = ManualClock()
    c = committer(clock=clock)
    for n in range(60):
        c.commit(Add(f"k{n}"))
        if n == 30:
            clock.set_wall(clock.now_ms() - 3_600_000)
    head = c.read()
    listed = [commit for _, commit in commits(head.store, head.head)]
    assert [commit.number for commit in listed] == list(range(60, -1, -1))
    assert all(newer.time > older.time for newer, older in itertools.pairwise(listed))
    assert [entry.key.decode() for *_, entry in entries(head.store, head.head)] == [
        f"k{n}" for n in range(59, -1, -1)
    ]


def history_with_a_wrong_clock(ahead: int) -> tuple[ManualClock, CommitReader]:
    """20 commits, then 20 by a process whose clock is ahead, then 20 by the first one."""
    clock, backend = ManualClock(), MemoryBackend(f"log-{uuid.uuid4()}")
    right = references(backend, clock=clock).root
    wrong = references(backend, clock=ManualClock(clock.now_ms() + ahead)).root
    for first, maker in ((0, right), (20, wrong), (40, right)):
        maker.read()
        for n in range(first, first + 20):
            clock.advance(1_000)
            maker.commit(Add(f"k{n}"))
    return clock, right.read()


@pytest.mark.parametrize("ahead", [AHEAD_MS + 60_000, 400 * 86_400_000, 10 * 365 * 86_400_000])
def test_commit_times_return_to_the_present_after_a_clock_that_was_far_ahead(ahead: int) -> None:
    clock, head = history_with_a_wrong_clock(ahead)
    assert head.head.time_resets == (41,)
    assert head.head.time == clock.now_ms()


@pytest.mark.parametrize("ahead", [60_000, AHEAD_MS - 3_600_000])
def test_commit_times_stay_above_those_of_a_clock_that_was_a_little_ahead(ahead: int) -> None:
    _, head = history_with_a_wrong_clock(ahead)
    assert head.head.time_resets == ()
    listed = [commit for _, commit in commits(head.store, head.head)]
    assert all(newer.time > older.time for newer, older in itertools.pairwise(listed))


def test_time_travel_finds_the_newest_commit_not_later_than_a_time_even_after_a_clock_was_far_ahead() -> None:
    _, head = history_with_a_wrong_clock(400 * 86_400_000)
    listed = list(commits(head.store, head.head))
    times = sorted({commit.time for _, commit in listed})
    for time in [*times, *(time + 500 for time in times)]:
        newest = next(id for id, commit in listed if commit.time <= time)
        assert commit_at(head.store, head.head, time) == newest
    with pytest.raises(BeforeHistoryError, match="begins at"):
        commit_at(head.store, head.head, times[0] - 1)


def test_a_history_trimmed_above_the_commits_of_a_wrong_clock_does_not_need_them() -> None:
    clock, head = history_with_a_wrong_clock(400 * 86_400_000)
    floor = msgspec.structs.replace(head.head, floor_number=45)
    assert next_time(floor, head.commit, clock.now_ms()) == (head.head.time + 1, ())
    with pytest.raises(HistoryTrimmedError):
        commit_at(head.store, floor, head.head.time - 60_000)


def test_the_number_of_times_that_time_goes_back_in_a_history_is_bounded() -> None:
    _, head = history_with_a_wrong_clock(400 * 86_400_000)
    full = msgspec.structs.replace(head.head, time_resets=tuple(range(1, MOST_RESETS + 1)))
    time = head.commit.time
    assert next_time(full, head.commit, time - 2 * AHEAD_MS) == (time + 1, full.time_resets)


def test_a_time_names_the_newest_commit_that_is_not_later() -> None:
    clock = ManualClock()
    c = committer(clock=clock)
    at = []
    for _ in range(50):
        clock.advance(1_000)
        c.commit(Add("a"))
        at.append((clock.now_ms(), c.read().head.commit))
    head = c.read()
    for time, commit in at:
        assert commit_at(head.store, head.head, time + 999) == commit
    with pytest.raises(
        BeforeHistoryError, match=r"begins at 2025-.*Z, after the time asked for, 1970-01-01T00:00:00\.000Z$"
    ):
        commit_at(head.store, head.head, 0)
