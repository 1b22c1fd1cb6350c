"""Leaders and followers of a group commit: no thread waits for a thread that has ended, or is delayed by another
one."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from polaris_spark.clock import SystemClock
from polaris_spark.commits.group import Batch, Group, Pending
from polaris_spark.errors import OutcomeUnknownError, TryAgainError
from polaris_spark.testing.processes import exit_status
from polaris_spark.testing.waiting import PATIENCE_S, wait_until

from .support import Add

CLOCK = SystemClock()


def pending(deadline_ms: float = 1_000 * PATIENCE_S) -> Pending:
    now = CLOCK.monotonic_ms()
    return Pending(Add("a"), now, now + deadline_ms, CLOCK.signal())


class Interrupting:
    """A signal whose wait raises KeyboardInterrupt, like Ctrl-C, as soon as the event `until` is set."""

    def __init__(self, until: threading.Event) -> None:
        self._until = until

    def set(self) -> None:
        pass

    def wait(self, timeout_ms: float | None = None) -> bool:
        self._until.wait(PATIENCE_S)
        raise KeyboardInterrupt


class Late(Interrupting):
    """A signal whose wait times out, as at a deadline, as soon as the event `until` is set."""

    def wait(self, timeout_ms: float | None = None) -> bool:
        assert self._until.wait(PATIENCE_S)
        return False


class Gate:
    """Executes each batch by calling the next function of `steps`. When no steps are left, batches succeed at once. The
    result of each change is the number of its batch."""

    def __init__(self, *steps: Callable[[Batch, float], Exception | None], max_waiting: int = 100) -> None:
        self.steps = list(steps) or [self.hold]
        self.batches: list[int] = []
        self.running, self.go = threading.Event(), threading.Event()
        self.group = Group(self, CLOCK, max_batch=100, max_waiting=max_waiting)

    def hold(self, batch: Batch, deadline: float) -> Exception | None:
        """Wait until the event `go` is set, then succeed."""
        self.running.set()
        self.go.wait(PATIENCE_S)
        return self.settle(batch)

    def hold_until_late(self, batch: Batch, deadline: float) -> Exception | None:
        """Wait until the event `go` is set, then return TryAgainError, as if the deadline had passed."""
        self.running.set()
        self.go.wait(PATIENCE_S)
        return TryAgainError("late")

    def interrupted(self, batch: Batch, deadline: float) -> Exception | None:
        """Wait until the event `go` is set, then raise KeyboardInterrupt."""
        self.running.set()
        self.go.wait(PATIENCE_S)
        raise KeyboardInterrupt

    def settle(self, batch: Batch) -> None:
        self.batches.append(len(batch.pendings))
        for one in batch.pendings:
            one.succeed(len(self.batches))

    def carry(self, batch: Batch, deadline: float) -> Exception | None:
        step = self.steps.pop(0) if self.steps else None
        return self.settle(batch) if step is None else step(batch, deadline)

    def waiting(self, n: int) -> None:
        """Wait until this number of threads wait."""
        wait_until(lambda: len(self.group._waiting) >= n, f"{n} wait")


class Caller:
    """A thread that submits a change."""

    def __init__(self, gate: Gate, change: Pending | None = None) -> None:
        self.pending = change or pending()
        self.error: BaseException | None = None
        self._gate = gate
        self._thread = threading.Thread(target=self._submit)
        self._thread.start()

    def _submit(self) -> None:
        try:
            self._gate.group.submit(self.pending)
        except BaseException as error:
            self.error = error

    def join(self) -> Caller:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self


def idle(gate: Gate) -> bool:
    """Whether no thread leads, so that the next thread becomes the leader at once."""
    late = pending()
    gate.group.submit(late)
    return late.result is not None


def test_changes_that_come_while_a_batch_runs_are_in_the_next_batch() -> None:
    gate = Gate()
    first = Caller(gate)
    gate.running.wait(PATIENCE_S)
    others = [Caller(gate) for _ in range(10)]
    gate.waiting(10)
    gate.go.set()
    for caller in [first, *others]:
        caller.join()
    assert gate.batches == [1, 10]


def test_the_next_batch_is_computed_on_top_of_the_batch_that_is_being_written() -> None:
    previous: list[Batch | None] = []
    gate = Gate()

    def write(batch: Batch, deadline: float) -> None:
        gate.group.pass_on(batch)
        gate.hold(batch, deadline)

    def compute(batch: Batch, deadline: float) -> None:
        previous.append(batch.previous)
        gate.go.set()
        assert batch.previous is not None
        assert batch.previous.ended is not None
        assert batch.previous.ended.wait(PATIENCE_S * 1_000)
        gate.settle(batch)

    gate.steps = [write, compute]
    first = Caller(gate)
    gate.running.wait(PATIENCE_S)
    second = Caller(gate)
    assert (first.join().pending.result, second.join().pending.result) == (1, 2)
    assert previous != [None]


def test_a_batch_still_follows_one_that_is_written_when_the_batch_between_has_ended() -> None:
    previous: list[Batch | None] = []
    gate = Gate()
    written: list[Batch] = []

    def write(batch: Batch, deadline: float) -> None:
        written.append(batch)
        gate.group.pass_on(batch)
        gate.hold(batch, deadline)

    def leave(batch: Batch, deadline: float) -> Exception:
        return TryAgainError("late")

    def compute(batch: Batch, deadline: float) -> None:
        previous.append(batch.previous)
        gate.settle(batch)

    gate.steps = [write, leave, compute]
    first = Caller(gate)
    gate.running.wait(PATIENCE_S)
    Caller(gate).join()
    Caller(gate).join()
    gate.go.set()
    first.join()
    assert previous == written


def test_a_leader_includes_all_changes_that_came_until_it_passes_its_turn_on() -> None:
    gate = Gate()
    taken: list[int] = []

    def step(batch: Batch, deadline: float) -> None:
        gate.running.set()
        gate.waiting(3)
        taken.append(len(gate.group.add_waiting(batch)))
        gate.group.pass_on(batch)
        taken.append(len(gate.group.add_waiting(batch)))
        gate.settle(batch)

    gate.steps = [step]
    first = Caller(gate)
    gate.running.wait(PATIENCE_S)
    others = [Caller(gate) for _ in range(3)]
    for caller in [first, *others]:
        caller.join()
    assert taken == [3, 0]
    assert gate.batches == [4]


def test_if_too_many_changes_wait_further_ones_fail_at_once() -> None:
    gate = Gate(max_waiting=2)
    first = Caller(gate)
    gate.running.wait(PATIENCE_S)
    others = [Caller(gate) for _ in range(2)]
    gate.waiting(2)
    with pytest.raises(TryAgainError, match="nothing was changed"):
        gate.group.submit(pending())
    gate.go.set()
    assert all(caller.join().error is None for caller in [first, *others])


def test_a_change_whose_deadline_passes_in_the_queue_fails_with_nothing_changed() -> None:
    gate = Gate()
    first = Caller(gate)
    gate.running.wait(PATIENCE_S)
    with pytest.raises(TryAgainError):
        gate.group.submit(pending(5))
    last = Caller(gate)
    gate.waiting(1)
    gate.go.set()
    assert first.join().error is last.join().error is None
    assert gate.batches == [1, 1]


@pytest.mark.parametrize("sent", [True, False])
def test_a_thread_whose_deadline_passes_leaves_the_batch_and_learns_whether_its_change_may_take_effect(
    sent: bool,
) -> None:
    gate = Gate()

    def step(batch: Batch, deadline: float) -> None:
        gate.waiting(1)
        gate.group.add_waiting(batch)
        if sent:
            assert gate.group.send(batch, list(batch.pendings))
        gate.hold(batch, deadline)

    gate.steps = [step]
    first = Caller(gate)
    wait_until(lambda: gate.group._computes, "there is a leader")
    late = pending()
    late.turn = Late(gate.running)
    with pytest.raises(OutcomeUnknownError if sent else TryAgainError):
        gate.group.submit(late)
    gate.go.set()
    assert first.join().error is None
    assert gate.batches == [1]


def test_no_intent_is_sent_for_a_thread_that_gave_up() -> None:
    gate = Gate()
    sent: list[bool] = []

    def step(batch: Batch, deadline: float) -> None:
        gate.waiting(1)
        gate.group.add_waiting(batch)
        computed = list(batch.pendings)
        gate.hold(batch, deadline)
        sent.append(gate.group.send(batch, computed))
        sent.append(gate.group.send(batch, list(batch.pendings)))

    gate.steps = [step]
    first = Caller(gate)
    wait_until(lambda: gate.group._computes, "there is a leader")
    late = pending()
    late.turn = Late(gate.running)
    with pytest.raises(TryAgainError):
        gate.group.submit(late)
    gate.go.set()
    first.join()
    assert sent == [False, True]


@pytest.mark.parametrize("how", ["its deadline passed", "it was interrupted"])
def test_when_a_leader_leaves_another_one_of_its_batch_carries_on(how: str) -> None:
    gate = Gate()
    seen: list[object] = []

    def begin(batch: Batch, deadline: float) -> Exception | None:
        batch.progress = "half done"
        gate.running.set()
        gate.waiting(3)
        gate.group.add_waiting(batch)
        if how == "it was interrupted":
            raise KeyboardInterrupt
        return TryAgainError("late")

    def finish(batch: Batch, deadline: float) -> None:
        seen.append(batch.progress)
        gate.settle(batch)

    gate.steps = [begin, finish]
    leader = Caller(gate)
    gate.running.wait(PATIENCE_S)
    others = [Caller(gate) for _ in range(3)]
    expected = KeyboardInterrupt if how == "it was interrupted" else TryAgainError
    assert isinstance(leader.join().error, expected)
    assert [caller.join().error for caller in others] == [None] * 3
    assert (seen, gate.batches) == (["half done"], [3])
    assert idle(gate)


@pytest.mark.parametrize("how", ["its deadline passed", "it was interrupted"])
def test_a_leader_that_leaves_alone_lets_the_next_lead(how: str) -> None:
    gate = Gate()
    gate.steps = [gate.interrupted if how == "it was interrupted" else gate.hold_until_late]
    leader = Caller(gate)
    gate.running.wait(PATIENCE_S)
    next_one = Caller(gate)
    gate.waiting(1)
    gate.go.set()
    assert leader.join().error is not None
    assert next_one.join().error is None
    assert idle(gate)


def test_a_batch_that_fails_tells_every_change_of_it_why() -> None:
    gate = Gate()

    def fail(batch: Batch, deadline: float) -> None:
        gate.waiting(2)
        gate.group.add_waiting(batch)
        raise RuntimeError("broken")

    gate.steps = [fail]
    first = Caller(gate)
    wait_until(lambda: gate.group._computes, "there is a leader")
    others = [Caller(gate) for _ in range(2)]
    errors = [caller.join().pending.error for caller in [first, *others]]
    assert [str(error) for error in errors] == ["broken"] * 3
    assert len({id(error) for error in errors}) == 3  # each thread raises one of its own
    assert idle(gate)


@pytest.mark.parametrize("promoted", [True, False], ids=["after it was made the leader", "while it waited"])
def test_an_interrupted_waiting_thread_does_not_stop_others(promoted: bool) -> None:
    gate = Gate()
    first = Caller(gate)
    gate.running.wait(PATIENCE_S)
    released = threading.Event()
    interrupted = pending()
    interrupted.turn = Interrupting(released)
    second = Caller(gate, interrupted)
    gate.waiting(1)
    last = Caller(gate)
    gate.waiting(2)
    if promoted:
        gate.go.set()
        first.join()
        released.set()
    else:
        released.set()
        second.join()
        gate.go.set()
    assert isinstance(second.join().error, KeyboardInterrupt)
    assert last.join().pending.result is not None
    assert first.join().error is None
    assert idle(gate)


def test_a_forked_child_waits_for_no_thread_of_its_parent() -> None:
    gate = Gate()
    leader = Caller(gate)
    assert gate.running.wait(PATIENCE_S)
    child = os.fork()
    if not child:
        own: Any = pending()
        with contextlib.suppress(BaseException):
            gate.group.submit(own)
        os._exit(0 if own.result == 1 else 1)
    assert exit_status(child) == 0
    gate.go.set()
    leader.join()
    assert gate.batches == [1]
