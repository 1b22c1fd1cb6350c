"""A limit on the number of requests in flight, which stays correct after a Ctrl-C at any moment.

A request counts as in flight from its registration until a callback on its future records its end. The callback is set
up before the registration, and runs in a thread of the driver, which a Ctrl-C does not interrupt. If a Ctrl-C comes
before the registration, the request is not counted, which is harmless. A plain counter could stay wrong forever.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from polaris_spark.backends.concurrency import LimitReachedError

_LOOK_AGAIN_S: Final = 0.05


class RequestLimit:
    """Limits the number of requests in flight. Thread-safe."""

    def __init__(self, most: int) -> None:
        """
        Args:
            most: maximum number of requests in flight.
        """
        self._most = most
        self._sending = threading.RLock()
        self._noted: list[list[None]] = []  # a list for each request, empty until the request has ended
        self._ends: queue.SimpleQueue[None] = (
            queue.SimpleQueue()
        )  # wake-ups for waiting threads, at most `most`

    def sent(self, send: Callable[[], Any], timeout: float) -> Any:
        """Wait until fewer than `most` requests are in flight, call `send`, and return its result, a future of the
        driver.

        Args:
            timeout: maximum time to wait, in seconds.
        Raises:
            LimitReachedError: `most` requests were in flight for the whole `timeout`.
        """
        deadline = time.monotonic() + timeout
        try:
            if not self._sending.acquire(timeout=max(0.0, timeout)):
                raise LimitReachedError
            self._wait(deadline)
            future = send()
            end: list[None] = []

            def ended(_: object) -> None:
                end.append(None)
                if self._ends.qsize() < self._most:
                    self._ends.put(None)

            future.add_callbacks(ended, ended)
            self._noted.append(end)
            return future
        finally:
            try:  # noqa: SIM105  # entering `suppress` could be interrupted too
                self._sending.release()
            except RuntimeError:  # this thread did not acquire it
                pass

    def _wait(self, deadline: float) -> None:
        while len(self._noted) >= self._most:
            self._noted = [end for end in self._noted if not end]
            if len(self._noted) < self._most:
                return
            left = deadline - time.monotonic()
            if left <= 0:
                raise LimitReachedError
            with contextlib.suppress(queue.Empty):
                self._ends.get(timeout=min(left, _LOOK_AGAIN_S))
