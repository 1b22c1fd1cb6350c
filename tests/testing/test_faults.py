"""The wrapper that injects faults: without faults it keeps the contract, and it injects exactly the scheduled
faults."""

from __future__ import annotations

from itertools import count
from random import Random

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, Conflict, ObjectKey, ObjectRow, ReferenceRow, Swapped
from polaris_spark.clock import ManualClock
from polaris_spark.errors import OutcomeUnknownError, TryAgainError
from polaris_spark.testing.faults import FaultyBackend, Network, ProcessDied
from polaris_spark.testing.object_cases import ObjectCases
from polaris_spark.testing.reference_cases import ReferenceCases
from polaris_spark.testing.schedules import Fault, FixedSchedule, Kind, Rates, Schedule, Seeded

_numbers = count()
ROWS = [ObjectRow(number, 0, b"%d" % number) for number in range(1, 21)]
KEYS = [ObjectKey(row.id) for row in ROWS]
OLD, NEW = ReferenceRow(b"1", b"old"), ReferenceRow(b"2", b"new")


class TestWithoutFaults(ObjectCases, ReferenceCases):
    """A wrapper without faults behaves like the database below it."""

    @pytest.fixture
    def uri(self) -> str:
        return f"memory:faults-{next(_numbers)}"

    @pytest.fixture
    def backend(self, uri: str) -> Backend:
        return FaultyBackend(Network(open_backend(uri)), FixedSchedule([]))


class World:
    """One database, and backends with given schedules."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.inner = open_backend(f"memory:faults-{next(_numbers)}")
        self.network = Network(self.inner, self.clock, stale=True)

    def backend(self, *faults: Fault | Kind, transactional: bool | None = None) -> FaultyBackend:
        return self.scheduled(FixedSchedule(faults), transactional=transactional)

    def scheduled(self, schedule: Schedule, *, transactional: bool | None = None) -> FaultyBackend:
        return FaultyBackend(self.network, schedule, self.clock, transactional=transactional)


@pytest.fixture
def world() -> World:
    return World()


def test_a_busy_database_and_a_lost_request_change_nothing(world: World) -> None:
    backend = world.backend("busy", "lost")
    with pytest.raises(TryAgainError):
        backend.insert_reference("r", "n", OLD)
    with pytest.raises(OutcomeUnknownError):
        backend.insert_reference("r", "n", OLD)
    assert backend.read_reference("r", "n") is None


def test_an_unheard_answer_leaves_the_change(world: World) -> None:
    backend = world.backend("", "unheard")
    backend.insert_reference("r", "n", OLD)
    with pytest.raises(OutcomeUnknownError):
        backend.swap_reference("r", "n", b"1", NEW)
    assert backend.read_reference("r", "n") == NEW


def test_a_late_swap_takes_effect_after_what_others_did(world: World) -> None:
    late, other = world.backend("", Fault("late", late_ms=1_000)), world.backend()
    late.insert_reference("r", "n", OLD)
    with pytest.raises(OutcomeUnknownError):
        late.swap_reference("r", "n", b"1", NEW)
    assert other.read_reference("r", "n") == OLD
    world.clock.advance(1_000)
    assert other.read_reference("r", "n") == NEW


def test_a_late_swap_that_another_came_before_never_takes_effect(world: World) -> None:
    late, other = world.backend("", Fault("late", late_ms=1_000)), world.backend()
    late.insert_reference("r", "n", OLD)
    with pytest.raises(OutcomeUnknownError):
        late.swap_reference("r", "n", b"1", NEW)
    theirs = ReferenceRow(b"3", b"theirs")
    assert other.swap_reference("r", "n", b"1", theirs) == Swapped()
    world.clock.advance(1_000)
    assert other.read_reference("r", "n") == theirs


def test_late_writes_may_overtake_each_other(world: World) -> None:
    backend = world.backend(Fault("late", late_ms=500), Fault("late", late_ms=100))
    for row in (OLD, NEW):
        with pytest.raises(OutcomeUnknownError):
            backend.insert_reference("r", "n", row)
    world.clock.advance(1_000)
    assert backend.read_reference("r", "n") == NEW


def test_some_rows_of_a_batch_are_written_or_deleted(world: World) -> None:
    backend = world.backend(Fault("partial", draw=1), "", Fault("partial", draw=2))
    with pytest.raises(OutcomeUnknownError):
        backend.write_objects("r", ROWS)
    written = world.inner.read_objects("r", KEYS)
    assert 0 < len(written) < len(ROWS)
    backend.write_objects("r", ROWS)
    with pytest.raises(OutcomeUnknownError):
        backend.delete_objects("r", KEYS)
    assert 0 < len(world.inner.read_objects("r", KEYS)) < len(ROWS)


def test_only_rows_never_acknowledged_may_be_missed(world: World) -> None:
    backend = world.backend("unheard", Fault("stale", draw=1), "", Fault("stale", draw=1))
    with pytest.raises(OutcomeUnknownError):
        backend.write_objects("r", ROWS)
    assert 0 < len(backend.read_objects("r", KEYS)) < len(ROWS)
    backend.write_objects("r", ROWS)
    assert len(backend.read_objects("r", KEYS)) == len(ROWS)


@pytest.mark.parametrize(("kind", "after"), [("dies before", OLD), ("dies after", NEW)])
def test_a_process_that_died_asks_nothing_any_more(world: World, kind: Kind, after: ReferenceRow) -> None:
    world.inner.insert_reference("r", "n", OLD)
    backend = world.backend(kind)
    with pytest.raises(ProcessDied):
        backend.swap_reference("r", "n", b"1", NEW)
    with pytest.raises(ProcessDied):
        backend.read_reference("r", "n")
    assert world.inner.read_reference("r", "n") == after


def test_transactions_can_be_hidden(world: World) -> None:
    world.inner.insert_reference("r", "n", OLD)
    assert world.backend().transactional
    hidden = world.backend(transactional=False)
    assert not hidden.transactional
    with pytest.raises(NotImplementedError):
        hidden.write_and_swap("r", ROWS, "n", b"1", NEW)
    assert isinstance(world.backend().write_and_swap("r", ROWS, "n", b"x", NEW), Conflict)


def test_delays_pass_at_the_clock(world: World) -> None:
    before = world.clock.monotonic_ms()
    world.backend(Fault("", before_ms=20, after_ms=30)).read_reference("r", "n")
    assert world.clock.monotonic_ms() - before == 50


def test_a_seed_gives_the_same_faults_again(world: World) -> None:
    rates = Rates(busy=0.1, lost=0.1, unheard=0.1, late=0.1, delay_ms=3, stall=0.1)
    one, two = (Seeded(Random(7), rates) for _ in range(2))
    assert [one.next("swap_reference") for _ in range(100)] == [
        two.next("swap_reference") for _ in range(100)
    ]


def test_operations_may_have_rates_of_their_own(world: World) -> None:
    schedule = Seeded(Random(7), Rates(), {"read_reference": Rates(busy=1.0)})
    backend = world.scheduled(schedule)
    backend.insert_reference("r", "n", OLD)
    with pytest.raises(TryAgainError):
        backend.read_reference("r", "n")
