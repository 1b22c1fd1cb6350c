"""Leaders and followers of a group commit: nobody waits for a thread that is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import Any

import pytest

from polaris_spark.commits.group import Group, Pending

from .support import Add


def pending() -> Pending:
    return Pending(Add("a"), 0.0)


class Interrupting:
    """A lock whose first wait is interrupted, as by Ctrl-C, once `until` says so."""

    def __init__(self, until: threading.Event) -> None:
        self._lock = threading.Lock()
        self._until = until
        self._waits = 0

    def acquire(self) -> bool:
        self._waits += 1
        if self._waits == 2:  # the first is by the submitter itself, before it queues
            self._until.wait(10)
            raise KeyboardInterrupt
        return self._lock.acquire()

    def release(self) -> None:
        self._lock.release()


class Gate:
    """Runs batches; the first one waits until it is let go."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.running, self.go = threading.Event(), threading.Event()
        self.group = Group(self.run, max_batch=100)

    def run(self, batch: list[Pending]) -> None:
        self.batches.append(len(batch))
        if len(self.batches) == 1:
            self.running.set()
            self.go.wait(10)
        for one in batch:
            one.succeed(len(self.batches))


def started(target: Any, *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments)
    thread.start()
    return thread


def test_whoever_comes_while_a_batch_runs_goes_along_in_the_next() -> None:
    gate = Gate()
    first = started(gate.group.submit, pending())
    gate.running.wait(10)
    others = [started(gate.group.submit, pending()) for _ in range(10)]
    while len(gate.group._waiting) < 10:
        pass
    gate.go.set()
    for thread in [first, *others]:
        thread.join(10)
    assert gate.batches == [1, 10]


@pytest.mark.parametrize("promoted", [True, False], ids=["after it was made the leader", "while it waited"])
def test_an_interrupted_waiter_stops_nobody_else(promoted: bool) -> None:
    gate = Gate()
    first = started(gate.group.submit, pending())
    gate.running.wait(10)
    interrupted, released = pending(), threading.Event()
    interrupted.turn = Interrupting(released)  # type: ignore[assignment]  # a lock in all that is used
    failures: list[BaseException] = []

    def submit() -> None:
        try:
            gate.group.submit(interrupted)
        except KeyboardInterrupt as error:
            failures.append(error)

    second = started(submit)
    while not gate.group._waiting:
        pass
    third = pending()
    last = started(gate.group.submit, third)
    while len(gate.group._waiting) < 2:
        pass
    if promoted:
        gate.go.set()
        first.join(10)
        released.set()
    else:
        released.set()
        second.join(10)
        gate.go.set()
    for thread in (first, second, last):
        thread.join(10)
    assert failures
    assert third.done
    assert not gate.group._busy


def test_when_the_leader_is_interrupted_its_followers_learn_that_the_outcome_is_unknown() -> None:
    calls: list[int] = []
    running, go = threading.Event(), threading.Event()

    def run(batch: list[Pending]) -> None:
        calls.append(len(batch))
        if len(calls) == 1:
            running.set()
            go.wait(10)
            return
        raise KeyboardInterrupt

    group = Group(run, max_batch=100)
    first = started(group.submit, pending())
    running.wait(10)
    waiting = [pending(), pending()]

    def submit(one: Pending) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            group.submit(one)

    threads = [started(submit, one) for one in waiting]
    while len(group._waiting) < 2:
        pass
    go.set()
    for thread in [first, *threads]:
        thread.join(10)
    kinds = sorted(type(one.error).__name__ for one in waiting)
    assert kinds == ["KeyboardInterrupt", "OutcomeUnknownError"]


def test_a_forked_child_waits_for_no_thread_of_its_parent() -> None:
    gate = Gate()
    leader = started(gate.group.submit, pending())
    assert gate.running.wait(10)
    child = os.fork()
    if not child:
        signal.alarm(10)  # ends a child that waits for ever
        own = pending()
        gate.group.submit(own)
        os._exit(0 if own.result == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    gate.go.set()
    leader.join(10)
    assert gate.batches == [1]
