"""A limit on concurrent operations, like a fair semaphore: waiting threads get permits in the order of their arrival,
and no permit is lost if a Ctrl-C interrupts a thread."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_LOOK_AGAIN_S: Final = 0.05
"""Interval at which a waiting thread checks for a free permit even without a notification, in seconds. The thread that
should have sent the notification may have been interrupted."""


class LimitReachedError(Exception):
    """No permit for an operation became free before the time-out."""


class OperationLimit:
    """Runs operations, at most `number` of them at a time. Thread-safe.

    A Ctrl-C may interrupt Python code between any two calls, and could make a count of free permits wrong permanently.
    So there is no count: each permit is a lock, and the thread that owns the lock has the permit. Locks are acquired
    and released in C code, which a Ctrl-C cannot interrupt halfway.
    """

    def __init__(self, number: int, timeout: int) -> None:
        """
        Args:
            number: maximum number of concurrent operations.
            timeout: maximum time that an operation waits before it may begin, in milliseconds.
        """
        self._places = [threading.RLock() for _ in range(number)]
        self._timeout = timeout
        # One queue for each waiting thread, in order of arrival. An item in a queue tells its thread to look for a
        # permit. Only the first waiter may take a permit, so that later arrivals cannot overtake it.
        self._waiting: list[queue.SimpleQueue[None]] = []

    def run(self, operation: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Wait for a permit, run the operation, and return its result.

        Raises:
            LimitReachedError: no permit became free before the time-out.
        """
        waiting = self._waiting
        us: queue.SimpleQueue[None] | None = None
        deadline = time.monotonic() + self._timeout / 1_000
        try:
            while True:
                if not waiting or waiting[:1] == [us]:
                    for place in self._places:
                        if place._is_owned():  # type: ignore[attr-defined]  # by a caller further up in this thread; no public API
                            continue
                        try:
                            if place.acquire(blocking=False):
                                if us is not None:
                                    waiting.remove(us)
                                    _tell(waiting)  # there may be a permit for the next waiter, too
                                return operation(*args, **kwargs)
                        finally:
                            try:
                                place.release()
                            except RuntimeError:  # this thread did not acquire it
                                pass
                            else:
                                _tell(waiting)
                if us is None:
                    us = queue.SimpleQueue()
                    waiting.append(us)
                    us.put(
                        None
                    )  # look once more: an operation may have ended before this thread was in the list
                left = deadline - time.monotonic()
                if left <= 0:
                    raise LimitReachedError
                with contextlib.suppress(queue.Empty):
                    us.get(timeout=min(left, _LOOK_AGAIN_S))
        finally:
            if us in waiting:
                waiting.remove(us)


def _tell(waiting: list[queue.SimpleQueue[None]]) -> None:
    """Notify the first waiting thread, so that it looks for a permit."""
    for first in waiting[:1]:
        first.put(None)
