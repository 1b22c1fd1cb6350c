"""Ids of objects: 63-bit snowflakes that no two processes make twice, whatever their clocks say.

An id is 41 bits of milliseconds since `clock.EPOCH_MS`, 10 bits of node and 12 bits of sequence. A node
number is leased for a span of milliseconds, and every id's own millisecond lies inside the lease that it was
made under; leases of one node never overlap, so ids never repeat, even if clocks go backwards or a process
sleeps past its lease.
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

NODE_BITS = 10
SEQUENCE_BITS = 12
NODES = 1 << NODE_BITS
"""How many node numbers there are, and so how many processes can make ids at once."""

SEQUENCE = 1 << SEQUENCE_BITS
"""How many ids one node makes in one millisecond."""

MAX_ID = 2**63 - 1
RENEW_MARGIN_MS = 15 * 60_000
"""A lease is renewed when less than this is left of it, milliseconds."""

_RETRY_MS = 5_000
_EXIT_S = 5
"""How long a process that ends goes on to give leases back: those of databases that are gone run out by themselves."""

_SHIFT = NODE_BITS + SEQUENCE_BITS
_LAST_MS = EPOCH_MS + (1 << 41) - 1


class IdParts(NamedTuple):
    """What an id says: its millisecond since 1970-01-01T00:00Z, the node that made it, its number within
    both."""

    ms: int
    node: int
    sequence: int


def pack(parts: IdParts) -> int:
    """The id of its parts.

    Raises:
        InputError: a part is out of range.
    """
    ms, node, sequence = parts
    if not (EPOCH_MS <= ms <= _LAST_MS and 0 <= node < NODES and 0 <= sequence < SEQUENCE):
        raise InputError(f"no id has {parts}")
    return (ms - EPOCH_MS) << _SHIFT | node << SEQUENCE_BITS | sequence


def unpack(id: int) -> IdParts:
    """The parts of an id."""
    return IdParts(id_time_ms(id), id >> SEQUENCE_BITS & (NODES - 1), id & (SEQUENCE - 1))


def id_time_ms(id: int) -> int:
    """The millisecond since 1970-01-01T00:00Z in an id: when it was made, by its maker's clock or a little
    later."""
    return (id >> _SHIFT) + EPOCH_MS


class Lease(NamedTuple):
    """The right to make ids of `node` in the milliseconds from `start_ms` up to, not including, `end_ms`."""

    node: int
    start_ms: int
    end_ms: int
    token: bytes = b""
    """The lease source's own mark of this holder."""


class LeaseSource(Protocol):
    """Where leases come from (`polaris_spark.system.leases`)."""

    def acquire(self, after_ms: int) -> Lease:
        """A lease on some node, all of whose milliseconds are later than `after_ms` and than all ids of that
        node."""
        ...

    def renew(self, lease: Lease) -> Lease | None:
        """The same lease with a later end; None if the node has another holder (the span leased stays
        valid)."""
        ...

    def release(self, lease: Lease, last_id: int) -> None:
        """Give a lease back; `last_id` is the last id made under it, 0 for none."""
        ...

    def confirm(self, now_ms: int, expected_ms: int) -> None:
        """Confirm that it is `now_ms`, although the monotonic clock measured `expected_ms`.

        Raises:
            ClockError: nothing confirms it.
        """
        ...


class _Confirmed:
    """The times of the clocks when the wall clock was last confirmed."""

    __slots__ = ("elapsed_ms", "latest_ms", "wall_ms")

    def __init__(self, clock: Clock) -> None:
        # The measured time first: a process that is stopped in between takes no time for a jump.
        self.elapsed_ms = clock.elapsed_ms()
        self.wall_ms = clock.now_ms()
        self.latest_ms = self.wall_ms + FAR_MS
        """As long as the wall clock shows no later time, it has not jumped ahead."""

    def expected_ms(self, clock: Clock) -> int:
        """The time that the wall clock should show: the confirmed time plus the time measured since."""
        return self.wall_ms + int(clock.elapsed_ms() - self.elapsed_ms)

    def is_ahead(self, now_ms: int, clock: Clock) -> bool:
        """Whether the wall clock, which shows a time after `latest_ms`, is far ahead of the measured time."""
        self.latest_ms = self.expected_ms(clock) + FAR_MS
        return now_ms > self.latest_ms


