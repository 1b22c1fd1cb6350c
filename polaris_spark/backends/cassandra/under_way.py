"""Which requests are under way, so that they are not too many: also after a Ctrl-C, which may come at any moment.

A request that was sent is noted once its future will tell of its end, in a thread of the driver, where no Ctrl-C comes;
one that is interrupted before is not noted, and does nobody harm. A count would be wrong for good.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from polaris_spark.backends.places import NoPlaceError

_LOOK_AGAIN_S: Final = 0.05


class UnderWay:
    """The requests that are under way. Thread-safe."""

    def __init__(self, most: int) -> None:
        """
        Args:
            most: requests at a time.
        """
        self._most = most
        self._sending = threading.RLock()
        self._noted: list[list[None]] = []  # a list for each request, which is not empty once that has ended
        self._ends: queue.SimpleQueue[None] = (
            queue.SimpleQueue()
        )  # hints for whoever waits, not more than `most`

    def sent(self, send: Callable[[], Any], timeout: float) -> Any:
        """The driver's future, which `send` gives, of a request that is sent when less than `most` are under way.

        Args:
            timeout: how long to wait for that, seconds.
        Raises:
            NoPlaceError: they were more for so long.
        """
        deadline = time.monotonic() + timeout
        try:
            if not self._sending.acquire(timeout=max(0.0, timeout)):
                raise NoPlaceError
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
                raise NoPlaceError
            with contextlib.suppress(queue.Empty):
                self._ends.get(timeout=min(left, _LOOK_AGAIN_S))
