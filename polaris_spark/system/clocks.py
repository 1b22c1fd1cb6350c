"""Clock checks: the record `clock` in the system realm, and the rules that refuse a wrong clock.

A wrong clock must harm only its own process. Three sources can show that a clock is wrong, the best one first:

1. The database's own clock, if it has one (`Backend.now_ms`). A process whose clock differs from it by more than
   `FAR_MS` makes no ids and deletes nothing. A process whose clock agrees with it continues, whatever the record says.
2. The process itself: its wall clock jumps ahead of its monotonic clock (`ids.IdGenerator`).
3. The record `clock`. A process notes the time of its clock in the record when it acquires or renews a lease. A clock
   that is more than `BEHIND_MS` behind the noted time is refused, unless its time lies in a gap: a span that the noted
   times skipped. A gap has two possible causes: the store was idle during the span, or another machine's clock was
   ahead. The store cannot tell which. So a process whose clock is in a gap continues, and notes its own time. Thus a
   machine whose clock was ahead stops no other process. If instead the clock of the process in the gap is behind, its
   ids and commit times are too low, which the protocol allows.

The first lease of a process whose clock is far ahead looks like the first lease after a long idle time. So, if the
database has no clock, the lease is granted. But jobs that delete old data refuse to run if the clock is more than
`TRUST_MS` later than the last trusted time (`StoreClock.refuse_deleting`).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Final

import msgspec

from polaris_spark.backends.base import Backend
from polaris_spark.clock import FAR_MS, Clock, iso_text
from polaris_spark.errors import ClockError
from polaris_spark.system.stores import system_references

BEHIND_MS: Final = 60_000
"""Maximum time by which a clock may be behind the time in the record `clock`, in milliseconds. A clock that is further
behind is refused."""

TRUST_MS: Final = 8 * 24 * 60 * 60_000
"""Maximum time by which a clock may be past the last trusted time (`ClockRecord.trusted_ms`), in milliseconds. If it is
further past, jobs that delete old data refuse to run."""

APART_MS: Final = 2 * FAR_MS
"""Maximum difference between two clocks that a store accepts, in milliseconds. There is one exception: if the database
has no clock, the store cannot detect a clock that is far ahead."""

CLOCK: Final = "clock"
_NEWEST_GAPS = 4
_WIDEST_GAPS = 4


class ClockRecord(msgspec.Struct, frozen=True):
    """The time last noted in the store, and the process that noted it. Times are milliseconds since 1970."""

    time_ms: int
    holder: str
    floor_ms: int = 0
    """No lease of a node number begins before this time."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Spans (start, end) of more than `FAR_MS` between two noted times in succession, oldest first. The store was idle
    then, or a clock was ahead. Only the newest and the widest spans are kept."""
    trusted_ms: int = 0
    """The newest noted time that is trusted: it was confirmed by another clock, or is at most `TRUST_MS` later than the
    trusted time before it."""
    ahead_ms: int = 0
    """Ids and times up to this time are accepted even if they lie in the future, because an operator's repair accepted
    them."""


class StoreClock:
    """Checks this machine's clock against the clocks of the database and of other processes of a store. Thread-safe."""

    def __init__(self, backend: Backend, clock: Clock, holder: str | None = None) -> None:
        """
        Args:
            clock: this machine's clock.
            holder: name of this process in the record `clock`; by default host name and process id.
        """
        self._backend = backend
        self._references = system_references(backend)
        self._clock = clock
        self._holder = holder
        self._trusted_until = float("-inf")
        self._measured: tuple[float, int] | None = None
        """Readings of the monotonic and of the wall clock when this process last trusted its clock, in milliseconds."""

    @property
    def holder(self) -> str:
        """Name of this process in the record `clock`."""
        return self._holder or process_name()

    def note(self) -> tuple[int, int]:
        """Compare this machine's clock with the database's clock and with the record `clock`, and note its time in the
        record.

        Returns:
            (now, the time before which no lease may begin), in milliseconds since 1970.
        Raises:
            ClockError: this machine's clock differs from the database's, or is behind the record.
        """
        is_confirmed = self.compare_with_database()
        while True:
            found = self._references.read(CLOCK, ClockRecord)
            elapsed = self._clock.elapsed_ms()
            # Read after the record, so that a process that slept in between does not look behind.
            now = self._clock.now_ms()
            last = None if found is None else found.value
            is_trusted = is_confirmed or last is None or self._has_measured(now)
            self._trusted_until = float("inf") if last is None or is_trusted else _trusted(last) + TRUST_MS
            if self.trusts(now):
                self._measured = elapsed, now
            if last is not None and not is_confirmed:
                _refuse_behind(now, last)
            if last is not None and now < last.time_ms <= now + (FAR_MS if is_confirmed else BEHIND_MS):
                return now, last.floor_ms
            new = self._references.row(_noted(last, now, self.holder, is_trusted=is_trusted))
            if self._references.put(CLOCK, found.version if found else None, new):
                return now, 0 if last is None else last.floor_ms

    def _has_measured(self, now_ms: int) -> bool:
        """Whether the monotonic clock confirms the time `now_ms` of the wall clock: since this process last trusted its
        wall clock, the wall clock has advanced at most `FAR_MS` more than the monotonic clock. False if it never
        trusted its wall clock."""
        if self._measured is None:
            return False
        elapsed, wall = self._measured
        return now_ms <= wall + self._clock.elapsed_ms() - elapsed + FAR_MS

    def trusts(self, now_ms: int) -> bool:
        """Whether the time `now_ms` is trusted enough to delete old data, according to the last call of `note`. False
        before the first call. Does not read the database."""
        return now_ms <= self._trusted_until

    def compare_with_database(self) -> bool:
        """Compare this machine's clock with the database's own clock.

        Returns:
            True if the clocks agree; False if the database has no clock.
        Raises:
            ClockError: the clocks disagree.
        """
        before = self._clock.now_ms()
        database = self._backend.now_ms()
        if database is None:
            return False
        after = self._clock.now_ms()
        off = before - database if before > database else min(0, after - database)
        if abs(off) > FAR_MS:
            raise ClockError(
                f"this machine's clock says {iso_text(database + off)}, {_span(off)} the database's clock "
                f"({iso_text(database)}), so this process must not write: correct this machine's clock, or the "
                "database server's clock if that one is wrong"
            )
        return True

    def confirm(self, now_ms: int, expected_ms: int) -> None:
        """Confirm a wall clock that jumped ahead of the monotonic clock, or raise an error.

        Args:
            now_ms: time of the wall clock.
            expected_ms: last confirmed time of the wall clock, plus the time that the monotonic clock measured since
                then.
        Raises:
            ClockError: neither the database's clock nor a time noted by another process confirms the wall clock.
        """
        if self.compare_with_database():
            return
        found = self._references.read(CLOCK, ClockRecord)
        is_told = found is not None and found.value.holder != self.holder
        if found is not None and is_told and abs(found.value.time_ms - now_ms) <= FAR_MS:
            return
        raise ClockError(
            f"this machine's clock jumped to {iso_text(now_ms)}, {_span(now_ms - expected_ms)} the time that this "
            f"process measured ({iso_text(expected_ms)}), so this process must not write: correct this machine's "
            "clock; if the clock is already correct, restart this process"
        )

    def refuse_behind(self) -> None:
        """Raise an error if this machine's clock is wrong, like `note`, but write nothing. For operations that rely on
        the clock but make no ids.

        Raises:
            ClockError: this machine's clock differs from the database's, or is behind the record `clock`.
        """
        if self.compare_with_database():
            return
        found = self._references.read(CLOCK, ClockRecord)
        if found is not None:
            _refuse_behind(self._clock.now_ms(), found.value)

    def doubt(self) -> str | None:
        """Return a message that says why jobs that delete old data must not trust this machine's clock; None if they
        can.

        Raises:
            ClockError: this machine's clock differs from the database's, or is behind the record `clock`.
        """
        found = None if self.compare_with_database() else self._references.read(CLOCK, ClockRecord)
        if found is None:
            return None
        now, trusted = self._clock.now_ms(), _trusted(found.value)
        _refuse_behind(now, found.value)
        if now <= trusted + TRUST_MS or self._has_measured(now):
            return None
        return (
            f"this machine's clock says {iso_text(now)}, {_span(now - trusted)} the newest time that this store "
            f"trusts ({iso_text(trusted)}). If the clock is wrong, correct it, because it would make all rows look "
            "old. If it is right and the store was idle, run the job with clock_is_right => true "
            "(--clock-is-right), once"
        )

    def refuse_deleting(self, *, clock_is_right: bool = False) -> None:
        """Raise an error if jobs must not delete old data because this machine's clock cannot be trusted.

        Args:
            clock_is_right: True if the operator has checked that this machine's clock is right. Then a clock in doubt
                is accepted, and its time becomes the trusted time.
        Raises:
            ClockError: this machine's clock differs from the database's, or is behind the record `clock`; or it is too
                far past the last trusted time, and `clock_is_right` is False.
        """
        doubt = self.doubt()
        if doubt is not None and not clock_is_right:
            raise ClockError(doubt)
        if doubt is not None:
            self._change(lambda last, now: msgspec.structs.replace(last, trusted_ms=now))

    def repair(self, ahead_ms: int = 0) -> int:
        """Note this machine's time in the record `clock`, even if a later time was noted. This undoes the effect of a
        clock that was far ahead.

        The caller must have checked that this machine's clock is right. Even if the clock is wrong, ids stay unique,
        because the spans of leases never overlap, whatever the record says.

        Args:
            ahead_ms: ids and times up to this time are accepted even if they lie in the future, in milliseconds since
                1970.
        Returns:
            the noted time, in milliseconds since 1970.
        Raises:
            ClockError: this machine's clock differs from the database's.
        """
        self.compare_with_database()
        return self._change(
            lambda last, now: ClockRecord(
                now,
                self.holder,
                last.floor_ms,
                _before(last.gaps, now),
                now,
                max(last.ahead_ms, ahead_ms),
            )
        ).time_ms

    def _change(self, change: Callable[[ClockRecord, int], ClockRecord]) -> ClockRecord:
        while True:
            found = self._references.read(CLOCK, ClockRecord)
            now = self._clock.now_ms()
            last = ClockRecord(now, self.holder) if found is None else found.value
            new = change(last, now)
            if self._references.put(CLOCK, found.version if found else None, self._references.row(new)):
                return new


