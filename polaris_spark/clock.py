"""The one source of time, injected wherever time matters so that tests can move it."""

from __future__ import annotations

import time
from typing import Protocol

EPOCH_MS = 1_740_787_200_000
"""Milliseconds between 1970-01-01T00:00Z and 2025-03-01T00:00Z, the zero of snowflake ids."""


class Clock(Protocol):
    """What the product asks of time. All values are milliseconds; sleeping takes milliseconds."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970-01-01T00:00Z; may go backwards."""
        ...

    def monotonic_ms(self) -> float:
        """A clock that never goes backwards, for deadlines within one process."""
        ...

    def sleep_ms(self, duration: float) -> None:
        """Let `duration` milliseconds pass."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1_000

    def sleep_ms(self, duration: float) -> None:
        time.sleep(duration / 1_000)


class ManualClock:
    """A clock for tests: it moves only when told, and sleeping moves it."""

    def __init__(self, now_ms: int = EPOCH_MS + 86_400_000) -> None:
        self._now = float(now_ms)
        self._monotonic = 0.0

    def now_ms(self) -> int:
        return int(self._now)

    def monotonic_ms(self) -> float:
        return self._monotonic

    def sleep_ms(self, duration: float) -> None:
        self.advance(duration)

    def advance(self, duration: float) -> None:
        """Let `duration` milliseconds pass on both clocks."""
        self._now += duration
        self._monotonic += duration

    def set_wall(self, now_ms: int) -> None:
        """Set the wall clock, backwards too, leaving the monotonic clock alone."""
        self._now = float(now_ms)
