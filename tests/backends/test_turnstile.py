"""Operations in progress, and threads that wait for their end, if Ctrl-C interrupts them at any point."""

from __future__ import annotations

import threading

from polaris_spark.backends.turnstile import Turnstile
from polaris_spark.testing.processes import in_threads, started
from polaris_spark.testing.waiting import PATIENCE_S
from tests.backends.interrupts import interruptions


def test_operations_that_have_begun_are_awaited_and_later_ones_wait() -> None:
    turnstile = Turnstile(threading.Lock())
    begun, go_on = threading.Event(), threading.Event()
    first, outcome = started(lambda: turnstile.run(lambda _: (begun.set(), go_on.wait(PATIENCE_S))[1], None))
    assert begun.wait(PATIENCE_S)
    with turnstile.changing:
        assert not turnstile.ended(0)
        second, late = started(lambda: turnstile.run(lambda number: number, 2))
        go_on.set()
        assert turnstile.ended(PATIENCE_S)
        first.join()
        assert (outcome, late) == ([True], [])
    second.join()
    assert late == [2]


def test_an_operation_of_the_thread_that_asks_does_not_end() -> None:
    turnstile = Turnstile(threading.Lock())
    assert turnstile.run(turnstile.ended, PATIENCE_S) is False
    assert turnstile.ended(0) is True


def test_an_operation_that_is_interrupted_anywhere_has_ended() -> None:
    turnstile = Turnstile(threading.Lock())
    for _ in interruptions(lambda: turnstile.run(bytes.hex, b"argument")):
        assert in_threads(1, turnstile.ended) == [True]
        assert not turnstile.changing.locked()


def test_waiting_that_is_interrupted_anywhere_keeps_no_operation_waiting() -> None:
    turnstile = Turnstile(threading.Lock())
    with_turn, done = threading.Event(), threading.Event()

    def operate_twice() -> int:
        turnstile.run(lambda _: with_turn.set(), None)
        done.wait(PATIENCE_S)
        return turnstile.run(lambda number: number, 2)

    thread, outcome = started(operate_twice)
    assert with_turn.wait(PATIENCE_S)
    for _ in interruptions(lambda: turnstile.ended(0)):
        pass
    done.set()
    thread.join(PATIENCE_S)
    assert outcome == [2]
