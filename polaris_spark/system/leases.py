"""Leases of node numbers, by compare-and-swap on `node/<n>` in the system realm.

A record is never deleted: a lease that is given back says how far its holder came, and a new holder starts
after that, or after the whole span of a lease that ran out. So spans of one node never overlap, whatever
anybody's clock says. The reference `clock` keeps the time of the last lease or renewal, so that a machine
whose clock is far behind is noticed, and the millisecond before which no lease may begin any more (`start_over`).
"""

from __future__ import annotations

import datetime
import os
import random
import socket
from collections.abc import Iterator
from typing import Final

import msgspec

from polaris_spark.backends.base import Backend
from polaris_spark.clock import EPOCH_MS, Clock
from polaris_spark.errors import ClockError, TryAgainError
from polaris_spark.ids import NODES, Lease, id_time_ms
from polaris_spark.store.references import Versioned
from polaris_spark.system.stores import SYSTEM_REALM, system_references

LEASE_MS: Final = 60 * 60_000
"""How long a lease or a renewal lasts, milliseconds."""

BEHIND_MS: Final = 60_000
"""A clock further than this behind the last lease refuses to lease, milliseconds."""

CLOCK: Final = "clock"
_NODE: Final = "node"
_PROBES = 16


class NodeRecord(msgspec.Struct, frozen=True):
    """Who makes ids of a node: in milliseconds from `start_ms` up to, not including, `end_ms`."""

    holder: str
    start_ms: int
    end_ms: int
    released: bool = False
    """Whether it was given back; `end_ms` is then the first millisecond that was not used."""


class ClockRecord(msgspec.Struct, frozen=True):
    """When a lease was last taken or renewed, milliseconds since 1970, and by whom."""

    time_ms: int
    holder: str
    floor_ms: int = 0
    """No lease begins earlier."""


class NodeLeases:
    """Leases of one store: the lease source of `IdGenerator`. Thread-safe."""

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
            clock: this machine's.
            nodes: how many node numbers to use, at most `ids.NODES`; every process of a store uses the same.
            seed: of the choice of nodes, for tests.
            holder: who leases, for others to read; this host and process unless given.
        """
        self._holder = holder
        self._nodes = nodes
        self._references = system_references(backend)
        self._clock = clock
        self._seed = seed

    def acquire(self, after_ms: int) -> Lease:
        """A lease on a free node, all of whose milliseconds are later than `after_ms`.

        Raises:
            ClockError: this machine's clock is behind the store's by more than a minute.
            TryAgainError: every node is leased.
        """
        now, floor = self._noted_now()
        earliest = None
        for node in self._candidates():
            name = f"{_NODE}/{node}"
            found = self._references.read(name, NodeRecord)
            if found is not None and not found.value.released and found.value.end_ms > now:
                earliest = min(found.value.end_ms, earliest or found.value.end_ms)
                continue
            start = max(now, after_ms + 1, floor, EPOCH_MS, found.value.end_ms if found else 0)
            new = self._references.row(NodeRecord(self._name(), start, start + LEASE_MS))
            if self._references.put(name, found.version if found else None, new):
                return Lease(node, start, start + LEASE_MS, new.version)
        until = f" The first of them ends at {_utc(earliest)}." if earliest else ""
        raise TryAgainError(
            f"all {self._nodes} node numbers are leased, so no id can be made here now.{until}"
        )

    def renew(self, lease: Lease) -> Lease | None:
        """The same lease, lasting an hour from now; None if the node has another holder.

        Raises:
            ClockError: as `acquire`.
        """
        now, _ = self._noted_now()
        name = f"{_NODE}/{lease.node}"
        found = self._holding(lease)
        if found is None:
            return None
        end = max(now + LEASE_MS, lease.end_ms)
        new = self._references.row(NodeRecord(self._name(), found.value.start_ms, end))
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

    def _name(self) -> str:
        return self._holder or _holder()

    def _holding(self, lease: Lease) -> Versioned[NodeRecord] | None:
        found = self._references.read(f"{_NODE}/{lease.node}", NodeRecord)
        return found if found is not None and found.version == lease.token else None

    def _candidates(self) -> Iterator[int]:
        """Nodes to try: a few at random, which nearly always suffices, then all of them."""
        choice = random.Random(self._seed)
        yield from choice.sample(range(self._nodes), min(_PROBES, self._nodes))
        first = choice.randrange(self._nodes)
        yield from range(first, self._nodes)
        yield from range(first)

    def refuse_behind(self) -> None:
        """Refuse to go on where this machine's clock is too far behind, for what relies on it without making ids.

        Raises:
            ClockError: as `acquire`.
        """
        found = self._references.read(CLOCK, ClockRecord)
        now = self._clock.now_ms()
        if found is not None and now < found.value.time_ms - BEHIND_MS:
            raise _behind(now, found.value)

    def _noted_now(self) -> tuple[int, int]:
        """The time, having compared it with the last lease's and noted it for the next; and when leases may begin."""
        while True:
            found = self._references.read(CLOCK, ClockRecord)
            now = self._clock.now_ms()  # afterwards: who slept in between is not behind
            floor = 0 if found is None else found.value.floor_ms
            if found is not None and now < found.value.time_ms:
                if now < found.value.time_ms - BEHIND_MS:
                    raise _behind(now, found.value)
                return now, floor
            new = self._references.row(ClockRecord(now, self._name(), floor))
            if self._references.put(CLOCK, found.version if found else None, new):
                return now, floor


