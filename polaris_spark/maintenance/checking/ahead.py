"""Repair of a store that a process with a clock far ahead has used (`polaris-spark fsck --repair`).

Rows and commits keep the ids and times that the process gave them. The repair writes two times to the store's clock
record: this machine's time, so that correct clocks are accepted, and the highest time found in the store, so that
checks accept ids and times up to this time.
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
    """This machine's time, which is now the store's noted time."""
    ahead_ms: int | None
    """Ids and times in the future are accepted up to this time; None if the store contains no time in the future."""
    leases: int
    """Number of leases that were ended, because they reached far into the future."""


def repair(backend: Backend, clock: Clock) -> Repaired:
    """Set a store's noted time to this machine's clock, after a process with a clock far ahead has used the store.

    Before the call, make sure that this machine's clock is correct. Running processes can continue. The repair can be
    repeated.

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
    """Yield the times in the clock record, the lease records and all heads of a store, in milliseconds since 1970."""
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
