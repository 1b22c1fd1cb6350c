"""Forcing the log to the disk for several threads at once.

The driver holds Python's interpreter lock while it writes, but not while it syncs. So writes go to the log unsynced,
and whoever then waits for the disk waits for everybody who wrote before: threads that write at the same time share one
sync, and others compute meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

_LOOK_AGAIN_S: Final = 1.0
"""Whoever should have told others that a sync has ended was perhaps interrupted, seconds."""


class Syncs:
    """Numbers writes, and syncs the log up to a given one. Thread-safe, but writes come one at a time."""

    def __init__(self, sync: Callable[[], None]) -> None:
        self._sync = sync
        self._lock = (
            threading.RLock()
        )  # entered by itself: entering a condition is Python, where Ctrl-C may come
        self._condition = threading.Condition(self._lock)
        self._written = 0
        self._synced = 0
        self._running = False
        self._failure: Exception | None = None

    @property
    def written(self) -> int:
        """The number of the last write that has ended."""
        return self._written

    def next(self) -> int:
        """The number of the write that is about to begin."""
        return self._written + 1

    def wrote(self, number: int) -> None:
        """That write has ended."""
        self._written = number

    def wait(self, number: int) -> None:
        """Return when the log is on the disk up to a write. Raises what the sync raised, then and ever after: a disk
        that failed once may call lost what it later says is there."""
        while self._synced < number:
            mine = False
            try:
                with self._lock:
                    if self._running:
                        self._condition.wait(_LOOK_AGAIN_S)
                        continue
                    if self._failure is not None:
                        raise self._failure
                    if self._synced >= number:
                        return
                    self._running = mine = True
                self._run()
            finally:
                if mine:
                    self._running = False  # first: waiting for the lock may be interrupted
                    with self._lock:
                        self._condition.notify_all()

    def _run(self) -> None:
        written = self._written
        try:
            self._sync()
        except Exception as error:
            self._failure = error
            raise
        self._synced = written