class IdGenerator:
    """Makes ids, each higher than every id that this process made or observed before. Thread-safe.

    The first id takes a lease; a forked child takes its own. The lease is renewed in good time by whichever
    thread asks for an id, and given back at the interpreter's exit or by `release()`.
    """

    def __init__(self, source: LeaseSource, clock: Clock | None = None) -> None:
        self._source = source
        self._clock = clock or SystemClock()
        self._lock = self._clock.lock()
        self._lease: Lease | None = None
        self._ms = 0
        """Millisecond of the last id made or observed; ids continue after (`_ms`, `_used`)."""
        self._used = SEQUENCE
        self._last_id = 0
        self._retry_at = 0.0
        self._registered = False
        self._confirmed: _Confirmed | None = None
        _generators.add(self)

    def next_id(self) -> int:
        """A new id.

        Raises:
            ClockError: this machine's clock is wrong, as far as anything tells.
            TryAgainError: every node number is leased.
        """
        with self._lock:
            first, _ = self._take(1)
            return first

    def next_ids(self, n: int) -> list[int]:
        """`n` new ids, ascending; a batch of a million takes a fraction of a second.

        Raises:
            ClockError, TryAgainError: as `next_id`.
        """
        return [id for block in self.next_blocks(n) for id in block]

    def next_blocks(self, n: int) -> list[range]:
        """`n` new ids, ascending, as ranges: small to hand to a process that is to make objects for this one.

        Raises:
            ClockError, TryAgainError: as `next_id`.
        """
        blocks: list[range] = []
        with self._lock:
            while n > 0:
                first, count = self._take(n)
                blocks.append(range(first, first + count))
                n -= count
        return blocks

    def observe(self, id: int) -> None:
        """Make no id below `id` from now on: for every fence that this process reads, and heads by `observe_head`.

        Raises:
            InputError: it is no id.
        """
        if not 0 <= id <= MAX_ID:
            raise InputError(f"{id} is no id of an object")
        ms = (id >> _SHIFT) + EPOCH_MS
        if ms < self._ms:  # without the lock: `_ms` only grows
            return
        with self._lock:
            if ms > self._ms or (ms == self._ms and id > self._last_id):
                self._ms, self._used = ms, SEQUENCE

    def observe_head(self, commit: int, fence: int) -> None:
        """Make no id below the fence of a reference, nor below its head, from now on.

        A head that lies more than `AHEAD_MS` ahead was made by a process whose clock was wrong. It is ignored, because
        the ids of every reader would otherwise run ahead as far. Nothing but the order of ids in the history is lost:
        a sweep relies on new ids being above the fence, and a fence is never ignored.

        Raises:
            InputError: one is no id.
        """
        self.observe(fence)
        if commit <= self._last_id:
            return
        now = self._clock.now_ms()
        expected = now if self._confirmed is None else self._confirmed.expected_ms(self._clock)
        if id_time_ms(commit) <= max(now, expected) + AHEAD_MS:
            self.observe(commit)

    def now_ms(self) -> int:
        """The current time for rows and commits, milliseconds since 1970.

        Raises:
            ClockError: the wall clock jumped ahead, and nothing confirms it.
        """
        now, confirmed = self._clock.now_ms(), self._confirmed
        if confirmed is None:
            self._confirmed = _Confirmed(self._clock)  # it is not, but a later jump is seen
        elif now > confirmed.latest_ms and confirmed.is_ahead(now, self._clock):
            new = _Confirmed(self._clock)
            self._source.confirm(new.wall_ms, confirmed.expected_ms(self._clock))
            self._confirmed = new
        return now

    def release(self) -> None:
        """Give the lease back, if there is one; a later id takes a new one."""
        with self._lock:
            lease, self._lease = self._lease, None
            if lease is not None:
                last_id, self._last_id = self._last_id, 0
                self._used = SEQUENCE
                self._source.release(lease, last_id)

    def _take(self, wanted: int) -> tuple[int, int]:
        """The first of up to `wanted` consecutive ids within one millisecond, and how many they are."""
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
        """The millisecond of the next id: now, or the last id's while it has room, or the one after that."""
        now = self.now_ms()
        if now > self._ms:
            return now
        return self._ms if self._used < SEQUENCE else self._ms + 1

    def _leased(self, ms: int) -> Lease:
        """A lease that covers `ms` or begins later: the one held, renewed if it ends soon, or a new one."""
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
                f"the time {ms} ms since 1970 is beyond what ids can say; repair this machine's clock"
            )
        before = _Confirmed(self._clock)
        self._lease = taken = self._source.acquire(ms - 1)
        self._confirmed = before
        self._used, self._last_id = SEQUENCE, 0
        if not self._registered:
            self._registered = True
            atexit.register(_release_at_exit, weakref.ref(self), os.getpid())
        return taken

    def _start_in_child(self) -> None:
        """A forked child never uses its parent's lease, nor its lock, which another thread may have held."""
        self._lock = self._clock.lock()
        self._lease = None
        self._used, self._last_id = SEQUENCE, 0
        self._registered = False


_generators: weakref.WeakSet[IdGenerator] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for generator in _generators:
        generator._start_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)


_exiting_since: list[float] = []


def _release_at_exit(generator: weakref.ref[IdGenerator], process: int) -> None:
    found = generator()
    if found is None or process != os.getpid():
        return
    _exiting_since.append(time.monotonic())
    if _exiting_since[-1] - _exiting_since[0] <= _EXIT_S:
        with contextlib.suppress(PolarisError):  # the store is closed or gone; the lease runs out by itself
            found.release()
