"""Walking the history of a reference: ancestors, commits in order, commits at a time."""

from __future__ import annotations

import itertools

import pytest

from polaris_spark.clock import ManualClock
from polaris_spark.commits.log import ancestor, commit_at, commits, entries
from polaris_spark.errors import HistoryTrimmedError

from .support import Add, committer


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
        HistoryTrimmedError, match=r"begins at 2025-.*Z, after the time asked for, 1970-01-01T00:00:00\.000Z$"
    ):
        commit_at(head.store, head.head, 0)
