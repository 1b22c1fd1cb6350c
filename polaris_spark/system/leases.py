"""Leases of node numbers, by compare-and-swap on `node/<n>` in the system realm.

A record is never deleted. If a lease is given back, its record names the first millisecond that the holder did not use,
and the next lease of the node begins there or later. If a lease runs out, the next one begins at the end of its span or
later. So spans of one node never overlap, whatever clocks say. If a holder's clock was far ahead, the node's next lease
would begin in the future, so the node is not used until then. The record `clock` decides which clocks may lease
(`system.clocks`), and holds the millisecond before which no lease may begin (`start_over`).
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
    """The holder of a node number. It may make ids with times from `start_ms` up to, but not including, `end_ms`, in
    milliseconds since 1970."""

    holder: str
    start_ms: int
    end_ms: int
    released: bool = False
    """Whether the lease was given back; `end_ms` is then the first millisecond that was not used."""


class NodeLeases:
    """Leases of node numbers in one store: the lease source of `IdGenerator`. Thread-safe."""

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
            nodes: how many node numbers to use, at most `ids.NODES`; the same in every process of a store.
            seed: seed for the choice of nodes, for tests.
            holder: name of the holder in the records; by default this host and process.
        """
        self.store_clock = StoreClock(backend, clock, holder)
        self._nodes = nodes
        self._references = system_references(backend)
        self._seed = seed

    def acquire(self, after_ms: int) -> Lease:
        """Return a lease on a free node that begins after `after_ms` (milliseconds since 1970).

        Raises:
            ClockError: as `StoreClock.note`.
            TryAgainError: every node is leased.
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
        for _, node in sorted(ahead):  # no other node is free; ids in the future are better than none
            found = self._references.read(f"{_NODE}/{node}", NodeRecord)
            if lease := self._taken(node, found, least):
                return lease
        until = f" The first of them ends at {iso_text(earliest)}." if earliest else ""
        raise TryAgainError(
            f"all {self._nodes} node numbers are leased, so no id can be made here now.{until}"
        )

    def _taken(self, node: int, found: Versioned[NodeRecord] | None, least: int) -> Lease | None:
        """Return a lease on `node` that begins at `least` (milliseconds since 1970) or later.

        None if another process changed the record first.
        """
        start = max(least, found.value.end_ms if found else 0)
        new = self._references.row(NodeRecord(self.store_clock.holder, start, start + LEASE_MS))
        if self._references.put(f"{_NODE}/{node}", found.version if found else None, new):
            return Lease(node, start, start + LEASE_MS, new.version)
        return None

    def renew(self, lease: Lease) -> Lease | None:
        """Return the lease, renewed until an hour from now; None if the node has another holder.

        Raises:
            ClockError: as `acquire`.
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
        """Give a lease back, so that the next holder may start after `last_id` (0 if none was made)."""
        found = self._holding(lease)
        if found is not None:
            end = id_time_ms(last_id) + 1 if last_id else found.value.start_ms
            record = NodeRecord(found.value.holder, found.value.start_ms, end, released=True)
            self._references.put(f"{_NODE}/{lease.node}", found.version, self._references.row(record))

    def confirm(self, now_ms: int, expected_ms: int) -> None:
        """Confirm a wall clock that jumped, like `StoreClock.confirm`."""
        self.store_clock.confirm(now_ms, expected_ms)

    def _holding(self, lease: Lease) -> Versioned[NodeRecord] | None:
        found = self._references.read(f"{_NODE}/{lease.node}", NodeRecord)
        return found if found is not None and found.version == lease.token else None

    def _candidates(self) -> Iterator[int]:
        """Yield the nodes to try: a few at random, which is nearly always enough, then all of them."""
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
    """Mark a lease as given back; False if its record has changed. Its holder may use the rest of its span but cannot
    renew the lease. The next lease begins after the span."""
    references = system_references(backend)
    found = references.read(f"{_NODE}/{node}", NodeRecord)
    if found is None or found.value != record:
        return False
    ended = msgspec.structs.replace(record, released=True)
    return references.put(f"{_NODE}/{node}", found.version, references.row(ended))


def start_over(backend: Backend, clock: Clock, highest_id: int) -> int:
    """End every lease, and make new leases begin after the end of every lease that was ever given. Works although
    records of leases may have been lost, or restored to an older state. No process has to wait.

    Why no id is made twice afterwards:

    - A lease begins at the latest of three times: its holder's time, which is within `APART_MS` of all other clocks
      that the store accepts; the time after an id that its holder had seen; the end of the node's previous lease. It
      lasts for `LEASE_MS` from its holder's time, or from its beginning if that is later.
    - The returned time lies `LEASE_MS` and `APART_MS` after all of those ids and times that are still in the store. So
      every lost lease ends before it, and every new lease begins at it or later.
    - Every remaining record gets a fresh version. So its holder, or an earlier holder whose record was restored, cannot
      renew its lease. A process with a lost lease may go on using it.

    If the database has no clock, a holder's clock may have been far ahead. Such a holder is covered if its lease, the
    time that it noted, or a head that it made is still in the store. If all of these were lost and the process still
    runs, end it first, together with every other process that uses the store.

    The cost: for about an hour, new ids carry times that are up to that much too late. Ids are compared with each
    other. They are compared with times only to find old data, which is then found up to an hour later.

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
        seen += [record.end_ms if record.released else record.start_ms for record in records.values()]
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
