"""Clock checks of a store: which clocks it refuses, which processes continue after a clock was ahead, and which may
delete."""

from __future__ import annotations

from itertools import count

import pytest

from polaris_spark.backends.memory import MemoryBackend
from polaris_spark.clock import EPOCH_MS, FAR_MS, Clock, ManualClock
from polaris_spark.errors import ClockError
from polaris_spark.ids import IdGenerator, id_time_ms
from polaris_spark.system.clocks import BEHIND_MS, CLOCK, TRUST_MS, ClockRecord, StoreClock
from polaris_spark.system.leases import LEASE_MS, NodeLeases, node_records
from polaris_spark.system.stores import SYSTEM_REALM, system_references

DAY = 24 * 3_600_000
YEAR = 365 * DAY

_numbers = count()


class Clocked(MemoryBackend):
    """A database with a clock of its own."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(f"clocks-{next(_numbers)}")
        self.clock = clock

    def now_ms(self) -> int:
        return self.clock.now_ms()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(EPOCH_MS + 100 * DAY)


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend(f"clocks-{next(_numbers)}")


def store_clock(backend: MemoryBackend, clock: Clock, off: int = 0, name: str = "") -> StoreClock:
    """The `StoreClock` of a process whose clock is wrong by `off` milliseconds."""
    return StoreClock(backend, ManualClock(clock.now_ms() + off), name or f"process{next(_numbers)}")


def record(backend: MemoryBackend) -> ClockRecord:
    found = system_references(backend).read(CLOCK, ClockRecord)
    assert found is not None
    return found.value


# The database's clock


@pytest.mark.parametrize("off", [FAR_MS + 1, -FAR_MS - 1, YEAR, -YEAR, 10 * YEAR])
def test_a_clock_far_from_the_databases_may_not_lease_and_leaves_nothing(
    clock: ManualClock, off: int
) -> None:
    backend = Clocked(clock)
    wrong = ManualClock(clock.now_ms() + off)
    with pytest.raises(ClockError) as raised:
        NodeLeases(backend, wrong).acquire(0)
    told = str(raised.value)
    assert "the database's clock (2025-06-09T00:00:00.000Z)" in told
    assert ("ahead of" if off > 0 else "behind") in told
    assert "correct this machine's clock" in told
    assert backend._tables.references.get(SYSTEM_REALM, {}) == {}


@pytest.mark.parametrize("off", [FAR_MS, -FAR_MS, 0])
def test_clocks_near_the_databases_lease_in_any_order(clock: ManualClock, off: int) -> None:
    backend = Clocked(clock)
    for one in (FAR_MS, off, -FAR_MS, off):
        NodeLeases(backend, ManualClock(clock.now_ms() + one)).acquire(0)
    assert len(node_records(backend)) == 4


def test_a_clock_that_agrees_with_the_databases_clock_is_accepted_despite_the_record(
    clock: ManualClock,
) -> None:
    backend = Clocked(clock)
    backend.clock = ManualClock(clock.now_ms() + YEAR)
    store_clock(backend, clock, YEAR).note()
    backend.clock = clock
    assert store_clock(backend, clock).note()[0] == clock.now_ms()
    assert record(backend).time_ms == clock.now_ms()


def test_a_process_that_stalls_while_it_reads_the_databases_clock_is_not_refused(
    clock: ManualClock,
) -> None:
    class Slow(Clocked):
        def now_ms(self) -> int:
            clock.advance(3 * FAR_MS)
            said = clock.now_ms()
            clock.advance(3 * FAR_MS)
            return said

    assert StoreClock(Slow(clock), clock).note()[0] == clock.now_ms()


# What was noted


@pytest.mark.parametrize("ahead", [FAR_MS + 60_000, DAY, 400 * DAY, 10 * YEAR])
def test_right_clocks_go_on_beside_one_that_is_ahead_and_renews(
    backend: MemoryBackend, clock: ManualClock, ahead: int
) -> None:
    store_clock(backend, clock).note()
    wrong = ManualClock(clock.now_ms() + ahead)
    for _ in range(30):
        StoreClock(backend, wrong, "ahead").note()
        wrong.advance(LEASE_MS * 3 // 4)
        clock.advance(1_000)
        assert store_clock(backend, clock).note()[0] == clock.now_ms()
        assert record(backend).time_ms == clock.now_ms()


def test_right_clocks_go_on_after_many_clocks_that_were_ever_further_ahead(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    store_clock(backend, clock).note()
    for number in range(1, 30):
        clock.advance(1_000)
        store_clock(backend, clock, number * 10 * DAY).note()
    assert store_clock(backend, clock).note()[0] == clock.now_ms()


def test_a_clock_behind_times_noted_without_a_gap_is_refused(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    for _ in range(200):
        clock.advance(FAR_MS)
        store_clock(backend, clock).note()
    for behind in (BEHIND_MS + 1, 3 * FAR_MS, LEASE_MS, 100 * FAR_MS, YEAR):
        with pytest.raises(
            ClockError, match=r"behind the time that process\d+ noted in this store.*--repair"
        ):
            store_clock(backend, clock, -behind).note()


def test_a_store_that_was_idle_for_ten_years_opens(backend: MemoryBackend, clock: ManualClock) -> None:
    store_clock(backend, clock).note()
    clock.advance(10 * YEAR)
    assert IdGenerator(NodeLeases(backend, clock), clock).next_id() > 0


# Ids after a clock that was ahead


def test_right_clocks_do_not_lease_nodes_whose_spans_lie_far_ahead(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    NodeLeases(backend, clock, nodes=8).acquire(0)
    for _ in range(4):
        wrong = ManualClock(clock.now_ms() + YEAR)
        IdGenerator(NodeLeases(backend, wrong, nodes=8), wrong).next_id()  # never released
    clock.advance(1_000)
    for _ in range(3):
        made = IdGenerator(NodeLeases(backend, clock, nodes=8), clock).next_id()
        assert id_time_ms(made) == clock.now_ms()


def test_if_all_nodes_lie_far_ahead_ids_are_made_after_their_spans_and_stay_unique(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    NodeLeases(backend, clock, nodes=2).acquire(0)
    clock.advance(LEASE_MS)
    wrong = ManualClock(clock.now_ms() + YEAR)
    ahead = [IdGenerator(NodeLeases(backend, wrong, nodes=2), wrong).next_ids(10) for _ in range(2)]
    mine = IdGenerator(NodeLeases(backend, clock, nodes=2), clock).next_ids(10)
    assert len({*mine, *ahead[0], *ahead[1]}) == 30


# Who may delete


def test_jobs_may_delete_if_the_time_was_noted_a_week_ago(backend: MemoryBackend, clock: ManualClock) -> None:
    for _ in range(20):
        store_clock(backend, clock).refuse_deleting()
        store_clock(backend, clock).note()
        clock.advance(7 * DAY)


@pytest.mark.parametrize("ahead", [TRUST_MS + 1, 40 * DAY, 10 * YEAR])
def test_a_clock_far_ahead_of_the_newest_trusted_time_may_not_delete(
    backend: MemoryBackend, clock: ManualClock, ahead: int
) -> None:
    store_clock(backend, clock).note()
    wrong = store_clock(backend, clock, ahead)
    for _ in range(3):
        with pytest.raises(ClockError, match=r"2025-06-09T00:00:00\.000Z.*--clock-is-right"):
            wrong.refuse_deleting()
        wrong.note()  # times noted by itself, or by others with the same clock, do not make it trusted
        store_clock(backend, clock, ahead + 1_000).note()


def test_jobs_delete_again_after_the_operator_confirms_the_clock(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    store_clock(backend, clock).note()
    clock.advance(YEAR)
    store_clock(backend, clock).refuse_deleting(clock_is_right=True)
    clock.advance(DAY)
    store_clock(backend, clock).refuse_deleting()
    store_clock(backend, clock).note()
    store_clock(backend, clock).refuse_deleting()


def test_a_process_that_measured_a_long_idle_time_itself_trusts_it(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    mine = StoreClock(backend, clock)
    mine.note()
    clock.advance(YEAR)
    mine.refuse_deleting()
    mine.note()
    assert mine.trusts(clock.now_ms())
    store_clock(backend, clock).refuse_deleting()
    clock.set_wall(clock.now_ms() + YEAR)
    with pytest.raises(ClockError):
        mine.refuse_deleting()


def test_jobs_with_right_clocks_delete_after_a_clock_was_ahead(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    store_clock(backend, clock).note()
    store_clock(backend, clock, YEAR).note()
    clock.advance(1_000)
    store_clock(backend, clock).refuse_deleting()
    store_clock(backend, clock).note()
    store_clock(backend, clock).refuse_deleting()


def test_the_databases_clock_decides_whether_jobs_of_an_idle_store_may_delete(clock: ManualClock) -> None:
    backend = Clocked(clock)
    store_clock(backend, clock).note()
    clock.advance(YEAR)
    store_clock(backend, clock).refuse_deleting()
    with pytest.raises(ClockError, match="the database's clock"):
        store_clock(backend, clock, 40 * DAY).refuse_deleting(clock_is_right=True)


# Repair


def test_a_repair_keeps_the_floor_and_accepts_times_in_the_future(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    store_clock(backend, clock, YEAR).note()
    with pytest.raises(ClockError):
        store_clock(backend, clock).note()
    store_clock(backend, clock).repair(clock.now_ms() + YEAR)
    found = record(backend)
    assert (found.time_ms, found.trusted_ms) == (clock.now_ms(), clock.now_ms())
    assert found.ahead_ms == clock.now_ms() + YEAR
    store_clock(backend, clock).note()
    store_clock(backend, clock).refuse_deleting()


def test_a_repair_by_a_clock_that_the_database_contradicts_changes_nothing(clock: ManualClock) -> None:
    backend = Clocked(clock)
    store_clock(backend, clock).note()
    before = record(backend)
    with pytest.raises(ClockError):
        store_clock(backend, clock, YEAR).repair()
    assert record(backend) == before
