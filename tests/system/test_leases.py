"""Node leases: two processes never hold one node for the same milliseconds, whatever their clocks show."""

from __future__ import annotations

from itertools import count

import pytest

from polaris_spark.backends.base import ReferenceRow
from polaris_spark.backends.memory import MemoryBackend
from polaris_spark.clock import ManualClock
from polaris_spark.errors import ClockError, TryAgainError
from polaris_spark.ids import IdGenerator, IdParts, pack
from polaris_spark.system.clocks import APART_MS, BEHIND_MS, StoreClock
from polaris_spark.system.leases import LEASE_MS, NodeLeases, start_over
from polaris_spark.system.stores import SYSTEM_REALM

_numbers = count()
YEAR = 365 * 24 * LEASE_MS


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend(f"leases-{next(_numbers)}")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_lease_begins_now_and_lasts_an_hour(backend: MemoryBackend, clock: ManualClock) -> None:
    lease = NodeLeases(backend, clock).acquire(0)
    assert (lease.start_ms, lease.end_ms) == (clock.now_ms(), clock.now_ms() + LEASE_MS)


def test_a_lease_begins_after_the_millisecond_asked_for(backend: MemoryBackend, clock: ManualClock) -> None:
    after = clock.now_ms() + 5_000
    assert NodeLeases(backend, clock).acquire(after).start_ms == after + 1


def test_holders_at_the_same_time_have_different_nodes(backend: MemoryBackend, clock: ManualClock) -> None:
    leases = [NodeLeases(backend, clock, nodes=20).acquire(0) for _ in range(20)]
    assert {lease.node for lease in leases} == set(range(20))


