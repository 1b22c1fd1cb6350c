"""The one source of time, injected wherever time matters so that tests can move it.

Whoever waits for another thread while the database may be at work gets what it waits at from the clock, too: a
simulation then runs many processes on one thread.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import date, datetime, timedelta, timezone, tzinfo
from typing import Protocol

EPOCH_MS = 1_740_787_200_000
"""Milliseconds between 1970-01-01T00:00Z and 2025-03-01T00:00Z, the zero of snowflake ids."""

FAR_MS = 5 * 60_000
"""A clock further than this from the database's is wrong, and so is one that jumps ahead by more, milliseconds."""

AHEAD_MS = 24 * 60 * 60_000
"""Ids and commit times further than this ahead of now are not followed: a wrong clock made them. Milliseconds. Nearer
ones are followed, as long as now has not reached them: ids of right clocks run ahead after a recovery, too."""

_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while the machine sleeps, on Linux as `CLOCK_BOOTTIME`, on macOS as `CLOCK_MONOTONIC`."""


CheckTime = Callable[[], None]
"""Called at each step of long work; raises where the work has taken too long."""


def unlimited() -> None:
    """The `CheckTime` of work without a time limit."""


class Signal(Protocol):
    """What one thread waits for and another sets, once."""

    def set(self) -> None:
        """Let whoever waits go on. May be repeated."""
        ...

    def wait(self, timeout_ms: float | None = None) -> bool:
        """Whether it was set, at once or within `timeout_ms` milliseconds (None: however long it takes)."""
        ...


class Clock(Protocol):
    """What the product asks of time. All values are milliseconds; sleeping takes milliseconds."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970-01-01T00:00Z; may go backwards."""
        ...

    def monotonic_ms(self) -> float:
        """A clock that never goes backwards or jumps, for deadlines and durations within one process."""
        ...

    def elapsed_ms(self) -> float:
        """Another such clock, which goes on while the machine sleeps, where the system has one."""
        ...

    def sleep_ms(self, duration: float) -> None:
        """Let `duration` milliseconds pass."""
        ...

    def signal(self) -> Signal:
        """A signal that is not set."""
        ...

    def lock(self) -> AbstractContextManager[object]:
        """A lock that may be held while the database is at work."""
        ...


class ThreadSignal:
    """A signal between threads; cheaper than `threading.Event`, which is made for more."""

    __slots__ = ("_is_set", "_lock")

    def __init__(self) -> None:
        self._is_set = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        self._is_set = True
        with contextlib.suppress(RuntimeError):  # set before
            self._lock.release()

    def wait(self, timeout_ms: float | None = None) -> bool:
        if self._is_set:
            return True
        seconds = -1 if timeout_ms is None else min(max(0.0, timeout_ms / 1_000), threading.TIMEOUT_MAX)
        if self._lock.acquire(timeout=seconds):
            self.set()  # for others who wait; if this one is interrupted here, it stays set all the same
        return self._is_set


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1_000

    def elapsed_ms(self) -> float:
        return time.clock_gettime(_ELAPSED) * 1_000

    def sleep_ms(self, duration: float) -> None:
        time.sleep(duration / 1_000)

    def signal(self) -> Signal:
        return ThreadSignal()

    def lock(self) -> AbstractContextManager[object]:
        return threading.Lock()


class ManualClock:
    """A clock for tests: it moves only when told, and sleeping moves it."""

    def __init__(self, now_ms: int = EPOCH_MS + 86_400_000) -> None:
        self._now = float(now_ms)
        self._monotonic = 0.0

    def now_ms(self) -> int:
        return int(self._now)

    def monotonic_ms(self) -> float:
        return self._monotonic

    def elapsed_ms(self) -> float:
        return self.monotonic_ms()

    def sleep_ms(self, duration: float) -> None:
        self.advance(duration)

    def signal(self) -> Signal:
        return _ManualSignal(self)

    def lock(self) -> AbstractContextManager[object]:
        return threading.Lock()

    def advance(self, duration: float) -> None:
        """Let `duration` milliseconds pass on all clocks."""
        self._now += duration
        self._monotonic += duration

    def set_wall(self, now_ms: int) -> None:
        """Set the wall clock, backwards too, leaving the others alone."""
        self._now = float(now_ms)


class _ManualSignal(ThreadSignal):
    """A signal whose time-out comes when the manual clock has moved that far."""

    __slots__ = ("_clock",)

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout_ms: float | None = None) -> bool:
        if timeout_ms is None:
            return super().wait()
        until = self._clock.monotonic_ms() + timeout_ms
        while not super().wait(1):
            if self._clock.monotonic_ms() >= until:
                return False
        return True


Zone = Callable[[], tzinfo]
"""Gives a time zone; asked only if it is needed."""

_FRACTION = re.compile(r"\.(\d+)")


def iso_time_ms(text: str, zone: Zone = lambda: timezone.utc) -> int:
    """Milliseconds since 1970 of a time or date in ISO 8601.

    Args:
        zone: gives that of a time that names none.
    Raises:
        ValueError: it is none.
    """
    # Python takes any character between date and time: 2026-01-31+02:00 would be two o'clock, of the session's zone.
    date.fromisoformat(re.split("[Tt ]", text.strip(), maxsplit=1)[0])
    # Python 3.10 reads neither Z nor fractions of other than three or six digits.
    plain = re.sub(r"[zZ]$", "+00:00", text.strip())
    moment = datetime.fromisoformat(_FRACTION.sub(lambda found: "." + found[1][:6].ljust(6, "0"), plain))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone())
    return (moment - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(milliseconds=1)


def iso_text(ms: int) -> str:
    """Milliseconds since 1970 as ISO 8601 in UTC, to the millisecond; the number itself outside the years 1 to 9999."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=ms)
    except OverflowError:  # clients may send any number of 64 bits
        return str(ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
