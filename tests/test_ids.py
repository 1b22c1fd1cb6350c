"""Ids are unique, ascending, and within the lease under which they were generated."""

from __future__ import annotations

import os
import threading
import time
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polaris_spark import ids as ids_module
from polaris_spark.clock import AHEAD_MS, EPOCH_MS, FAR_MS, ManualClock
from polaris_spark.errors import ClockError, InputError, TryAgainError
from polaris_spark.ids import (
    MAX_ID,
    NODES,
    RENEW_MARGIN_MS,
    SEQUENCE,
    IdGenerator,
    IdParts,
    Lease,
    id_time_ms,
    pack,
    unpack,
)
from polaris_spark.testing.processes import exit_status

HOUR = 3_600_000


class Leases:
    """A lease source that returns one node after the other, an hour each, and that can be made to fail or refuse."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.given: list[Lease] = []
        self.renewed = 0
        self.released: list[tuple[Lease, int]] = []
        self.failing = False
        self.taken_over = False

    def acquire(self, after_ms: int) -> Lease:
        self._fail()
        start = max(self.clock.now_ms(), after_ms + 1)
        lease = Lease(len(self.given), start, start + HOUR)
        self.given.append(lease)
        return lease

    def renew(self, lease: Lease) -> Lease | None:
        self._fail()
        if self.taken_over:
            return None
        self.renewed += 1
        return lease._replace(end_ms=self.clock.now_ms() + HOUR)

    def release(self, lease: Lease, last_id: int) -> None:
        self.released.append((lease, last_id))

    def confirm(self, now_ms: int, expected_ms: int) -> None:
        raise ClockError("it jumped")

    def _fail(self) -> None:
        if self.failing:
            raise TryAgainError("the database is away")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def leases(clock: ManualClock) -> Leases:
    return Leases(clock)


@pytest.fixture
def ids(leases: Leases, clock: ManualClock) -> IdGenerator:
    return IdGenerator(leases, clock)


@given(st.integers(EPOCH_MS, EPOCH_MS + 2**41 - 1), st.integers(0, NODES - 1), st.integers(0, SEQUENCE - 1))
def test_an_id_says_its_parts(ms: int, node: int, sequence: int) -> None:
    parts = IdParts(ms, node, sequence)
    assert 0 <= pack(parts) <= MAX_ID
    assert unpack(pack(parts)) == parts
    assert id_time_ms(pack(parts)) == ms


@pytest.mark.parametrize(
    "parts",
    [
        (EPOCH_MS - 1, 0, 0),
        (EPOCH_MS + 2**41, 0, 0),
        (EPOCH_MS, NODES, 0),
        (EPOCH_MS, 0, SEQUENCE),
        (EPOCH_MS, -1, 0),
    ],
)
def test_parts_out_of_range_make_no_id(parts: tuple[int, int, int]) -> None:
    with pytest.raises(InputError):
        pack(IdParts(*parts))


def test_no_lease_is_taken_before_the_first_id(ids: IdGenerator, leases: Leases) -> None:
    ids.observe(pack(IdParts(EPOCH_MS + 5, 1, 1)))
    assert leases.given == []
    ids.next_id()
    assert len(leases.given) == 1


def test_ids_carry_the_time_and_the_leased_node(ids: IdGenerator, leases: Leases, clock: ManualClock) -> None:
    ids.next_id()
    clock.advance(1_000)
    assert unpack(ids.next_id()) == IdParts(clock.now_ms(), leases.given[0].node, 0)
    assert unpack(ids.next_id()) == IdParts(clock.now_ms(), leases.given[0].node, 1)


def test_more_ids_than_a_millisecond_has_borrow_the_following_ones(
    ids: IdGenerator, clock: ManualClock
) -> None:
    made = ids.next_ids(3 * SEQUENCE + 1)
    assert len(set(made)) == len(made)
    assert made == sorted(made)
    assert id_time_ms(made[-1]) == id_time_ms(made[0]) + 3
    assert ids.next_id() > made[-1]


def test_batches_and_single_ids_ascend_together(ids: IdGenerator, clock: ManualClock) -> None:
    made = []
    for n in (1, 5_000, 1, 1, 4_095, 1, 8_192, 1):
        made += ids.next_ids(n) if n > 1 else [ids.next_id()]
        clock.advance(0.5)
    assert made == sorted(set(made))
    assert ids.next_ids(0) == []


def test_a_clock_that_goes_backwards_repeats_no_id(ids: IdGenerator, clock: ManualClock) -> None:
    first = ids.next_ids(100)
    clock.set_wall(clock.now_ms() - 10 * HOUR)
    second = ids.next_ids(5_000)
    assert second[0] > first[-1]
    assert second == sorted(set(second))


@pytest.mark.parametrize("ahead", [FAR_MS + 1, HOUR, 400 * 24 * HOUR])
def test_no_id_is_made_by_a_clock_that_jumped_ahead_until_it_is_right_again(
    ids: IdGenerator, leases: Leases, clock: ManualClock, ahead: int
) -> None:
    first = ids.next_id()
    right = clock.now_ms()
    clock.set_wall(right + ahead)
    for make in (ids.next_id, lambda: ids.next_ids(10), lambda: ids.next_blocks(3), ids.now_ms):
        with pytest.raises(ClockError):
            make()
    clock.set_wall(right)
    clock.advance(1)
    assert id_time_ms(ids.next_id()) == id_time_ms(first) + 1
    assert len(leases.given) == 1


def test_a_clock_that_jumped_ahead_makes_ids_once_it_is_confirmed(
    ids: IdGenerator, leases: Leases, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids.next_id()
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(leases, "confirm", lambda now, expected: asked.append((now, expected)))
    right = clock.now_ms()
    clock.set_wall(right + 10 * HOUR)
    for _ in range(3):
        assert id_time_ms(ids.next_id()) == right + 10 * HOUR
    assert asked == [(right + 10 * HOUR, right)]


def test_time_that_passes_on_both_clocks_is_not_a_jump(ids: IdGenerator, clock: ManualClock) -> None:
    ids.next_id()
    for hours in (1, 10, 10_000):
        clock.advance(hours * HOUR)
        assert id_time_ms(ids.next_id()) == clock.now_ms()


def test_a_head_far_ahead_moves_no_ids_and_a_fence_far_ahead_does(
    ids: IdGenerator, clock: ManualClock
) -> None:
    far = pack(IdParts(clock.now_ms() + AHEAD_MS + 1, 3, 0))
    near = pack(IdParts(clock.now_ms() + AHEAD_MS - HOUR, 3, 0))
    ids.observe_head(far, 0)
    assert id_time_ms(ids.next_id()) == clock.now_ms()
    ids.observe_head(near, 0)
    assert ids.next_id() > near
    ids.observe_head(near, far)
    assert ids.next_id() > far


def test_after_a_clock_was_refused_while_it_leased_ids_lie_in_the_lease(
    ids: IdGenerator, leases: Leases, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire, right = leases.acquire, clock.now_ms()

    def jumps(after_ms: int) -> Lease:
        clock.set_wall(right + HOUR // 2)
        taken = acquire(after_ms)
        clock.set_wall(right + 2 * HOUR)
        return taken

    monkeypatch.setattr(leases, "acquire", jumps)
    with pytest.raises(ClockError):
        ids.next_id()
    clock.set_wall(right)
    made = id_time_ms(ids.next_id())
    assert leases.given[-1].start_ms <= made < leases.given[-1].end_ms


def test_no_id_is_below_one_that_was_observed(ids: IdGenerator, clock: ManualClock) -> None:
    ids.next_id()
    for ahead in (-1_000, 0, 1, 60_000):
        observed = pack(IdParts(clock.now_ms() + ahead, NODES - 1, SEQUENCE - 1))
        ids.observe(observed)
        made = ids.next_id()
        if ahead >= 0:
            assert made > observed
    with pytest.raises(InputError):
        ids.observe(-1)


def test_an_observed_id_beyond_the_lease_needs_a_lease_beyond_it(
    ids: IdGenerator, leases: Leases, clock: ManualClock
) -> None:
    ids.next_id()
    observed = pack(IdParts(clock.now_ms() + 5 * HOUR, 7, 7))
    ids.observe(observed)
    made = ids.next_id()
    assert made > observed
    lease = leases.given[-1]
    assert lease.start_ms <= id_time_ms(made) < lease.end_ms


def test_the_lease_is_renewed_in_good_time(ids: IdGenerator, leases: Leases, clock: ManualClock) -> None:
    ids.next_id()
    clock.advance(HOUR - RENEW_MARGIN_MS - 10)
    ids.next_id()
    assert leases.renewed == 0
    clock.advance(20)
    ids.next_id()
    assert leases.renewed == 1
    assert len(leases.given) == 1


def test_while_renewal_fails_ids_are_made_to_the_end_of_the_lease_and_no_further(
    ids: IdGenerator, leases: Leases, clock: ManualClock
) -> None:
    ids.next_id()
    end = leases.given[0].end_ms
    leases.failing = True
    while clock.now_ms() < end:
        assert id_time_ms(ids.next_id()) < end
        clock.advance(10_000)
    with pytest.raises(TryAgainError):
        ids.next_id()
    leases.failing = False
    assert id_time_ms(ids.next_id()) >= end


def test_a_lease_taken_over_is_used_to_its_end_and_then_replaced(
    ids: IdGenerator, leases: Leases, clock: ManualClock
) -> None:
    ids.next_id()
    leases.taken_over = True
    made = []
    for _ in range(80):
        made.append(ids.next_id())
        clock.advance(60_000)
    assert made == sorted(set(made))
    for id in made:
        (lease,) = [given for given in leases.given if given.node == unpack(id).node]
        assert lease.start_ms <= id_time_ms(id) < lease.end_ms
    assert len(leases.given) == 2


def test_a_batch_longer_than_the_rest_of_a_lease_continues_under_the_next_lease(
    ids: IdGenerator, leases: Leases, clock: ManualClock
) -> None:
    ids.next_id()
    leases.failing = True
    clock.advance(HOUR - 3)
    ids.next_id()
    leases.failing, leases.taken_over = False, True
    clock.advance(6_000 - HOUR)
    ids.observe(pack(IdParts(leases.given[0].end_ms - 2, 0, 0)))
    made = ids.next_ids(4 * SEQUENCE)
    assert made == sorted(set(made))
    assert {unpack(id).node for id in made} == {0, 1}
    assert all(id_time_ms(id) < leases.given[0].end_ms for id in made if unpack(id).node == 0)


def test_a_released_lease_is_given_back_with_the_last_id(ids: IdGenerator, leases: Leases) -> None:
    ids.release()
    assert leases.released == []
    made = ids.next_ids(10)
    ids.release()
    assert leases.released == [(leases.given[0], made[-1])]
    assert ids.next_id() > made[-1]
    assert len(leases.given) == 2


def test_a_process_ends_soon_though_its_databases_are_gone(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(Leases):
        def release(self, lease: Lease, last_id: int) -> None:
            nonlocal now
            now += 3
            tried.append(lease)
            raise TryAgainError("cannot be reached")

    now, tried = 0.0, list[Lease]()
    monkeypatch.setattr(ids_module, "_exiting_since", [])
    monkeypatch.setattr(time, "monotonic", lambda: now)
    generators = [IdGenerator(Gone(clock), clock) for _ in range(10)]
    for generator in generators:
        generator.next_id()
        ids_module._release_at_exit(weakref.ref(generator), os.getpid())
    assert len(tried) == 2


def test_threads_never_make_the_same_id(ids: IdGenerator) -> None:
    made: list[list[int]] = []

    def make() -> None:
        mine = []
        for n in range(300):
            mine += ids.next_ids(50) if n % 3 == 0 else [ids.next_id()]
        made.append(mine)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [id for mine in made for id in mine]
    assert len(set(everything)) == len(everything) == 4 * (100 * 50 + 200)
    assert all(mine == sorted(mine) for mine in made)


def test_a_forked_child_takes_a_lease_of_its_own(ids: IdGenerator, leases: Leases) -> None:
    before = ids.next_ids(10)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        made = ids.next_ids(10)
        own_lease = len(leases.given) == 2 and {unpack(id).node for id in made} == {leases.given[1].node}
        os.write(writer, b"1" if own_lease and made[0] > before[-1] else b"0")
        os._exit(0)
    assert exit_status(child) == 0
    assert os.read(reader, 1) == b"1"
    ids.next_id()
    assert len(leases.given) == 1


def test_a_forked_child_does_not_wait_for_a_lock_held_in_its_parent(ids: IdGenerator) -> None:
    ids.next_id()
    with ids._lock:  # as another thread of the parent would hold it
        child = os.fork()
        if child == 0:
            ids.next_id()
            os._exit(0)
    assert exit_status(child) == 0
