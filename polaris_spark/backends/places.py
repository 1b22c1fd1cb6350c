"""Places for so many operations at the same time: those who wait for one come in turn, and Ctrl-C takes none away."""

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
"""Whoever should have told the first of those who wait was perhaps interrupted, seconds."""


class NoPlaceError(Exception):
    """No place became free in time."""


class Places:
    """Runs operations in a number of places. Thread-safe.

    A Ctrl-C may come between any two calls, and would put a count of free places wrong for good. So a place is taken by
    whoever owns its lock, and only C takes and releases locks.
    """

    def __init__(self, number: int, timeout: int) -> None:
        """
        Args:
            number: most operations at a time.
            timeout: how long one waits for its place, milliseconds.
        """
        self._places = [threading.RLock() for _ in range(number)]
        self._timeout = timeout
        # Whoever waits, in the order in which they came; what is put there has them look for a place. Only the first
        # one may take it, so that nobody who comes later does.
        self._waiting: list[queue.SimpleQueue[None]] = []

    def run(self, operation: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What an operation gives, once there is a place for it.

        Raises:
            NoPlaceError: there was none in time.
        """
        waiting = self._waiting
        us: queue.SimpleQueue[None] | None = None
        deadline = time.monotonic() + self._timeout / 1_000
        try:
            while True:
                if not waiting or waiting[:1] == [us]:
                    for place in self._places:
                        if place._is_owned():  # type: ignore[attr-defined]  # by a caller of ours; nothing public tells
                            continue
                        try:
                            if place.acquire(blocking=False):
                                if us is not None:
                                    waiting.remove(us)
                                    _tell(waiting)  # perhaps there is a place for the next one, too
                                return operation(*args, **kwargs)
                        finally:
                            try:
                                place.release()
                            except RuntimeError:  # it was not free
                                pass
                            else:
                                _tell(waiting)
                if us is None:
                    us = queue.SimpleQueue()
                    waiting.append(us)
                    us.put(None)  # whoever left before told nobody
                left = deadline - time.monotonic()
                if left <= 0:
                    raise NoPlaceError
                with contextlib.suppress(queue.Empty):
                    us.get(timeout=min(left, _LOOK_AGAIN_S))
        finally:
            if us in waiting:
                waiting.remove(us)


def _tell(waiting: list[queue.SimpleQueue[None]]) -> None:
    """Have the first of those who wait look for a place."""
    for first in waiting[:1]:
        first.put(None)
