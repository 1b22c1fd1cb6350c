"""The number of concurrent requests to Cassandra is limited, even if Ctrl-C interrupts a request at any point."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from polaris_spark.backends.cassandra.in_flight import RequestLimit
from polaris_spark.backends.concurrency import LimitReachedError
from polaris_spark.testing.processes import in_threads, started
from polaris_spark.testing.waiting import PATIENCE_S
from tests.backends.interrupts import interruptions


class _Future:
    """Like the driver's future. It calls back at once if it has already ended."""

    def __init__(self) -> None:
        self.ended = False
        self._callbacks: list[Callable[[object], None]] = []

    def add_callbacks(self, callback: Callable[[object], None], _: Callable[[object], None]) -> None:
        if self.ended:
            callback(None)
        else:
            self._callbacks.append(callback)

    def end(self) -> None:
        self.ended = True
        for callback in self._callbacks:
            callback(None)


def _ended() -> _Future:
    future = _Future()
    future.end()
    return future


def test_a_request_above_the_limit_waits_until_another_one_ends() -> None:
    under_way = RequestLimit(2)
    first, _ = [under_way.sent(_Future, 0) for _ in range(2)]
    with pytest.raises(LimitReachedError):
        under_way.sent(_Future, 0.001)
    thread, outcome = started(lambda: under_way.sent(_Future, PATIENCE_S))
    first.end()
    thread.join(PATIENCE_S)
    assert len(outcome) == 1
    with pytest.raises(LimitReachedError):
        under_way.sent(_Future, 0)


def test_a_request_that_could_not_be_sent_does_not_count_as_in_flight() -> None:
    under_way = RequestLimit(1)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            under_way.sent(lambda: 1 // 0, 0)
    assert under_way.sent(_Future, 0)


@pytest.mark.parametrize("make", [_ended, _Future])
def test_an_interrupted_request_counts_as_in_flight_only_until_it_ends(
    make: Callable[[], _Future],
) -> None:
    under_way = RequestLimit(1)
    made: list[_Future] = []

    def send() -> _Future:
        made.append(make())
        return made[-1]

    kept = []
    for interrupt in interruptions(lambda: under_way.sent(send, 0)):
        kept.append(interrupt)
        for future in made:
            future.end()
        assert in_threads(1, lambda _: under_way.sent(_ended, 0))
    assert len(kept) > 5


def test_an_interrupted_wait_does_not_block_other_requests() -> None:
    under_way = RequestLimit(1)
    first = under_way.sent(_Future, 0)

    def wait() -> None:
        with pytest.raises(LimitReachedError):
            under_way.sent(_Future, 0.001)

    for _ in interruptions(wait):
        free: list[bool] = in_threads(1, lambda _: _sending_is_free(under_way._sending))
        assert free == [True]
    first.end()
    assert under_way.sent(_Future, 0)


def _sending_is_free(lock: threading.RLock) -> bool:
    with lock:
        return True
