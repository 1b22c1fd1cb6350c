"""The simulated world: one database, the processes that use it, and the responses that their clients received."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

from polaris_spark.commits.settings import CommitSettings
from polaris_spark.errors import ClockError, UnwritableFileError
from polaris_spark.ids import IdGenerator
from polaris_spark.store.cache import ObjectCache
from polaris_spark.store.objects import ObjectStore
from polaris_spark.system.leases import NodeLeases
from polaris_spark.system.registry import References
from polaris_spark.system.tasks import Tasks
from polaris_spark.testing.faults import FaultyBackend, Network
from polaris_spark.testing.schedules import Rates, Seeded
from tests.mailboxes import MemoryMailbox, Office
from tests.simulation.observer import REALM, Observer, Watched
from tests.simulation.plan import FAR_AHEAD, Plan
from tests.simulation.programs import Task
from tests.simulation.scheduler import Scheduler, SimulatedClock

_stores = count()


@dataclass
class Request:
    """A request of a client, and its response."""

    number: int
    operation: int
    operation_id: bytes
    name: str
    """Name of the reference."""
    task: Task | None
    """The task to commit; None for a request that does `action` on the registry."""
    action: str
    process: str
    invoked: int
    invoked_ms: float
    """Correct time of the request, in milliseconds since 1970."""
    responded: int = 0
    """Tick of the response; 0 if there was none because the process died."""
    outcome: str = ""
    answer: int | None = None


@dataclass
class Read:
    """The result of a client's read: all numbers of a reference at a commit."""

    name: str
    row: str
    invoked: int
    responded: int
    commit: int
    numbers: dict[bytes, int] | None


class World:
    """The complete state of one simulation."""

    def __init__(
        self,
        plan: Plan,
        *,
        traced: bool = False,
        observer: Callable[[Callable[[], int]], Observer] = Observer,
    ) -> None:
        self.plan = plan
        self.rng = Random(plan.seed)
        self.scheduler = Scheduler()
        self._ticks = count(1)
        self.observer = observer(self.tick)
        self.backend = Watched(f"simulation-{next(_stores)}", self.observer)
        vars(self.backend).update(transaction_rows=plan.transaction_rows)  # a class variable of the interface
        if plan.database_clock:
            self.backend.clock = SimulatedClock(self.scheduler)
        self.observer.now_ms = SimulatedClock(self.scheduler).now_ms
        self.observer.age_of = lambda id: self.scheduler.now - self.observer.nodes.made_at[id]
        if plan.ahead:
            self.observer.grace_ms = plan.grace_ms
        self.network = Network(self.backend, SimulatedClock(self.scheduler), stale=not plan.transactional)
        self.office = Office(lambda: self.rng.random() < (plan.messages or 0.0))
        self.requests: list[Request] = []
        self.reads: list[Read] = []
        self.trace: list[tuple[object, ...]] = []
        self.traced = traced
        self.calm = False
        """Whether fault injection is off, as before and after the main part of a simulation."""

    def tick(self) -> int:
        """Return the next tick. Ticks number the events of the world in their order."""
        return next(self._ticks)

    def note(self, *what: object) -> None:
        """Add a line to the trace."""
        self.trace.append((round(self.scheduler.now, 3), *what))

    def process(self, name: str, died: Callable[[], None] | None = None) -> Process:
        """Return a new process."""
        return Process(self, name, died)

    def spawn(self, process: Process, run: Callable[[], None], *, after_ms: float = 0.0) -> None:
        """Start a thread of a process."""
        self.scheduler.spawn(run, process.clock, after_ms=after_ms)


class CheckedIds(IdGenerator):
    """An id generator that reports every id to the observer."""

    def watch(self, world: World, holder: str) -> None:
        """Report every id that is generated or read from now on to the observer."""
        self._world, self._nodes, self._holder = world, world.observer.nodes, holder
        self._registered = True  # so that no lease is released at the exit of the interpreter

    def observe(self, id: int) -> None:
        super().observe(id)
        self._nodes.read(self._holder, id)

    def _take(self, wanted: int) -> tuple[int, int]:
        first, n = super()._take(wanted)
        self._nodes.made(self._holder, range(first, first + n), self._world.scheduler.now)
        return first, n


class Files:
    """Files of the simulated warehouse. Writing several files may fail after some of them were written."""

    def __init__(self, world: World, clock: SimulatedClock, rng: Random) -> None:
        self._world = world
        self._clock = clock
        self._rng = rng

    def write_all(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Write files; implements `polaris_spark.commits.committer.FileWriter`."""
        for location, data in files:
            self._clock.sleep_ms(self._rng.random())
            if not self._world.calm and self._rng.random() < self._world.plan.rates.lost:
                raise UnwritableFileError(f"injected: {location} cannot be written")
            self._world.observer.files[location] = data


class Process:
    """One simulated process. Processes share nothing but the database."""

    def __init__(self, world: World, name: str, died: Callable[[], None] | None) -> None:
        plan = world.plan
        self.world = world
        self.name = name
        self.rng = rng = Random(world.rng.getrandbits(64))
        self.clock = SimulatedClock(world.scheduler)
        self.was_ahead = False
        """Whether the clock of this process was ever far ahead."""
        if not world.calm:
            self.jump()
        self._died = died
        rates = Rates() if world.calm else plan.rates
        self.backend = FaultyBackend(
            world.network,
            Seeded(
                rng, rates, {"insert_reference": plan.inserts} if plan.inserts and not world.calm else None
            ),
            self.clock,
            transactional=plan.transactional,
            died=self._die,
            noted=self._note if world.traced else None,
        )
        self.leases = NodeLeases(
            self.backend, self.clock, nodes=plan.nodes, seed=rng.getrandbits(32), holder=name
        )
        self.ids = CheckedIds(self.leases, self.clock)
        self.ids.watch(world, name)
        self.tasks = Tasks(self.backend, self.clock)
        store = ObjectStore(self.backend, REALM, ObjectCache(plan.cache_bytes), store_key="simulated")
        self.references = References(
            store,
            ids=self.ids,
            clock=self.clock,
            settings=CommitSettings(quotas={}, default_quota=plan.quota),
            files=Files(world, self.clock, rng),
            rng=rng,
            mailbox=None if plan.messages is None else MemoryMailbox(world.office, self.ids.node, self.clock),
        )

    def jump(self) -> None:
        """Change the error of the wall clock at random."""
        plan = self.world.plan
        self.clock.skew_ms = self.rng.choice(plan.skews)
        if plan.ahead and self.rng.random() < plan.ahead:
            self.clock.skew_ms = self.rng.choice(FAR_AHEAD)
            self.was_ahead = True

    def refused(self, error: ClockError) -> None:
        """Check a refusal of the clock by the product. If the plan has clocks far ahead, only these may be refused."""
        if self.world.plan.ahead and not self.was_ahead:
            self.world.observer.blame(f"{self.name}, whose clock is right, was refused: {error}")

    def _die(self) -> None:
        self.clock.dead = True
        self.world.note(self.name, "died")
        if self._died is not None:
            self._died()

    def _note(self, operation: str, realm: str, subject: str, outcome: object) -> None:
        self.world.note(self.name, operation, subject, _short(outcome))


def _short(outcome: object) -> str:
    return outcome if isinstance(outcome, str) else type(outcome).__name__
