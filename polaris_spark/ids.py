"""Ids of objects: 63-bit snowflakes, which are unique across processes even if clocks are wrong.

An id consists of 41 bits for the milliseconds since `clock.EPOCH_MS`, 10 bits for a node number and 12 bits for a
sequence number. A process leases a node number for a span of milliseconds, and the milliseconds of all its ids lie in
that span. Leases of one node never overlap, so ids never repeat, even if clocks go backwards or a process sleeps past
the end of its lease.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
import weakref
from typing import NamedTuple, Protocol

from polaris_spark.clock import AHEAD_MS, EPOCH_MS, FAR_MS, Clock, SystemClock
from polaris_spark.errors import ClockError, InputError, PolarisError
from polaris_spark.forks import begin_anew_in_children

NODE_BITS = 10
SEQUENCE_BITS = 12
NODES = 1 << NODE_BITS
"""Number of different node numbers. It is the maximum number of processes that can make ids at the same time."""

SEQUENCE = 1 << SEQUENCE_BITS
"""Maximum number of ids that one node makes in one millisecond."""

MAX_ID = 2**63 - 1
RENEW_MARGIN_MS = 15 * 60_000
"""A lease is renewed when less than this time remains until its end, in milliseconds."""

_RETRY_MS = 5_000
_EXIT_S = 5
"""Time limit for an exiting process to release its leases, in seconds. Leases that it does not release expire."""

_SHIFT = NODE_BITS + SEQUENCE_BITS
_LAST_MS = EPOCH_MS + (1 << 41) - 1


class IdParts(NamedTuple):
    """The parts of an id: the time at which it was made, in milliseconds since 1970-01-01T00:00Z, the number of the
    node that made it, and its position among the ids of this node and millisecond."""

    ms: int
    node: int
    sequence: int


def pack(parts: IdParts) -> int:
    """Return the id that consists of these parts.

    Raises:
        InputError: a part is out of range.
    """
    ms, node, sequence = parts
    if not (EPOCH_MS <= ms <= _LAST_MS and 0 <= node < NODES and 0 <= sequence < SEQUENCE):
        raise InputError(
            f"{parts} are not the parts of an id: ms must be from {EPOCH_MS} to {_LAST_MS}, node from 0 to "
            f"{NODES - 1}, and sequence from 0 to {SEQUENCE - 1}"
        )
    return (ms - EPOCH_MS) << _SHIFT | node << SEQUENCE_BITS | sequence


def unpack(id: int) -> IdParts:
    """Return the parts of an id."""
    return IdParts(id_time_ms(id), id >> SEQUENCE_BITS & (NODES - 1), id & (SEQUENCE - 1))


def id_time_ms(id: int) -> int:
    """Return the time in an id, in milliseconds since 1970-01-01T00:00Z. It is the time at which the id was made, by
    the clock of the process that made it, or a little later."""
    return (id >> _SHIFT) + EPOCH_MS


class Lease(NamedTuple):
    """The right to make ids with the node number `node` and with times from `start_ms`, inclusive, to `end_ms`,
    exclusive, in milliseconds since 1970."""

    node: int
    start_ms: int
    end_ms: int
    token: bytes = b""
    """Token by which the lease source recognizes this holder of the lease."""


class LeaseSource(Protocol):
    """The interface to the source of leases (`polaris_spark.system.leases`)."""

    def acquire(self, after_ms: int) -> Lease:
        """Acquire a lease on any node number, and return it. The times in the lease are later than `after_ms`, and
        later than the times in all earlier ids of the node."""
        ...

    def renew(self, lease: Lease) -> Lease | None:
        """Extend a lease, and return it with its new end. Return None if this process no longer holds the node number.
        Even then, the process can use the given lease until the end of that lease."""
        ...

    def release(self, lease: Lease, last_id: int) -> None:
        """Release a lease. `last_id` is the last id that was made under the lease, or 0 if none was made."""
        ...

    def confirm(self, now_ms: int, expected_ms: int) -> None:
        """Check that the wall clock is right although it has jumped ahead of the monotonic clock. The database's clock,
        or a time that another process stored, can confirm the wall clock.

        Args:
            now_ms: time that the wall clock shows, in milliseconds since 1970.
            expected_ms: last confirmed time of the wall clock, plus the time that the monotonic clock has measured
                since then.
        Raises:
            ClockError: the wall clock cannot be confirmed.
        """
        ...


class _Confirmed:
    """The times that the monotonic clock and the wall clock showed when the wall clock was last confirmed."""

    __slots__ = ("elapsed_ms", "latest_ms", "wall_ms")

    def __init__(self, clock: Clock) -> None:
        # The elapsed time is read first, so that a process that is stopped between the reads does not detect a jump.
        self.elapsed_ms = clock.elapsed_ms()
        self.wall_ms = clock.now_ms()
        self.latest_ms = self.wall_ms + FAR_MS
        """While the wall clock shows at most this time, it certainly has not jumped ahead. In milliseconds since
        1970."""

    def expected_ms(self, clock: Clock) -> int:
        """Return the time that the wall clock should show now, in milliseconds since 1970: the confirmed time plus the
        time that has elapsed since it was confirmed."""
        return self.wall_ms + int(clock.elapsed_ms() - self.elapsed_ms)

    def is_ahead(self, now_ms: int, clock: Clock) -> bool:
        """Whether the wall clock, which shows `now_ms`, is more than `FAR_MS` ahead of the expected time. Call this if
        `now_ms` is after `latest_ms`. This method also updates `latest_ms` from the expected time."""
        self.latest_ms = self.expected_ms(clock) + FAR_MS
        return now_ms > self.latest_ms


class IdGenerator:
    """Generator of object ids. Each id is higher than all ids that this generator made or observed (`observe`) before.
    Thread-safe.

    The first request for an id acquires a lease; a forked child acquires its own lease. Later requests renew the lease
    before it ends. The lease is released when the interpreter exits, or by `release()`.
    """

    def __init__(self, source: LeaseSource, clock: Clock | None = None) -> None:
        self._source = source
        self._clock = clock or SystemClock()
        self._lock = self._clock.lock()
        self._lease: Lease | None = None
        self._ms = 0
        """Time in the last id that was made or observed, in milliseconds since 1970. `_used` is the number of ids of
        this millisecond that are already used."""
        self._used = SEQUENCE
        self._last_id = 0
        self._retry_at = 0.0
        self._registered = False
        self._confirmed: _Confirmed | None = None
        begin_anew_in_children(self)

    def next_id(self) -> int:
        """Return a new id.

        Raises:
            ClockError: this machine's clock is wrong or cannot be confirmed.
            TryAgainError: every node number is leased.
        """
        with self._lock:
            first, _ = self._take(1)
            return first

    def node(self) -> int:
        """Return the node number in the ids of this process.

        Raises:
            ClockError, TryAgainError: as for `next_id`.
        """
        lease = self._lease
        return unpack(self.next_id()).node if lease is None else lease.node

    def next_ids(self, n: int) -> list[int]:
        """Return `n` new ids, in ascending order. A million ids take a fraction of a second.

        Raises:
            ClockError: this machine's clock is wrong or cannot be confirmed.
            TryAgainError: every node number is leased.
        """
        return [id for block in self.next_blocks(n) for id in block]

    def next_blocks(self, n: int) -> list[range]:
        """Return `n` new ids, in ascending order, as ranges of consecutive ids. Unlike a list of ids, ranges take few
        bytes. So they can be sent to another process, which uses the ids for objects that it makes for this process.

        Raises:
            ClockError: this machine's clock is wrong or cannot be confirmed.
            TryAgainError: every node number is leased.
        """
        blocks: list[range] = []
        with self._lock:
            while n > 0:
                first, count = self._take(n)
                blocks.append(range(first, first + count))
                n -= count
        return blocks

    def observe(self, id: int) -> None:
        """Make only ids above `id` from now on.

        This is called for the fence of every reference that this process reads. The fence is an id: a commit must not
        point to unreferenced rows with ids below it, because a sweep may delete them.

        Raises:
            InputError: `id` is not a valid id.
        """
        if not 0 <= id <= MAX_ID:
            raise InputError(f"{id} is not an object id, which is from 0 to {MAX_ID}")
        ms = (id >> _SHIFT) + EPOCH_MS
        if ms < self._ms:  # without the lock: `_ms` only grows
            return
        with self._lock:
            if ms > self._ms or (ms == self._ms and id > self._last_id):
                self._ms, self._used = ms, SEQUENCE

    def observe_head(self, commit: int, fence: int) -> None:
        """Make only ids above the id of a reference's newest commit and above the reference's fence from now on.

        If the time in the commit's id is more than `AHEAD_MS` ahead of the current time, a process with a wrong clock
        made the id. The id is then ignored, because otherwise every process that reads the reference would make ids
        that are equally far ahead. The only loss is that ids do not ascend along the history. A fence is never ignored,
        because a sweep requires that new ids are above the fence.

        Args:
            commit: id of the reference's newest commit.
            fence: fence of the reference (see `observe`).
        Raises:
            InputError: `commit` or `fence` is not a valid id.
        """
        self.observe(fence)
        if commit <= self._last_id:
            return
        now = self._clock.now_ms()
        expected = now if self._confirmed is None else self._confirmed.expected_ms(self._clock)
        if id_time_ms(commit) <= max(now, expected) + AHEAD_MS:
            self.observe(commit)

    def now_ms(self) -> int:
        """Return the current time to write into rows and commits, in milliseconds since 1970.

        Raises:
            ClockError: the wall clock jumped ahead, and its time cannot be confirmed.
        """
        now, confirmed = self._clock.now_ms(), self._confirmed
        if confirmed is None:
            self._confirmed = _Confirmed(self._clock)  # not confirmed, but a later jump is detected
        elif now > confirmed.latest_ms and confirmed.is_ahead(now, self._clock):
            new = _Confirmed(self._clock)
            self._source.confirm(new.wall_ms, confirmed.expected_ms(self._clock))
            self._confirmed = new
        return now

    def release(self) -> None:
        """Release the lease, if there is one. A later request for an id acquires a new lease."""
        with self._lock:
            lease, self._lease = self._lease, None
            if lease is not None:
                last_id, self._last_id = self._last_id, 0
                self._used = SEQUENCE
                self._source.release(lease, last_id)

    def _take(self, wanted: int) -> tuple[int, int]:
        """Take up to `wanted` consecutive ids of one millisecond. Return (first id, number of ids)."""
        ms, lease = self._next_ms(), self._lease
        if lease is not None:
            ms = max(ms, lease.start_ms)
        while lease is None or ms + RENEW_MARGIN_MS >= lease.end_ms:
            lease = self._leased(ms)
            ms = max(self._next_ms(), lease.start_ms)
            if ms < lease.end_ms:
                break
        if ms > self._ms:
            self._ms, self._used = ms, 0
        count = min(wanted, SEQUENCE - self._used)
        first = (ms - EPOCH_MS) << _SHIFT | lease.node << SEQUENCE_BITS | self._used
        self._used += count
        self._last_id = first + count - 1
        return first, count

    def _next_ms(self) -> int:
        """Return the time for the next id, in milliseconds since 1970. If the current time is later than the time in
        the last id, return the current time. Otherwise return the last id's millisecond if it has ids left, or else the
        next millisecond."""
        now = self.now_ms()
        if now > self._ms:
            return now
        return self._ms if self._used < SEQUENCE else self._ms + 1

    def _leased(self, ms: int) -> Lease:
        """Renew the current lease if possible, and return it if it then ends after `ms`. Otherwise return a new lease,
        which begins at `ms` or later."""
        lease = self._lease
        if lease is not None:
            usable = ms < lease.end_ms
            if usable and self._clock.monotonic_ms() < self._retry_at:
                return lease
            try:
                before = _Confirmed(self._clock)
                renewed = self._source.renew(lease)
            except PolarisError:
                if not usable:
                    raise
                self._retry_at = self._clock.monotonic_ms() + _RETRY_MS
                return lease
            self._confirmed = before
            if renewed is not None and ms < renewed.end_ms:
                self._lease = renewed
                return renewed
            if usable:
                self._retry_at = self._clock.monotonic_ms() + RENEW_MARGIN_MS
                return lease
        if ms > _LAST_MS:
            raise ClockError(
                f"the time {ms} ms since 1970 is later than the last time that an id can contain ({_LAST_MS} ms); "
                "correct this machine's clock"
            )
        before = _Confirmed(self._clock)
        self._lease = taken = self._source.acquire(ms - 1)
        self._confirmed = before
        self._used, self._last_id = SEQUENCE, 0
        if not self._registered:
            self._registered = True
            atexit.register(_release_at_exit, weakref.ref(self), os.getpid())
        return taken

    def begin_in_child(self) -> None:
        """In a forked child, begin without a lease and with a new lock, because a thread of the parent may have held
        the old lock during the fork."""
        self._lock = self._clock.lock()
        self._lease = None
        self._used, self._last_id = SEQUENCE, 0
        self._registered = False


_exiting_since: list[float] = []


def _release_at_exit(generator: weakref.ref[IdGenerator], process: int) -> None:
    found = generator()
    if found is None or process != os.getpid():
        return
    _exiting_since.append(time.monotonic())
    if _exiting_since[-1] - _exiting_since[0] <= _EXIT_S:
        with contextlib.suppress(PolarisError):  # the store is closed or gone: the lease expires by itself
            found.release()
