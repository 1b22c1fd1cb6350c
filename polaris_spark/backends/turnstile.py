"""Letting nobody in while what all operations use is closed or replaced."""

from __future__ import annotations

import threading


class Turnstile:
    """Counts operations in progress, each of which is a `with` block, and holds new ones back on demand."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._condition = threading.Condition(self._lock)
        self._active = 0
        self._held = False

    def __enter__(self) -> None:
        with self._lock:
            while self._held:
                self._condition.wait()
            self._active += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._active -= 1
            if self._held:
                self._condition.notify_all()

    @property
    def active(self) -> int:
        """Operations in progress."""
        return self._active

    def hold(self, timeout: float) -> bool:
        """Let nothing new begin; whether everything begun has ended within `timeout` seconds."""
        with self._condition:
            self._held = True
            return self._condition.wait_for(lambda: not self._active, timeout)

    def let_go(self) -> None:
        """Let operations begin again."""
        with self._condition:
            self._held = False
            self._condition.notify_all()
