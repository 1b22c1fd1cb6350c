"""Ids of several processes with wrong clocks on one store, tested as a state machine."""

from __future__ import annotations

import contextlib
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from polaris_spark.backends.base import Conflict, ReferenceRow, Swapped
from polaris_spark.backends.memory import MemoryBackend
from polaris_spark.clock import EPOCH_MS, ManualClock
from polaris_spark.errors import ClockError, OutcomeUnknownError, TryAgainError
from polaris_spark.ids import IdGenerator, Lease, unpack
from polaris_spark.system.clocks import StoreClock
from polaris_spark.system.leases import NodeLeases

_numbers = count()
MINUTE = 60_000
HOUR = 60 * MINUTE
START = EPOCH_MS + 24 * HOUR


class Failing(MemoryBackend):
    """A memory store whose next operations fail with an unknown outcome, before or after they take effect."""

    transactional = False

    def __init__(self) -> None:
        super().__init__(f"ids-model-{next(_numbers)}")
        self.plan: list[str] = []

    def insert_reference(self, realm: str, name: str, new: ReferenceRow) -> Swapped | Conflict:
        self._fail("before")
        outcome = super().insert_reference(realm, name, new)
        self._fail("after")
        return outcome

    def swap_reference(
        self, realm: str, name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        self._fail("before")
        outcome = super().write_and_swap(realm, (), name, expected_version, new)
        self._fail("after")
        return outcome

    def _fail(self, when: str) -> None:
        if self.plan and self.plan[0] == when:
            self.plan.pop(0)
            raise OutcomeUnknownError("lost the answer")


class Noting(NodeLeases):
    """Node leases that record every span that they return."""

    def __init__(self, backend: MemoryBackend, clock: ManualClock, seed: int) -> None:
        super().__init__(backend, clock, nodes=2, seed=seed)
        self.spans: list[Lease] = []

    def acquire(self, after_ms: int) -> Lease:
        lease = super().acquire(after_ms)
        self.spans.append(lease)
        return lease

    def renew(self, lease: Lease) -> Lease | None:
        renewed = super().renew(lease)
        if renewed is not None:
            self.spans.append(renewed)
        return renewed


class WrongClock(ManualClock):
    """A clock that shows the simulated time with an error."""

    def __init__(self, world: ManualClock, wrong: int) -> None:
        super().__init__()
        self.world = world
        self.wrong = wrong

    def now_ms(self) -> int:
        return max(EPOCH_MS, self.world.now_ms() + self.wrong)

    def monotonic_ms(self) -> float:
        return self.world.monotonic_ms()


class Process:
    """One process of the store, with its own clock, its leases, and the highest id that it generated or read."""

    def __init__(self, backend: MemoryBackend, clock: WrongClock, seed: int) -> None:
        self.clock = clock
        self.leases = Noting(backend, self.clock, seed)
        self.ids = IdGenerator(self.leases, self.clock)
        self.floor = 0


errors_of_clocks = st.sampled_from([0, 0, 0, -1, 1, 2, -MINUTE, MINUTE, -HOUR, HOUR, 3 * HOUR])


class Ids(RuleBasedStateMachine):
    processes = Bundle("processes")

    @initialize()
    def open(self) -> None:
        self.backend = Failing()
        self.world = ManualClock(START)
        self.everything: set[int] = set()
        self.newest = 0
        self.new: list[tuple[Process, list[int]]] = []

    @rule(target=processes, wrong=errors_of_clocks, seed=st.integers(0, 1))
    def start(self, wrong: int, seed: int) -> Process:
        return Process(self.backend, WrongClock(self.world, wrong), seed)

    @rule(process=processes, n=st.sampled_from([1, 1, 2, 4_096, 5_000, 10_000]))
    def make(self, process: Process, n: int) -> None:
        try:
            made = process.ids.next_ids(n) if n > 1 else [process.ids.next_id()]
        except (ClockError, TryAgainError, OutcomeUnknownError):
            return  # what an id needs was not to be had; nothing was made
        self.new.append((process, made))

    @rule(ms=st.sampled_from([1, 2, MINUTE, 50 * MINUTE, HOUR, HOUR, 5 * HOUR]))
    def let_time_pass(self, ms: int) -> None:
        self.world.advance(ms)

    @rule(process=processes, wrong=errors_of_clocks)
    def set_the_clock(self, process: Process, wrong: int) -> None:
        process.clock.wrong = wrong

    @rule(process=processes)
    def repair_the_clock(self, process: Process) -> None:
        with contextlib.suppress(OutcomeUnknownError):
            StoreClock(self.backend, process.clock).repair()

    @rule(process=processes)
    def read_the_newest_id(self, process: Process) -> None:
        process.ids.observe(self.newest)
        process.floor = max(process.floor, self.newest)

    @rule(process=processes)
    def release(self, process: Process) -> None:
        with contextlib.suppress(OutcomeUnknownError):  # the lease runs out by itself
            process.ids.release()

    @rule(process=consumes(processes))
    def kill(self, process: Process) -> None:
        """End the process without releasing its leases."""

    @rule(plan=st.lists(st.sampled_from(["before", "after"]), min_size=1, max_size=6))
    def lose_answers(self, plan: list[str]) -> None:
        self.backend.plan = plan

    @invariant()
    def every_id_is_new_ascends_and_lies_inside_a_lease_of_its_maker(self) -> None:
        for process, made in self.new:
            assert made == sorted(made)
            assert made[0] > process.floor
            for id in (made[0], made[-1]):
                ms, node, _ = unpack(id)
                assert any(s.node == node and s.start_ms <= ms < s.end_ms for s in process.leases.spans), (
                    ms,
                    node,
                )
            process.floor = made[-1]
            self.newest = max(self.newest, made[-1])
            assert self.everything.isdisjoint(made)
            self.everything.update(made)
            assert len(set(made)) == len(made)
        self.new = []


TestIds = Ids.TestCase
TestIds.settings = settings(max_examples=100, stateful_step_count=50)