def node_records(backend: Backend) -> dict[int, NodeRecord]:
    """Who has, or had, which node."""
    found = {}
    references = system_references(backend)
    for split in backend.splits("references", [SYSTEM_REALM], 1):
        for batch in backend.scan(split):
            for name in batch.column("name").to_pylist():
                kind, _, number = name.partition("/")
                record = references.read(name, NodeRecord) if kind == _NODE else None
                if record is not None:
                    found[int(number)] = record.value
    return found


def start_over(backend: Backend, clock: Clock, highest_id: int) -> int:
    """End every lease, and let the next ones begin where no lease that was ever given reaches, although records of
    leases may have been lost or come back older. Nobody has to wait for that.

    Why no id is made twice afterwards: a lease begins at its taker's time, which is within a minute (`BEHIND_MS`) of
    everybody's, or no lease would have been given; or, if that is later, after an id that its taker had seen or where
    the node's last lease ended; and it lasts an hour beyond its taker's time or beginning (`LEASE_MS`). What is left
    of those ids and beginnings is counted in here; hence whatever lost lease there is ends before the millisecond
    returned, and every new one begins at it or later. A record that is left is given a fresh version, so that its
    holder, or an earlier one whose record came back, cannot renew it. Whoever holds a lost lease may even go on to use
    it.

    The price: for about an hour, ids say that they were made up to so much later than they were. They are compared with
    each other, and with times only where things old enough are looked for, which then are found an hour later.

    Args:
        highest_id: the highest id that is known to be in use.
    Returns:
        the first millisecond since 1970 of new leases.
    """
    references = system_references(backend)
    records = node_records(backend)
    while True:
        now = clock.now_ms()
        last = references.read(CLOCK, ClockRecord)
        seen = [now, id_time_ms(highest_id)]
        seen += [record.end_ms if record.released else record.start_ms for record in records.values()]
        seen += [last.value.time_ms, last.value.floor_ms] if last else []
        floor = max(seen) + LEASE_MS + BEHIND_MS
        new = references.row(ClockRecord(max(now, last.value.time_ms if last else 0), _holder(), floor))
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


def reset_clock(backend: Backend, clock: Clock) -> None:
    """Set the time of the last lease to now: the repair after a machine with a clock far ahead took a lease.

    Ids stay unique without it; what it undoes is the refusal of every right clock. Its caller has made sure
    that this machine's clock is right.
    """
    references = system_references(backend)
    while True:
        found = references.read(CLOCK, ClockRecord)
        if found is None:
            return
        new = references.row(ClockRecord(clock.now_ms(), _holder(), found.value.floor_ms))
        if references.put(CLOCK, found.version, new):
            return


def _behind(now: int, last: ClockRecord) -> ClockError:
    return ClockError(
        f"this machine's clock says {_utc(now)}, {(last.time_ms - now) // 1_000} s before the store's last "
        f"lease (at {_utc(last.time_ms)}, by {last.holder}), so it may not make ids. "
        "Set this machine's clock right; "
        f"if it is right and that of {last.holder} was ahead, repair the store with "
        "polaris_spark.system.leases.reset_clock"
    )


def _holder() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _utc(ms: int) -> str:
    return datetime.datetime.fromtimestamp(ms / 1_000, datetime.timezone.utc).isoformat(timespec="seconds")
