"""Permits for concurrent operations: their order, and that Ctrl-C at any point loses none."""

from __future__ import annotations

import threading

import pytest

from polaris_spark.backends.concurrency import LimitReachedError, OperationLimit
from polaris_spark.testing.processes import in_threads, started
from polaris_spark.testing.waiting import PATIENCE_S, wait_until
from tests.backends.interrupts import interruptions

_NUMBER = 2
_PATIENT = 1_000 * PATIENCE_S


def test_waiting_threads_are_served_in_turn() -> None:
    places = OperationLimit(1, _PATIENT)
    taken, go_on = threading.Event(), threading.Event()
    served: list[int] = []
    threads = [started(lambda: places.run(lambda: (taken.set(), go_on.wait(PATIENCE_S))))[0]]
    assert taken.wait(PATIENCE_S)
    for number in range(8):
        threads.append(started(lambda number=number: places.run(served.append, number))[0])
        wait_until(lambda number=number: len(places._waiting) > number, f"{number} waits")
    go_on.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert served == [*range(8)]


def test_a_thread_that_has_just_left_queues_behind_waiting_threads() -> None:
    places = OperationLimit(1, _PATIENT)
    served: list[str] = []
    threads = []

    def let_another_wait() -> None:
        threads.append(started(lambda: places.run(served.append, "another"))[0])
        wait_until(lambda: places._waiting, "another waits")

    places.run(let_another_wait)
    places.run(served.append, "again")
    threads[0].join(PATIENCE_S)
    assert served == ["another", "again"]


def test_all_waiting_threads_get_free_permits() -> None:
    places = OperationLimit(_NUMBER, _PATIENT)
    full, all_in = (threading.Barrier(parties, timeout=PATIENCE_S) for parties in (_NUMBER + 1, _NUMBER))
    go_on = threading.Event()
    threads = [
        started(lambda: places.run(lambda: (full.wait(), go_on.wait(PATIENCE_S))))[0] for _ in range(_NUMBER)
    ]
    full.wait()
    waiting = [started(lambda: places.run(all_in.wait)) for _ in range(_NUMBER)]
    wait_until(lambda: len(places._waiting) == _NUMBER, "all wait")
    go_on.set()
    for thread in [*threads, *(thread for thread, _ in waiting)]:
        thread.join(PATIENCE_S)
    assert sorted(outcome for _, outcome in waiting) == [[number] for number in range(_NUMBER)]


def test_a_nested_call_gets_its_own_permit_or_fails() -> None:
    places = OperationLimit(2, 1)
    assert places.run(lambda: places.run(lambda: "inner")) == "inner"
    with pytest.raises(LimitReachedError):
        places.run(lambda: places.run(lambda: places.run(lambda: "one too many")))
    assert places.run(lambda: "again") == "again"


def test_an_interrupted_operation_returns_its_permit() -> None:
    places = OperationLimit(_NUMBER, _PATIENT)
    all_in = threading.Barrier(_NUMBER, timeout=PATIENCE_S)
    kept = []
    for interrupt in interruptions(lambda: places.run(bytes.hex, b"argument")):
        kept.append(interrupt)
        in_threads(_NUMBER, lambda _: places.run(all_in.wait))
    assert len(kept) > 5


def test_an_interrupted_wait_does_not_block_other_threads() -> None:
    places = OperationLimit(1, 1)
    taken, go_on = threading.Event(), threading.Event()
    thread, _ = started(lambda: places.run(lambda: (taken.set(), go_on.wait(PATIENCE_S))))
    assert taken.wait(PATIENCE_S)

    def wait() -> None:
        with pytest.raises(LimitReachedError):
            places.run(str)

    kept = []
    for interrupt in interruptions(wait):
        kept.append(interrupt)
        assert places._waiting == []
    assert len(kept) > 5
    go_on.set()
    thread.join(PATIENCE_S)
    assert in_threads(1, lambda _: places.run(str)) == [""]
