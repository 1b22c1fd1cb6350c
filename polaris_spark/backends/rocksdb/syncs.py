"""Group commit: one sync of the log for the writes of several threads.

The driver holds Python's global interpreter lock while it writes, but not while it syncs. So writes go to the log
without a sync, and a later sync covers all writes before it. Threads that write at the same time share one sync, and
other threads can run during the sync.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

_LOOK_AGAIN_S: Final = 1.0
"""Interval at which a waiting thread checks whether a sync has ended, even without a notification, in seconds. The
thread that should have sent the notification may have been interrupted."""


class Syncs:
    """Numbers writes to the log, and syncs the log up to a given write. Thread-safe, but the caller must make only one
    write at a time."""

    def __init__(self, sync: Callable[[], None]) -> None:
        self._sync = sync
        self._lock = (
            threading.RLock()
        )  # entered directly: entering a condition runs Python code, where Ctrl-C may come
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
        """Return the number of the write that is about to begin."""
        return self._written + 1

    def wrote(self, number: int) -> None:
        """Record that the write with this number has ended."""
        self._written = number

    def wait(self, number: int) -> None:
        """Wait until the log is on disk up to and including the write `number`. If a sync fails, this call and all
        later calls raise the error of the sync, because a later sync could succeed although data was lost."""
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
                    self._running = False  # before waiting for the lock, which may be interrupted
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
