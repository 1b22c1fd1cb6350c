"""The history of a reference, compared with a list of its commits, while it grows, is trimmed, and times jump."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from polaris_spark.clock import AHEAD_MS, ManualClock
from polaris_spark.commits.log import ancestor, commit_at, commits, entries, last_before
from polaris_spark.commits.rows import Commit
from polaris_spark.commits.state import CommitReader
from polaris_spark.commits.upkeep import fence, raise_floor
from polaris_spark.errors import BeforeHistoryError, HistoryTrimmedError
from tests.commits.support import Add, committer

DAY = 86_400_000


class History(RuleBasedStateMachine):
    """Ancestors, commits at a time and log entries are equal to those of a list of all commits, from the floor on."""

    @initialize()
    def begin(self) -> None:
        self.clock = ManualClock()
        self.committer = committer(clock=self.clock)
        first = self.head()
        self.ids = [first.head.commit]
        self.times = [first.head.time]
        self.keys: list[list[str]] = [[]]
        self.floor = self.fence = 0

    def head(self) -> CommitReader:
        return self.committer.read()

    @rule(number=st.sampled_from([1, 1, 3, 17, 40]), key=st.sampled_from("abc"))
    def commit(self, number: int, key: str) -> None:
        for _ in range(number):
            self.committer.commit(Add(key))
            head = self.head().head
            self.ids.append(head.commit)
            self.times.append(head.time)
            self.keys.append([key])

    @rule(ms=st.sampled_from([1, 1_000, 3_600_000, -1, -3_600_000, 40 * DAY, -3 * DAY, -40 * DAY]))
    def set_the_clock(self, ms: int) -> None:
        self.clock.set_wall(self.clock.now_ms() + ms)

    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        head = self.head()
        number = data.draw(st.integers(0, head.head.number))  # below the floor, too: it never goes back
        id = self.ids[number]
        commit = head.store.get(id, Commit)
        self.committer.amend(lambda head: raise_floor(head, commit))
        self.floor = max(self.floor, number)

    @rule(data=st.data())
    def fence(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(self.ids))
        self.committer.amend(lambda head: fence(head, id))
        self.fence = max(self.fence, id)

    @rule(data=st.data())
    def find_an_ancestor(self, data: st.DataObject) -> None:
        head = self.head()
        number = data.draw(st.integers(0, head.head.number))
        if number < self.floor:
            with pytest.raises(HistoryTrimmedError):
                ancestor(head.store, head.head, number)
        else:
            assert ancestor(head.store, head.head, number) == self.ids[number]

    @rule(data=st.data(), off=st.sampled_from([-1, 0, 1]))
    def find_the_commit_of_a_time(self, data: st.DataObject, off: int) -> None:
        head = self.head()
        time = data.draw(st.sampled_from(self.times)) + off
        kept = [number for number in range(self.floor, len(self.ids)) if self.times[number] <= time]
        if kept:
            assert commit_at(head.store, head.head, time) == self.ids[kept[-1]]
        else:
            with pytest.raises(HistoryTrimmedError if self.floor else BeforeHistoryError):
                commit_at(head.store, head.head, time)

    @rule(data=st.data(), off=st.sampled_from([-1, 0, 1]), age=st.sampled_from([0, 3_600_000, 3 * DAY]))
    def find_what_is_old(self, data: st.DataObject, off: int, age: int) -> None:
        head = self.head()
        limit = data.draw(st.sampled_from(self.times)) + off
        now = limit + age
        old = None
        for number in range(self.floor, len(self.ids)):
            if self.times[number] <= limit:
                old = self.ids[number]
            elif self.times[number] <= now + AHEAD_MS:
                break
        assert last_before(head.store, head.head, limit, now) == old

    @rule()
    def walk_back(self) -> None:
        head = self.head()
        listed = list(commits(head.store, head.head))
        assert [id for id, _ in listed] == self.ids[self.floor :][::-1]
        assert [commit.time for _, commit in listed] == self.times[self.floor :][::-1]
        found = [entry.key.decode() for *_, entry in entries(head.store, head.head)]
        assert found == [key for keys in reversed(self.keys[self.floor :]) for key in keys]

    @invariant()
    def the_row_says_what_was_amended(self) -> None:
        if hasattr(self, "ids"):
            head = self.head().head
            assert (head.floor_number, head.fence) == (self.floor, self.fence)
            assert (head.floor_time or self.times[0]) == self.times[self.floor]

    @invariant()
    def times_grow_but_after_a_clock_that_was_far_ahead(self) -> None:
        times = getattr(self, "times", [])
        assert all(later > earlier or later < earlier - AHEAD_MS for earlier, later in pairwise(times))


TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=60, stateful_step_count=25)