def process_name() -> str:
    """Return the name of this process as a holder of leases: its host name and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _noted(last: ClockRecord | None, now: int, holder: str, *, is_trusted: bool) -> ClockRecord:
    """Return a copy of the record `last` in which the process `holder` has noted the time `now`. If this time is more
    than `FAR_MS` after the noted time before it, the copy contains a new gap. If `last` is None, return a first
    record."""
    if last is None:
        return ClockRecord(now, holder, trusted_ms=now)
    gaps = _before(last.gaps, now)
    newest = min(last.time_ms, now) if last.time_ms <= now else _newest_before(last, now)
    if now - newest > FAR_MS:
        gaps = _kept((*gaps, (newest, now)))
    trusted = min(_trusted(last), now)
    if is_trusted or now <= trusted + TRUST_MS:
        trusted = now
    return msgspec.structs.replace(last, time_ms=now, holder=holder, gaps=gaps, trusted_ms=trusted)


def _newest_before(last: ClockRecord, now: int) -> int:
    """Return the newest noted time before `now`: the start of the gap that contains `now`, or `now` if in no gap."""
    return max((start for start, end in last.gaps if start <= now < end), default=now)


def _before(gaps: tuple[tuple[int, int], ...], now: int) -> tuple[tuple[int, int], ...]:
    return tuple(gap for gap in gaps if gap[1] <= now)


def _kept(gaps: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    widest = sorted(gaps, key=lambda gap: gap[0] - gap[1])[:_WIDEST_GAPS]
    return tuple(gap for gap in gaps if gap in widest or gap in gaps[-_NEWEST_GAPS:])


def _trusted(record: ClockRecord) -> int:
    return record.trusted_ms or record.time_ms


def _refuse_behind(now: int, last: ClockRecord) -> None:
    if now >= last.time_ms - BEHIND_MS:
        return
    if any(start - BEHIND_MS < now < end - FAR_MS for start, end in last.gaps):
        return
    raise ClockError(
        f"this machine's clock says {iso_text(now)}, {_span(now - last.time_ms)} the time that {last.holder} "
        f"noted in this store ({iso_text(last.time_ms)}), so this process must not write: correct this machine's "
        f"clock; if it is right and the clock of {last.holder} was ahead, run polaris-spark fsck --repair STORE"
    )


def _span(ms: int) -> str:
    """Return a time difference as text, such as `90 s ahead of` or `400 days behind`."""
    size = abs(ms)
    text = f"{size // 1_000:,} s" if size < 2 * 86_400_000 else f"{size // 86_400_000:,} days"
    return f"{text} {'ahead of' if ms > 0 else 'behind'}"
