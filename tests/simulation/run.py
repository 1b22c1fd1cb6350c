"""Runs one simulation, from its seed to its verdict."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable
from random import Random
from typing import NamedTuple, Protocol

from polaris_spark.commits.change import Operation
from polaris_spark.errors import PolarisError
from polaris_spark.store.references import versions_from
from tests.simulation.clients import Client, operation_id
from tests.simulation.keepers import Keeper
from tests.simulation.last import finish
from tests.simulation.observer import REALM, Observer
from tests.simulation.plan import Plan, draw
from tests.simulation.scheduler import StuckError
from tests.simulation.verdict import judge
from tests.simulation.world import Process, World

Inspect = Callable[[World], None]


class Actor(Protocol):
    """The client side of one thread of a simulated process."""

    def act(self) -> None:
        """Do one action. An error of the product ends the action early."""


class Scenario(Protocol):
    """What simulated processes do besides upkeep, and what is checked."""

    def observer(self, tick: Callable[[], int]) -> Observer:
        """Return the observer of the database."""

    def found(self, world: World, process: Process) -> None:
        """Create what exists at the beginning; without faults."""

    def actor(self, world: World, process: Process, rng: Random) -> Actor:
        """Return the client side of a thread."""

    def finish(self, world: World, process: Process) -> None:
        """Check the stored data at the end, in a new process and without faults."""

    def judge(self, world: World) -> None:
        """Compare what clients were told with what took effect."""


class Numbers:
    """Clients commit numbers, and create and drop references."""

    def observer(self, tick: Callable[[], int]) -> Observer:
        return Observer(tick)

    def found(self, world: World, process: Process) -> None:
        """Initialize the registry, and create the first reference."""
        process.references.initialize()
        id = operation_id(process, process.rng)
        world.observer.operations[id] = 0
        process.references.create(world.plan.names[0], Operation(id, "founder"))

    def actor(self, world: World, process: Process, rng: Random) -> Actor:
        return Client(world, process, rng)

    def finish(self, world: World, process: Process) -> None:
        finish(world, process)

    def judge(self, world: World) -> None:
        judge(world)


class Verdict(NamedTuple):
    """The result of a simulation."""

    plan: Plan
    violations: list[str]
    commits: int
    requests: dict[str, int]
    """Number of requests, by outcome."""
    deaths: int
    deleted: int
    days: float
    """Simulated time, in days."""
    trace: list[tuple[object, ...]]

    @property
    def digest(self) -> str:
        """A hash of the trace, which is the same for the same seed on every machine."""
        lines = "\n".join(map(repr, self.trace))
        return hashlib.sha256(lines.encode()).hexdigest()


def simulate(
    seed: int, *, traced: bool = False, inspect: Inspect | None = None, **changes: object
) -> Verdict:
    """Run the simulation of a seed.

    Args:
        traced: whether the trace contains every operation of every process.
        inspect: called with the world at the end, to inspect the stored data.
        changes: fields of the plan to replace.
    """
    return simulate_plan(draw(seed, **changes), traced=traced, inspect=inspect)


def simulate_plan(
    plan: Plan, *, traced: bool = False, inspect: Inspect | None = None, scenario: Scenario | None = None
) -> Verdict:
    """Run a simulation; the arguments are those of `simulate`.

    Args:
        scenario: what simulated processes do; by default `Numbers`.
    """
    scenario = scenario or Numbers()
    world = World(plan, traced=traced, observer=scenario.observer)
    simulation = _Simulation(world, scenario)
    with versions_from(Random(plan.seed).randbytes):
        try:
            simulation.run()
        except StuckError as error:
            world.observer.blame(str(error))
        except Exception:  # an exception that escapes a simulated thread is a violation
            world.observer.blame(traceback.format_exc())
        finally:
            world.scheduler.end()
    scenario.judge(world)
    outcomes: dict[str, int] = {}
    for request in world.requests:
        said = request.outcome or "died"
        outcomes[said] = outcomes.get(said, 0) + 1
    commits = sum(row.head.number - row.first.number for row in world.observer.rows.values())
    if inspect is not None:
        inspect(world)
    world.backend.drop_realm(REALM)
    return Verdict(
        plan,
        world.observer.violations,
        commits,
        outcomes,
        simulation.deaths,
        len(world.observer.gone),
        world.scheduler.now / 86_400_000,
        world.trace,
    )


class _Simulation:
    """Starts processes, restarts those that died, and ends when all processes have finished."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        self.world = world
        self.scenario = scenario
        self.deaths = 0
        self._bursts = self._times()

    def _times(self) -> list[float]:
        """Return the simulated times at which the bursts of activity begin, in milliseconds."""
        times, now = [], 0.0
        for gap in (0.0, *self.world.plan.gaps):
            now += gap
            times.append(now)
        return times

    def run(self) -> None:
        world = self.world
        world.calm = True
        founder = world.process("founder")
        world.spawn(founder, lambda: self._found(founder))
        world.scheduler.run()
        world.calm = False
        for slot in range(world.plan.processes):
            self._start(slot, 0, 0)
        world.scheduler.run()
        world.network.settle(everything=True)
        if waiting := world.scheduler.unfinished():
            world.observer.blame(f"{waiting} threads wait for what never comes")
        world.calm = True
        judge = world.process("judge")
        world.spawn(judge, lambda: self.scenario.finish(world, judge))
        world.scheduler.run()

    def _found(self, process: Process) -> None:
        self.scenario.found(self.world, process)
        process.ids.release()

    def _start(self, slot: int, life: int, burst: int) -> None:
        """Start or restart the process of a slot, with the bursts that are left."""
        world, plan = self.world, self.world.plan
        reached = [burst] * plan.threads

        def died() -> None:
            self.deaths += 1
            if life < 6:
                again = world.process(f"p{slot}.{life + 1}-waits")
                world.spawn(
                    again, lambda: self._start(slot, life + 1, min(reached) + 1), after_ms=plan.restart_ms
                )

        process = world.process(f"p{slot}.{life}", died)
        for thread in range(plan.threads):
            rng = Random(world.rng.getrandbits(64))
            world.spawn(process, lambda thread=thread, rng=rng: self._live(process, rng, thread, reached))  # type: ignore[misc]  # mypy infers no type of a lambda with defaults

    def _live(self, process: Process, rng: Random, thread: int, reached: list[int]) -> None:
        world, plan = self.world, self.world.plan
        client, keeper = self.scenario.actor(world, process, rng), Keeper(world, process, rng)
        for burst in range(reached[thread], len(self._bursts)):
            reached[thread] = burst
            process.clock.sleep_ms(max(0.0, self._bursts[burst] - world.scheduler.now) + rng.random())
            if rng.random() < 0.3:
                process.jump()
            for _ in range(rng.randrange(1, plan.actions + 1)):
                process.clock.sleep_ms(2 * plan.think_ms * rng.random())
                if rng.random() < plan.upkeep:
                    keeper.act()
                else:
                    client.act()
        if thread == 0 and rng.random() < 0.5:
            self._release(process)

    def _release(self, process: Process) -> None:
        """Release the node, as at the end of a process."""
        try:
            process.ids.release()
        except PolarisError as error:
            self.world.note(process.name, "gave up", "release", type(error).__name__)
