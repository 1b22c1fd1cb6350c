"""The source of time. Code that needs the time gets a clock as an argument, so that tests can control it.

Code that waits for another thread during database operations also gets its signals and locks from the clock, so that a
simulation can run many processes on one thread.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import date, datetime, timedelta, timezone, tzinfo
from typing import Protocol

EPOCH_MS = 1_740_787_200_000
"""Time zero of object ids, which is 2025-03-01T00:00Z, in milliseconds since 1970-01-01T00:00Z."""

FAR_MS = 5 * 60_000
"""Maximum deviation of this machine's clock, in milliseconds. The clock counts as wrong if it differs from the
database's clock by more than this, or jumps ahead by more than this."""

AHEAD_MS = 24 * 60 * 60_000
"""Maximum lead of ids and commit times over the current time, in milliseconds. Ids and times that are further ahead
come from a wrong clock and are ignored. Ids and times with a smaller lead can also come from correct clocks, after a
recovery. New ids and times are then greater than these, until the current time has passed them."""

_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Id of the system clock that continues while the machine sleeps: `CLOCK_BOOTTIME` on Linux, `CLOCK_MONOTONIC` on
macOS."""


CheckTime = Callable[[], None]
"""A function that is called at each step of long work, and raises if the work has taken too long."""


def unlimited() -> None:
    """Do nothing. This is the `CheckTime` of work without a time limit."""


class Signal(Protocol):
    """A flag that one thread sets once and other threads wait for."""

    def set(self) -> None:
        """Set the signal, and wake all waiting threads. Idempotent."""
        ...

    def wait(self, timeout_ms: float | None = None) -> bool:
        """Wait at most `timeout_ms` milliseconds (None: no limit) until the signal is set. Return True if it is set."""
        ...


class Clock(Protocol):
    """The interface to time. All values and arguments are in milliseconds."""

    def now_ms(self) -> int:
        """Return the wall-clock time in milliseconds since 1970-01-01T00:00Z. It can be earlier than the result of a
        previous call."""
        ...

    def monotonic_ms(self) -> float:
        """Return the time of a clock that never goes backwards or jumps, for deadlines and durations in one process."""
        ...

    def elapsed_ms(self) -> float:
        """Return the time of a monotonic clock that continues while the machine sleeps, or of another monotonic clock
        if the system has none that continues."""
        ...

    def sleep_ms(self, duration: float) -> None:
        """Wait for `duration` milliseconds."""
        ...

    def signal(self) -> Signal:
        """Return a new signal that is not set."""
        ...

    def lock(self) -> AbstractContextManager[object]:
        """Return a new lock that a thread can hold during database operations."""
        ...


class ThreadSignal:
    """A signal between threads. It is faster than `threading.Event`, and has fewer features."""

    __slots__ = ("_is_set", "_lock")

    def __init__(self) -> None:
        self._is_set = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        self._is_set = True
        try:  # noqa: SIM105  # `suppress` costs several times as much, and every commit sets a signal
            self._lock.release()
        except RuntimeError:  # set before
            pass

    def wait(self, timeout_ms: float | None = None) -> bool:
        if self._is_set:
            return True
        seconds = -1 if timeout_ms is None else min(max(0.0, timeout_ms / 1_000), threading.TIMEOUT_MAX)
        if self._lock.acquire(timeout=seconds):
            self.set()  # wake other waiting threads; if this call is interrupted, the signal stays set
        return self._is_set


class SystemClock:
    """The machine's clock."""

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
    """A clock for tests. Its time changes only by calls of `advance`, `sleep_ms` and `set_wall`."""

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
        """Advance all clocks by `duration` milliseconds."""
        self._now += duration
        self._monotonic += duration

    def set_wall(self, now_ms: int) -> None:
        """Set the wall clock, in milliseconds since 1970, forward or backward. The other clocks do not change."""
        self._now = float(now_ms)


class _ManualSignal(ThreadSignal):
    """A signal whose time-outs are measured by the manual clock."""

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
"""A function that returns a time zone. It is called only if the zone is needed."""

_FRACTION = re.compile(r"\.(\d+)")


def iso_time_ms(text: str, zone: Zone = lambda: timezone.utc) -> int:
    """Parse a time or date in ISO 8601, and return it in milliseconds since 1970-01-01T00:00Z.

    Args:
        zone: function that returns the time zone to use if the text contains no zone; by default UTC.
    Raises:
        ValueError: the text is not a time or date in ISO 8601.
    """
    # Python accepts any character between date and time: 2026-01-31+02:00 would mean two o'clock in the session's zone.
    date.fromisoformat(re.split("[Tt ]", text.strip(), maxsplit=1)[0])
    # Python 3.10 accepts neither Z nor fractions with a number of digits other than three or six.
    plain = re.sub(r"[zZ]$", "+00:00", text.strip())
    moment = datetime.fromisoformat(_FRACTION.sub(lambda found: "." + found[1][:6].ljust(6, "0"), plain))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone())
    return (moment - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(milliseconds=1)


def iso_text(ms: int) -> str:
    """Return a time in milliseconds since 1970 as ISO 8601 text in UTC, with milliseconds. For a time outside the years
    1 to 9999, return the number as text."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=ms)
    except OverflowError:  # clients may send any 64-bit number
        return str(ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
