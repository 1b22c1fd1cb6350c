"""Repair of a store after a process whose clock was far ahead has written to it (`polaris-spark fsck --repair`).

Rows and commits keep the ids and times that the process gave them. The repair writes two times to the store's clock
record. One is this machine's time: the store then accepts processes with correct clocks again. The other is the highest
time found in the store: checks then accept ids and times up to this time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from polaris_spark.backends.base import Backend
from polaris_spark.clock import AHEAD_MS, Clock
from polaris_spark.errors import CorruptionError
from polaris_spark.ids import id_time_ms
from polaris_spark.store.references import ReferenceStore
from polaris_spark.system.clocks import APART_MS, CLOCK, ClockRecord, StoreClock
from polaris_spark.system.leases import LEASE_MS, end_lease, node_records
from polaris_spark.system.realms import Realms
from polaris_spark.system.reference_reader import head_in_row
from polaris_spark.system.stores import system_references


class Repaired(NamedTuple):
    """The result of a repair. Times are in milliseconds since 1970."""

    now_ms: int
    """This machine's time, which the repair wrote to the store's clock record, in milliseconds since 1970."""
    ahead_ms: int | None
    """Time in milliseconds since 1970. Checks accept ids and times in the future up to this time. None if the store
    contains no time in the future."""
    leases: int
    """Number of node leases that the repair ended, because they would have lasted far into the future."""


def repair(backend: Backend, clock: Clock) -> Repaired:
    """Set the time in a store's clock record to this machine's time, and end leases that last far into the future.

    Call this after a process whose clock was far ahead has written to the store. Before the call, make sure that this
    machine's clock is correct. Other processes may keep running. The repair can be repeated.

    Raises:
        ClockError: this machine's clock differs from the database's.
    """
    store_clock = StoreClock(backend, clock)
    store_clock.compare_with_database()
    now = clock.now_ms()
    ordinary = now + LEASE_MS + APART_MS
    ahead = max((ms for ms in _times(backend, clock) if ms > ordinary), default=None)
    noted = store_clock.repair(ahead or 0)
    ended = 0
    for node, record in node_records(backend).items():
        if not record.released and record.end_ms > noted + AHEAD_MS:
            ended += end_lease(backend, node, record)
    return Repaired(noted, ahead, ended)


def _times(backend: Backend, clock: Clock) -> Iterator[int]:
    """Yield the times in a store's clock record, in its lease records and in the newest commit of every reference.

    Times are in milliseconds since 1970.
    """
    found = system_references(backend).read(CLOCK, ClockRecord)
    if found is not None:
        yield from (found.value.time_ms, found.value.floor_ms)
    for record in node_records(backend).values():
        yield record.end_ms
    for realm in Realms(backend, clock).records():
        for name in ReferenceStore(backend, realm.instance).names():
            try:
                head = head_in_row(backend, realm.instance, name)
            except CorruptionError:  # the check reports it
                continue
            if head is not None:
                yield from (head.time, id_time_ms(max(0, head.commit)), id_time_ms(max(0, head.fence)))
