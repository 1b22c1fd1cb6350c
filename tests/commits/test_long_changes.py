"""Changes that take long to apply: other changes do not wait for them, and their deadline is met."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.clock import ManualClock
from polaris_spark.commits.applier import SLOW_MS, TURN_MS
from polaris_spark.commits.change import Operation
from polaris_spark.commits.committer import APART_SIZE, Committer
from polaris_spark.commits.group import Pending
from polaris_spark.commits.state import State
from polaris_spark.errors import CommitFailedError, TryAgainError
from polaris_spark.index import Entry

from .support import Add, committer, number

STEP_MS = 50.0
DEADLINE_MS = 60_000.0


class Long(Add):
    """A change that takes some steps of `STEP_MS`, on a clock that only this change advances."""

    def __init__(
        self,
        c: Committer,
        clock: ManualClock,
        name: str = "a",
        *,
        steps: int,
        large: bool = False,
        **rest: Any,
    ) -> None:
        super().__init__(name, **rest)
        self._committer, self._clock, self._steps = c, clock, steps
        self.size = APART_SIZE + 1 if large else 1
        self.in_turn: list[float] = []
        """Duration of each run within a batch, in milliseconds."""
        self.apart: list[float] = []
        """Duration of each run outside batches, in milliseconds."""
        self.meanwhile: list[Callable[[], object]] = []
        """Actions of others, one during each of the first runs outside batches."""

    def apply(self, state: State, prepared: object) -> int:
        is_in_turn = self._committer._attempts.group._computes is not None
        runs = self.in_turn if is_in_turn else self.apart
        runs.append(0.0)
        result = super().apply(state, prepared)
        if not is_in_turn and self.meanwhile:
            self.meanwhile.pop(0)()
        for _ in range(self._steps):
            self._clock.advance(STEP_MS)
            runs[-1] += STEP_MS
            state.check_time()
        return result


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def c(clock: ManualClock) -> Committer:
    return committer(clock=clock, deadline_ms=DEADLINE_MS)


def test_a_long_change_leaves_its_batch_after_its_time_and_is_applied_outside(
    c: Committer, clock: ManualClock
) -> None:
    change = Long(c, clock, steps=100)
    assert c.commit(change) == 1
    assert number(c, "a") == 1
    assert change.in_turn == [TURN_MS + STEP_MS]
    assert change.apart == [100 * STEP_MS]


def test_a_change_that_reads_rows_far_away_stays_in_its_batch(c: Committer, clock: ManualClock) -> None:
    for _ in range(20):
        c._attempts._turns.tried(400.0)  # the duration of a commit
    change = Long(c, clock, steps=20)
    assert c.commit(change) == 1
    assert change.in_turn == [20 * STEP_MS]
    assert change.apart == []


def test_a_change_of_many_parts_is_applied_only_outside_batches(c: Committer, clock: ManualClock) -> None:
    change = Long(c, clock, steps=100, large=True)
    assert c.commit(change) == 1
    assert change.in_turn == []
    assert change.apart == [100 * STEP_MS]


def test_a_change_elsewhere_does_not_invalidate_the_outcome_of_a_long_change(
    c: Committer, clock: ManualClock
) -> None:
    change = Long(c, clock, steps=100, large=True)
    change.meanwhile = [lambda: c.commit(Add("b"))]
    assert c.commit(change) == 1
    assert (number(c, "a"), number(c, "b")) == (1, 1)
    assert change.runs == 1


def test_a_long_change_is_applied_again_outside_batches_if_others_changed_what_it_read(
    c: Committer, clock: ManualClock
) -> None:
    change = Long(c, clock, steps=100, large=True)
    change.meanwhile = [lambda: c.commit(Add("a")), lambda: c.commit(Add("a", 10))]
    assert c.commit(change) == 12
    assert number(c, "a") == 12
    assert change.in_turn == []
    assert len(change.apart) == 3


def test_a_large_change_that_is_quick_is_applied_in_its_batch_if_others_committed_first(
    c: Committer, clock: ManualClock
) -> None:
    change = Long(c, clock, steps=1, large=True)
    change.meanwhile = [lambda: c.commit(Add("a"))]
    assert c.commit(change) == 2
    assert (change.in_turn, change.apart) == ([STEP_MS], [STEP_MS])


def test_a_change_that_takes_longer_than_its_deadline_is_refused_and_changes_nothing(
    c: Committer, clock: ManualClock
) -> None:
    for large in (False, True):
        change = Long(c, clock, steps=10**9, large=large)
        begun = clock.monotonic_ms()
        with pytest.raises(TryAgainError, match="nothing was changed"):
            c.commit(change)
        assert clock.monotonic_ms() - begun <= DEADLINE_MS + 2 * STEP_MS
    assert number(c, "a") == 0
    assert c.commit(Add("a")) == 1


def test_a_long_change_that_keeps_losing_is_refused_at_its_deadline(c: Committer, clock: ManualClock) -> None:
    change = Long(c, clock, steps=100, large=True)
    change.meanwhile = [lambda: c.commit(Add("a"))] * 1_000
    with pytest.raises(TryAgainError, match="nothing was changed"):
        c.commit(change)
    assert number(c, "a") == len(change.apart)
    assert sum(change.apart) <= DEADLINE_MS + STEP_MS


def test_a_large_change_is_judged_against_the_newest_head(clock: ManualClock) -> None:
    backend = open_backend(f"memory:{uuid.uuid4()}")
    c, other = (committer(backend, clock=clock) for _ in range(2))
    c.commit(Add("warm"))
    other.commit(Add("a"))
    assert c.commit(Long(c, clock, steps=1, large=True, expect=1)) == 2
    with pytest.raises(CommitFailedError, match="holds 2, not 1"):
        c.commit(Long(c, clock, steps=1, large=True, expect=1))


def test_a_repeated_large_change_gets_its_first_answer_and_is_not_applied_again(
    c: Committer, clock: ManualClock
) -> None:
    id = clock.now_ms().to_bytes(6, "big") + b"\x70" + b"\x00" + b"\x80" + bytes(7)
    operation = Operation(id, "tester", b"same")
    for _ in range(2):
        assert c.commit(Long(c, clock, steps=100, large=True, operation=operation)) == 1
    assert number(c, "a") == 1


def test_long_changes_of_a_batch_share_the_time_of_the_batch(c: Committer, clock: ManualClock) -> None:
    applier = c._attempts._applier
    changes = [Long(c, clock, name, steps=100) for name in "abcd"]
    quick = Add("e")
    pendings = [Pending(change, 0.0, DEADLINE_MS, clock.signal()) for change in (*changes, quick)]
    applied = applier.begin(c.read())
    for pending in pendings:
        pending.prepared_fence = applied.base.head.fence
    begun = clock.monotonic_ms()
    applier.apply(applied, pendings)
    assert clock.monotonic_ms() - begun <= TURN_MS + len(changes) * (SLOW_MS + STEP_MS)
    assert [pending.must_prepare for pending in pendings] == [True] * 4 + [False]
    assert [pending.too_long for pending in pendings] == [True] * 4 + [False]
    assert pendings[-1].result == 1


class Rereads(Long):
    """A long change that reads what it has written."""

    def apply(self, state: State, prepared: object) -> int:
        state.put("other", b"m", Entry(value=b"1"))
        assert state.lookup("other", b"m") == Entry(value=b"1")
        assert state.lookup_many("other", [b"m", b"z"])[0] == Entry(value=b"1")
        state.remove("other", b"gone")
        self.scanned = [key for key, _ in state.scan("other", b"a", None, limit=1)]
        return super().apply(state, prepared)


class Put(Add):
    """Set a key of the index that `Rereads` scans."""

    def __init__(self, key: bytes) -> None:
        super().__init__("c")
        self._key = key

    def apply(self, state: State, prepared: object) -> int:
        state.put("other", self._key, Entry(value=b"theirs"))
        return super().apply(state, prepared)


def test_a_long_change_may_read_what_it_has_written(c: Committer, clock: ManualClock) -> None:
    c.commit(Put(b"gone"))
    change = Rereads(c, clock, steps=100, large=True)
    assert c.commit(change) == 1
    assert (len(change.apart), change.scanned) == (1, [b"m"])


@pytest.mark.parametrize(("key", "runs"), [(b"b", 2), (b"z", 2), (b"A", 1), (b"m", 1), (b"gone", 1)])
def test_only_concurrent_writes_to_data_that_was_read_conflict(
    c: Committer, clock: ManualClock, key: bytes, runs: int
) -> None:
    change = Rereads(c, clock, steps=100, large=True)
    change.meanwhile = [lambda: c.commit(Put(key))]
    assert c.commit(change) == 1
    assert len(change.apart) == runs
    assert change.scanned == [min(b"m", key) if key >= b"a" and key != b"gone" else b"m"]
