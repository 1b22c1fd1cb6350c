"""Leases of node numbers. Every id contains a node number, which only the holder of the number's lease may use. The
lease is a record `node/<n>` in the system realm, changed by compare-and-swap.

A record is never deleted. The span of a lease is the time from its beginning to its end. If a holder gives a lease
back, the record contains the first millisecond that the holder did not use, and the node's next lease begins at that
millisecond or later. If a lease runs out, the node's next lease begins at the end of the lease's span or later. So the
spans of one node never overlap, whatever clocks say. If a holder's clock was far ahead, the node's next lease would
begin in the future, so the node is used only if no other node is free. The record `clock` decides whose clocks are
accepted (`system.clocks`), and contains the millisecond before which no lease may begin (`start_over`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

import msgspec

from polaris_spark.backends.base import Backend
from polaris_spark.clock import AHEAD_MS, EPOCH_MS, Clock, iso_text
from polaris_spark.errors import TryAgainError
from polaris_spark.ids import NODES, Lease, id_time_ms
from polaris_spark.store.references import Versioned
from polaris_spark.system.clocks import APART_MS, CLOCK, ClockRecord, StoreClock, process_name
from polaris_spark.system.stores import system_references

LEASE_MS: Final = 60 * 60_000
"""Duration of a lease or a renewal, in milliseconds."""

_NODE: Final = "node"
_PROBES = 16


class NodeRecord(msgspec.Struct, frozen=True):
    """The lease of a node number. The holder can make ids with times from `start_ms`, inclusive, to `end_ms`,
    exclusive, in milliseconds since 1970."""

    holder: str
    start_ms: int
    end_ms: int
    released: bool = False
    """Whether the holder can no longer renew the lease: it gave the lease back (then `end_ms` is the first millisecond
    that it did not use), or `end_lease` or `start_over` ended the lease."""


class NodeLeases:
    """Leases of node numbers in one store, from which an `IdGenerator` makes ids. Thread-safe."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        *,
        nodes: int = NODES,
        seed: int | None = None,
        holder: str | None = None,
    ) -> None:
        """
        Args:
            backend: the store.
            clock: this machine's clock.
            nodes: how many node numbers to use, at most `ids.NODES`. It must be equal in all processes of a store.
            seed: seed for the choice of nodes, for tests.
            holder: name of the holder in the records; by default this host and process.
        """
        self.store_clock = StoreClock(backend, clock, holder)
        self._nodes = nodes
        self._references = system_references(backend)
        self._seed = seed

    def acquire(self, after_ms: int) -> Lease:
        """Lease a free node number and return the lease. It begins after `after_ms` (milliseconds since 1970).

        Raises:
            ClockError: this machine's clock differs from the database's, or is behind the record `clock`.
            TryAgainError: every node number is leased.
        """
        now, floor = self.store_clock.note()
        least = max(now, after_ms + 1, floor, EPOCH_MS)
        earliest = None
        ahead: set[tuple[int, int]] = set()
        for node in self._candidates():
            found = self._references.read(f"{_NODE}/{node}", NodeRecord)
            is_held = found is not None and not found.value.released and found.value.end_ms > now
            if found is not None and found.value.end_ms > (now if is_held else least) + AHEAD_MS:
                ahead.add((found.value.end_ms, node))
            elif found is not None and is_held:
                earliest = min(found.value.end_ms, earliest or found.value.end_ms)
            elif lease := self._taken(node, found, least):
                return lease
        for _, node in sorted(ahead):  # no other node is free: ids in the future are better than no ids
            found = self._references.read(f"{_NODE}/{node}", NodeRecord)
            if lease := self._taken(node, found, least):
                return lease
        until = f" after {iso_text(earliest)}, when the first of these leases ends" if earliest else ""
        raise TryAgainError(
            f"all {self._nodes} node numbers are leased to processes, so this process can make no ids: try again{until}"
        )

    def _taken(self, node: int, found: Versioned[NodeRecord] | None, least: int) -> Lease | None:
        """Lease the number `node` and return the lease, which begins at `least` (milliseconds since 1970) or later;
        return None if another process changed the node's record first."""
        start = max(least, found.value.end_ms if found else 0)
        new = self._references.row(NodeRecord(self.store_clock.holder, start, start + LEASE_MS))
        if self._references.put(f"{_NODE}/{node}", found.version if found else None, new):
            return Lease(node, start, start + LEASE_MS, new.version)
        return None

    def renew(self, lease: Lease) -> Lease | None:
        """Renew the lease for at least `LEASE_MS` from now and return it; return None if this process no longer holds
        the node number.

        Raises:
            ClockError: this machine's clock differs from the database's, or is behind the record `clock`.
        """
        now, _ = self.store_clock.note()
        name = f"{_NODE}/{lease.node}"
        found = self._holding(lease)
        if found is None:
            return None
        end = max(now + LEASE_MS, lease.end_ms)
        new = self._references.row(NodeRecord(self.store_clock.holder, found.value.start_ms, end))
        if not self._references.put(name, found.version, new):
            return None
        return Lease(lease.node, found.value.start_ms, end, new.version)

    def release(self, lease: Lease, last_id: int) -> None:
        """Give a lease back, so that the node's next lease can begin right after `last_id`, the last id that was made
        under this lease (0 if none)."""
        found = self._holding(lease)
        if found is not None:
            end = id_time_ms(last_id) + 1 if last_id else found.value.start_ms
            record = NodeRecord(found.value.holder, found.value.start_ms, end, released=True)
            self._references.put(f"{_NODE}/{lease.node}", found.version, self._references.row(record))

    def confirm(self, now_ms: int, expected_ms: int) -> None:
        """Confirm a wall clock that jumped ahead of the monotonic clock. For the arguments and errors, see
        `StoreClock.confirm`."""
        self.store_clock.confirm(now_ms, expected_ms)

    def _holding(self, lease: Lease) -> Versioned[NodeRecord] | None:
        found = self._references.read(f"{_NODE}/{lease.node}", NodeRecord)
        return found if found is not None and found.version == lease.token else None

    def _candidates(self) -> Iterator[int]:
        """Yield the node numbers to try: first a few at random, one of which is nearly always free, then all."""
        choice = random.Random(self._seed)
        yield from choice.sample(range(self._nodes), min(_PROBES, self._nodes))
        first = choice.randrange(self._nodes)
        yield from range(first, self._nodes)
        yield from range(first)