def test_when_every_node_is_leased_the_error_says_until_when(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    for _ in range(2):
        NodeLeases(backend, clock, nodes=2).acquire(0)
    with pytest.raises(TryAgainError, match=r"all 2 node numbers are leased.*2025-03-02T01:00:00"):
        NodeLeases(backend, clock, nodes=2).acquire(0)


def test_a_lease_that_ran_out_is_taken_from_its_end_on(backend: MemoryBackend, clock: ManualClock) -> None:
    first = NodeLeases(backend, clock, nodes=1).acquire(0)
    clock.advance(LEASE_MS)
    second = NodeLeases(backend, clock, nodes=1).acquire(0)
    assert second.start_ms >= first.end_ms


def test_the_next_holder_starts_after_the_end_of_the_last_despite_its_clock(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    ahead = ManualClock(clock.now_ms() + 50_000)
    first = NodeLeases(backend, ahead, nodes=1)
    lease = first.acquire(0)
    last_id = pack(IdParts(lease.start_ms + 70_000, lease.node, 9))
    first.release(lease, last_id)
    assert NodeLeases(backend, clock, nodes=1).acquire(0).start_ms == lease.start_ms + 70_001


def test_a_lease_released_unused_begins_again_where_it_began(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    leases = NodeLeases(backend, clock, nodes=1)
    first = leases.acquire(clock.now_ms() + 1_000)
    leases.release(first, 0)
    assert leases.acquire(0).start_ms == first.start_ms


def test_a_renewal_moves_the_end_and_keeps_the_start(backend: MemoryBackend, clock: ManualClock) -> None:
    leases = NodeLeases(backend, clock, nodes=1)
    first = leases.acquire(0)
    clock.advance(LEASE_MS // 2)
    renewed = leases.renew(first)
    assert renewed is not None
    assert (renewed.node, renewed.start_ms) == (first.node, first.start_ms)
    assert renewed.end_ms == clock.now_ms() + LEASE_MS


def test_a_renewal_with_the_clock_set_back_does_not_shorten_a_lease(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    leases = NodeLeases(backend, clock, nodes=1)
    first = leases.acquire(0)
    clock.set_wall(clock.now_ms() - BEHIND_MS)
    renewed = leases.renew(first)
    assert renewed is not None
    assert renewed.end_ms == first.end_ms


def test_a_lease_taken_over_can_be_neither_renewed_nor_released(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    slow = NodeLeases(backend, clock, nodes=1)
    first = slow.acquire(0)
    clock.advance(LEASE_MS)
    second = NodeLeases(backend, clock, nodes=1).acquire(0)
    assert slow.renew(first) is None
    slow.release(first, 0)
    renewed = NodeLeases(backend, clock, nodes=1).renew(second)
    assert renewed is not None


def test_an_expired_lease_that_is_still_free_can_be_renewed(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    leases = NodeLeases(backend, clock, nodes=1)
    first = leases.acquire(0)
    clock.advance(3 * LEASE_MS)
    renewed = leases.renew(first)
    assert renewed is not None
    assert renewed.end_ms == clock.now_ms() + LEASE_MS


def test_a_clock_more_than_a_minute_behind_may_not_lease_or_renew(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    NodeLeases(backend, clock).acquire(0)
    behind = NodeLeases(backend, ManualClock(clock.now_ms() - BEHIND_MS - 1))
    with pytest.raises(ClockError, match=r"correct this machine's clock.*fsck --repair"):
        behind.acquire(0)
    a_little = NodeLeases(backend, ManualClock(clock.now_ms() - BEHIND_MS))
    lease = a_little.acquire(0)
    clock.advance(10 * BEHIND_MS)
    NodeLeases(backend, clock).acquire(0)
    with pytest.raises(ClockError):
        a_little.renew(lease)


def test_a_process_that_sleeps_while_it_reads_the_last_lease_does_not_get_an_old_span(
    clock: ManualClock,
) -> None:
    class Sleepy(MemoryBackend):
        """Sleeps before its first read, while another process takes a lease."""

        def read_reference(self, realm: str, name: str) -> ReferenceRow | None:
            if clock.now_ms() == begun:
                clock.advance(2 * BEHIND_MS)
                NodeLeases(other, clock).acquire(0)
            return super().read_reference(realm, name)

    name, begun = f"leases-{next(_numbers)}", clock.now_ms()
    other = MemoryBackend(name)
    assert NodeLeases(Sleepy(name), clock).acquire(0).start_ms == begun + 2 * BEHIND_MS


def test_a_right_clock_leases_despite_a_lease_by_a_clock_far_ahead(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    NodeLeases(backend, clock).acquire(0)
    clock.advance(1_000)
    NodeLeases(backend, ManualClock(clock.now_ms() + YEAR)).acquire(0)
    assert NodeLeases(backend, clock).acquire(0).start_ms == clock.now_ms()


def test_a_single_node_leased_by_a_clock_far_ahead_is_leased_again_after_its_span(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    NodeLeases(backend, clock, nodes=1).acquire(0)
    clock.advance(LEASE_MS)
    ahead = NodeLeases(backend, ManualClock(clock.now_ms() + YEAR), nodes=1).acquire(0)
    assert NodeLeases(backend, clock, nodes=1).acquire(0).start_ms >= ahead.end_ms


def test_a_store_created_by_a_clock_far_ahead_accepts_right_clocks_after_a_repair(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    wrong = IdGenerator(NodeLeases(backend, ManualClock(clock.now_ms() + YEAR), nodes=1))
    from_future = wrong.next_id()
    wrong.release()
    with pytest.raises(ClockError, match=r"fsck --repair"):
        NodeLeases(backend, clock, nodes=1).acquire(0)
    StoreClock(backend, clock).repair()
    assert IdGenerator(NodeLeases(backend, clock, nodes=1), clock).next_id() > from_future


def test_after_starting_over_a_lease_whose_record_came_back_cannot_be_renewed(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    leases = NodeLeases(backend, clock, nodes=1)
    first = leases.acquire(0)
    came_back = dict(backend._tables.references[SYSTEM_REALM])
    clock.advance(LEASE_MS)
    second = leases.acquire(0)
    backend._tables.references[SYSTEM_REALM].update(came_back)
    floor = start_over(backend, clock, 0)
    assert floor >= second.end_ms
    assert leases.renew(first) is None
    assert leases.renew(second) is None
    assert leases.acquire(0).start_ms == floor


def test_starting_over_reaches_beyond_what_is_left_of_ids_and_leases(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    ahead = clock.now_ms() + 5 * LEASE_MS
    assert start_over(backend, clock, pack(IdParts(ahead, 0, 0))) == ahead + LEASE_MS + APART_MS
    lease = NodeLeases(backend, clock, nodes=2).acquire(0)
    assert lease.start_ms == ahead + LEASE_MS + APART_MS
    del backend._tables.references[SYSTEM_REALM]["clock"]
    assert start_over(backend, clock, 0) > lease.end_ms
    StoreClock(backend, clock).repair()
    assert NodeLeases(backend, clock, nodes=2).acquire(0).start_ms > lease.end_ms


def test_starting_over_counts_a_lease_that_was_renewed_from_its_renewal(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    ahead = ManualClock(clock.now_ms() + 5 * LEASE_MS)
    leases = NodeLeases(backend, ahead, nodes=2)
    lease = leases.acquire(0)
    for _ in range(9):
        ahead.advance(LEASE_MS // 2)
        renewed = leases.renew(lease)
        assert renewed is not None
        lease = renewed
    del backend._tables.references[SYSTEM_REALM][
        "clock"
    ]  # the record that the holder's clock was ahead is lost
    assert start_over(backend, clock, 0) >= lease.end_ms
