"""Overlapping batches: changes are applied to a commit that is not written yet, and leading threads end early."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Conflict, ObjectRow, ReferenceRow, Swapped
from polaris_spark.clock import SystemClock
from polaris_spark.commits.applier import SLOW_MS
from polaris_spark.commits.committer import Committer
from polaris_spark.commits.log import entries
from polaris_spark.commits.state import State
from polaris_spark.errors import (
    BadRequestError,
    CommitFailedError,
    ObjectTooLargeError,
    OutcomeUnknownError,
    TryAgainError,
)
from polaris_spark.objects import Strong, object_type
from polaris_spark.store.cache import ObjectCache
from polaris_spark.testing.waiting import PATIENCE_S, wait_until

from .support import Add, committer, number


class Held:
    """A backend whose swaps call the next function of `steps`, with the swap as argument."""

    def __init__(self, *, transactional: bool = True) -> None:
        self.inner = open_backend(f"memory:{uuid.uuid4()}")
        self.transactional = transactional
        self.steps: list[Callable[[Callable[[], Swapped | Conflict]], Swapped | Conflict]] = []
        self.at_swap, self.go = threading.Event(), threading.Event()
        self.rows: set[int] = set()

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def hold(self, swap: Callable[[], Swapped | Conflict]) -> Swapped | Conflict:
        self.at_swap.set()
        assert self.go.wait(PATIENCE_S)
        return swap()

    def break_after_hold(self, swap: Callable[[], Swapped | Conflict]) -> Swapped | Conflict:
        self.at_swap.set()
        assert self.go.wait(PATIENCE_S)
        raise RuntimeError("the driver has a bug")

    def _do(self, swap: Callable[[], Swapped | Conflict]) -> Swapped | Conflict:
        return self.steps.pop(0)(swap) if self.steps else swap()

    def write_and_swap(
        self, realm: str, rows: Sequence[ObjectRow], name: str, expected: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        return self._do(lambda: self.inner.write_and_swap(realm, rows, name, expected, new))

    def swap_reference(self, realm: str, name: str, expected: bytes, new: ReferenceRow) -> Swapped | Conflict:
        return self._do(lambda: self.inner.swap_reference(realm, name, expected, new))

    def write_objects(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        self.inner.write_objects(realm, rows)
        self.rows |= {row.id for row in rows}


class Caller:
    """A thread that commits a change."""

    def __init__(self, committer: Committer, change: Add, **how: Any) -> None:
        self.change = change
        self.result: object = None
        self._committer, self._how = committer, how
        self._thread = threading.Thread(target=self._commit)
        self._thread.start()

    def _commit(self) -> None:
        try:
            self.result = self._committer.commit(self.change, **self._how)
        except BaseException as error:
            self.result = error

    def join(self) -> Any:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.result


def opened(held: Held, **settings: object) -> Committer:
    backend: Any = held
    c = committer(backend, clock=SystemClock(), **settings)
    c.commit(Add("warm"))
    return c


def being_written(held: Held, c: Committer, name: str = "x") -> Caller:
    """Start a commit, and wait until it reaches its swap. It stays there until `held.go` is set."""
    held.steps = [held.hold]
    caller = Caller(c, Add(name))
    assert held.at_swap.wait(PATIENCE_S)
    return caller


def waiting(c: Committer) -> int:
    return len(c._attempts.group._waiting)


def test_the_next_batch_is_computed_while_one_is_written() -> None:
    held = Held()
    c = opened(held)
    first = being_written(held, c, "a")
    second = Caller(c, Add("a"))
    wait_until(lambda: second.change.runs == 1, "the callers are where they should be")
    assert first.result is None
    held.go.set()
    assert (first.join(), second.join()) == (1, 2)
    assert second.change.runs == 1
    assert [commit.number for _, commit, _, _ in entries(c.read().store, c.read().head)] == [3, 2, 1]


def test_a_result_computed_on_a_failed_commit_is_checked_again() -> None:
    held = Held()
    c = opened(held)
    held.steps = [held.break_after_hold]
    first = Caller(c, Add("a"))
    held.at_swap.wait(PATIENCE_S)
    second = Caller(c, Add("a", expect=1))
    third = Caller(c, Add("b", expect=0))
    wait_until(lambda: second.change.runs or third.change.runs, "the callers are where they should be")
    held.go.set()
    assert isinstance(first.join(), RuntimeError)
    assert isinstance(second.join(), CommitFailedError)
    assert third.join() == 1
    assert number(c, "a") == 0


def test_a_result_computed_on_a_commit_that_lost_its_swap_is_computed_again_on_the_new_one() -> None:
    held = Held()
    c = opened(held)
    other = committer(held.inner, clock=SystemClock())
    first = being_written(held, c, "a")
    other.commit(Add("a", 10))
    second = Caller(c, Add("a"))
    wait_until(lambda: second.change.runs == 1, "the callers are where they should be")
    held.go.set()
    assert sorted([first.join(), second.join()]) == [11, 12]
    assert number(c, "a") == 12


def test_a_refusal_based_on_an_unwritten_commit_is_final_once_the_commit_is_written() -> None:
    held = Held()
    c = opened(held)
    first = being_written(held, c, "a")
    second = Caller(c, Add("a", expect=0))
    wait_until(lambda: second.change.runs == 1, "the callers are where they should be")
    held.go.set()
    assert first.join() == 1
    assert isinstance(second.join(), CommitFailedError)


@pytest.mark.parametrize("transactional", [True, False])
def test_without_a_cache_nothing_is_missed_that_is_still_being_written(
    monkeypatch: pytest.MonkeyPatch, transactional: bool
) -> None:
    held = Held(transactional=transactional)
    c = opened(held)
    monkeypatch.setattr(ObjectCache, "put", lambda *_: None)
    c._heads._known.store._cache.clear()  # type: ignore[union-attr]
    first = being_written(held, c, "a")
    second = Caller(c, Add("a"))
    wait_until(lambda: second.change.runs, "the callers are where they should be")
    held.go.set()
    assert (first.join(), second.join()) == (1, 2)


def test_where_rows_are_written_apart_those_of_the_next_batch_go_while_one_is_swapped() -> None:
    held = Held(transactional=False)
    c = opened(held)
    first = being_written(held, c, "a")
    written = len(held.rows)
    second = Caller(c, Add("a"))
    wait_until(lambda: len(held.rows) > written, "the callers are where they should be")
    assert first.result is None
    held.go.set()
    assert (first.join(), second.join()) == (1, 2)
    assert c.read().head.commit in held.rows
    assert c.read().head.number == 3


@pytest.mark.parametrize("limit", ["transaction_rows", "transaction_bytes"])
def test_rows_that_no_transaction_takes_are_written_before_the_swap(limit: str) -> None:
    held = Held()
    c = opened(held)
    held.rows.clear()  # of setting up
    setattr(held, limit, 1)
    assert c.commit(Add("a")) == 1
    assert c.read().head.commit in held.rows
    held.steps = [lost_on_the_way_back]
    assert c.commit(Add("a")) == 2
    assert c.read().head.number == 3


def test_a_leader_in_doubt_leaves_at_its_deadline_and_another_finds_out() -> None:
    held = Held()
    c = opened(held)
    blocking = being_written(held, c)
    held.steps = [lost_on_the_way_back] * 100
    callers = [Caller(c, Add("a"), deadline_ms=1_500.0)]
    wait_until(lambda: callers[0].change.runs, "the callers are where they should be")
    callers.append(Caller(c, Add("a"), deadline_ms=1_000.0 * PATIENCE_S))
    wait_until(lambda: waiting(c) == 1, "the callers are where they should be")
    held.go.set()
    assert blocking.join() == 1
    assert isinstance(callers[0].join(), OutcomeUnknownError)
    held.steps.clear()
    assert callers[1].join() == 2
    assert number(c, "a") == 2


def test_a_leader_that_changed_nothing_leaves_at_its_deadline_and_the_others_are_done() -> None:
    held = Held()
    c = opened(held)
    blocking = being_written(held, c)
    held.steps = [busy] * 1_000
    callers = [Caller(c, Add("a"), deadline_ms=1_500.0)]
    wait_until(lambda: callers[0].change.runs, "the callers are where they should be")
    callers.append(Caller(c, Add("b"), deadline_ms=1_000.0 * PATIENCE_S))
    wait_until(lambda: waiting(c) == 1, "the callers are where they should be")
    held.go.set()
    assert blocking.join() == 1
    assert isinstance(callers[0].join(), TryAgainError)
    held.steps.clear()
    assert callers[1].join() == 1
    assert (number(c, "a"), number(c, "b")) == (0, 1)


def test_when_a_leader_is_interrupted_in_its_swap_the_others_are_done_once() -> None:
    held = Held()
    c = opened(held)
    blocking = being_written(held, c)
    held.steps = [interrupted_after]
    callers = [Caller(c, Add("a"))]
    wait_until(lambda: callers[0].change.runs, "the callers are where they should be")
    callers.append(Caller(c, Add("a")))
    wait_until(lambda: waiting(c) == 1, "the callers are where they should be")
    held.go.set()
    assert blocking.join() == 1
    assert isinstance(callers[0].join(), KeyboardInterrupt)
    assert callers[1].join() == 2
    assert number(c, "a") == 2


def test_an_interrupted_computation_is_begun_again_by_another() -> None:
    class Interrupted(Add):
        def apply(self, state: State, prepared: object) -> int:
            if self.runs:
                raise KeyboardInterrupt
            return super().apply(state, prepared)

    held = Held()
    c = opened(held)
    other = committer(held.inner, clock=SystemClock())
    blocking = being_written(held, c)
    first = Caller(c, Interrupted("a"))
    wait_until(lambda: first.change.runs, "the callers are where they should be")
    second = Caller(c, Add("b"))
    wait_until(lambda: waiting(c) == 1, "the callers are where they should be")
    other.commit(Add("a"))
    held.go.set()
    assert blocking.join() == 1
    assert isinstance(first.join(), KeyboardInterrupt)
    assert second.join() == 1
    assert number(c, "a") == 1


def test_a_slow_change_delays_the_others_of_its_batch_by_one_run_at_most() -> None:
    class Slow(Add):
        def apply(self, state: State, prepared: object) -> int:
            threading.Event().wait(2 * SLOW_MS / 1_000)
            return super().apply(state, prepared)

    held = Held()
    c = opened(held)
    other = committer(held.inner, clock=SystemClock())
    blocking = being_written(held, c)
    slow = Caller(c, Slow("a"))
    wait_until(lambda: slow.change.runs, "the callers are where they should be")
    quick = Caller(c, Add("b"))
    wait_until(lambda: waiting(c) == 1, "the callers are where they should be")
    other.commit(Add("a"))  # the slow change must run again
    held.go.set()
    assert (blocking.join(), slow.join(), quick.join()) == (1, 2, 1)
    newest_first = [entry.key for _, _, _, entry in entries(c.read().store, c.read().head)]
    assert newest_first.index(b"a") < newest_first.index(b"b")
    assert slow.change.runs == 2


@object_type("test-fan", revision=1)
class Fan(msgspec.Struct, frozen=True, array_like=True):
    """An object with pointers to other objects."""

    targets: tuple[Strong, ...]


def test_a_change_whose_objects_cannot_be_written_fails_alone() -> None:
    class Wide(Add):
        def apply(self, state: State, prepared: object) -> int:
            state.add(Fan(tuple(range(1, 100_000))))
            return super().apply(state, prepared)

    held = Held()
    c = opened(held)
    blocking = being_written(held, c)
    first = Caller(c, Add("a"))
    wait_until(lambda: first.change.runs, "the callers are where they should be")
    wide, last = Caller(c, Wide("a")), Caller(c, Add("b"))
    wait_until(lambda: waiting(c) == 2, "the callers are where they should be")
    held.go.set()
    assert (blocking.join(), first.join(), last.join()) == (1, 1, 1)
    assert isinstance(wide.join(), ObjectTooLargeError)
    assert number(c, "a") == 1


class Filing(Add):
    """A change that writes a file."""

    def apply(self, state: State, prepared: object) -> int:
        state.write_file(f"/{self.name.decode()}", b"content")
        return super().apply(state, prepared)


class Together:
    """Writes files. All files but the first are written only if several are written at the same time."""

    def __init__(self, n: int) -> None:
        self.written: list[str] = []
        self._barrier = threading.Barrier(n)
        self._slow = threading.Event()

    def write_all(self, files: Sequence[tuple[str, bytes]]) -> None:
        for location, _ in files:
            if location == "/bad":
                raise BadRequestError("cannot be written there")
            if location == "/slow":
                self._slow.wait(0.05)
            elif location != "/warm":
                self._barrier.wait(PATIENCE_S)
            self.written.append(location)


def test_slow_files_are_written_in_parallel_and_only_the_change_of_a_failed_file_fails() -> None:
    files = Together(6)
    held = Held()
    c = opened(held, files=files)
    blocking = being_written(held, c)
    names = ["slow", "bad", *(f"t{n}" for n in range(6))]
    callers = []
    for name in names:
        callers.append(Caller(c, Filing(name)))
        wait_until(
            lambda: waiting(c) == max(0, len(callers) - 1) or callers[0].change.runs,
            "the callers are where they should be",
        )
    wait_until(lambda: waiting(c) == len(names) - 1, "the callers are where they should be")
    held.go.set()
    results = [caller.join() for caller in callers]
    assert blocking.join() == 1
    assert isinstance(results.pop(1), BadRequestError)
    assert results == [1] * 7
    assert sorted(files.written) == ["/slow", *(f"/t{n}" for n in range(6))]


def lost_on_the_way_back(swap: Callable[[], Swapped | Conflict]) -> Swapped | Conflict:
    swap()
    threading.Event().wait(0.02)
    raise OutcomeUnknownError("lost on the way back")


def busy(_: Callable[[], Swapped | Conflict]) -> Swapped | Conflict:
    raise TryAgainError("the database is busy")


def interrupted_after(swap: Callable[[], Swapped | Conflict]) -> Swapped | Conflict:
    swap()
    raise KeyboardInterrupt