def node_records(backend: Backend) -> dict[int, NodeRecord]:
    """Return the record of each node that is or was leased, by node number."""
    found = {}
    references = system_references(backend)
    for name in references.names():
        kind, _, number = name.partition("/")
        record = references.read(name, NodeRecord) if kind == _NODE else None
        if record is not None:
            found[int(number)] = record.value
    return found


def end_lease(backend: Backend, node: int, record: NodeRecord) -> bool:
    """End a lease by marking it as given back. Return True if it was marked, False if its record is no longer `record`.

    The holder can use the rest of the lease's span but cannot renew the lease. The node's next lease begins after the
    span.
    """
    references = system_references(backend)
    found = references.read(f"{_NODE}/{node}", NodeRecord)
    if found is None or found.value != record:
        return False
    ended = msgspec.structs.replace(record, released=True)
    return references.put(f"{_NODE}/{node}", found.version, references.row(ended))


def start_over(backend: Backend, clock: Clock, highest_id: int) -> int:
    """End every lease, and make new leases begin after the end of every lease that was ever given. This works even if
    records of leases were lost, or were restored to an older state. No process has to wait.

    Why no id is made twice after this:

    - A lease begins at the latest of three times: its holder's time, which is within `APART_MS` of all other clocks
      that the store accepts; the time after an id that its holder had seen; the end of the node's previous lease. The
      lease lasts for `LEASE_MS` from its holder's time, or from its beginning if that is later.
    - The returned time is `LEASE_MS + APART_MS` after the latest of those ids and times that are still in the store. So
      every lost lease ends before the returned time, and every new lease begins at the returned time or later.
    - Every remaining record gets a fresh version. So neither its holder nor an earlier holder whose record was restored
      can renew a lease. A process whose lease was lost can use that lease until its end.

    If the database has no clock, a holder's clock may have been far ahead of all others. Then the returned time is
    after the end of that holder's lease only if the store still contains one of these: the record of the lease; the
    time that the holder wrote to the record `clock` when it last acquired or renewed the lease; a head that the holder
    made after that. If all of these were lost and the holder's process still runs, end that process before the call,
    together with every other process that uses the store.

    The cost: for about an hour, the times in new ids are up to an hour too late. Ids are compared with each other. They
    are compared with times only to find old data, which is then found up to an hour later.

    Args:
        highest_id: the highest id that is known to be in use.
    Returns:
        the time from which new leases begin, in milliseconds since 1970.
    """
    references = system_references(backend)
    records = node_records(backend)
    while True:
        now = clock.now_ms()
        last = references.read(CLOCK, ClockRecord)
        seen = [now, id_time_ms(highest_id)]
        for held in records.values():
            seen.append(held.end_ms if held.released else max(held.start_ms, held.end_ms - LEASE_MS))
        seen += [last.value.time_ms, last.value.floor_ms] if last else []
        floor = max(seen) + LEASE_MS + APART_MS
        record = last.value if last else ClockRecord(now, process_name(), trusted_ms=now)
        noted = msgspec.structs.replace(
            record, time_ms=max(now, record.time_ms), holder=process_name(), floor_ms=floor
        )
        new = references.row(noted)
        if references.put(CLOCK, last.version if last else None, new):
            break
    for node in records:
        name = f"{_NODE}/{node}"
        found = references.read(name, NodeRecord)
        while found is not None:
            ended = msgspec.structs.replace(found.value, end_ms=floor, released=True)
            if references.put(name, found.version, references.row(ended)):
                break
            found = references.read(name, NodeRecord)
    return floor
