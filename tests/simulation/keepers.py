"""Upkeep by simulated processes: trimming, fencing, sweeping, and tasks that run one at a time per kind."""

from __future__ import annotations

import contextlib
from random import Random

from polaris_spark.commits.change import Operation
from polaris_spark.errors import (
    ClockError,
    CorruptionError,
    OutcomeUnknownError,
    PolarisError,
    ReferenceGoneError,
)
from polaris_spark.maintenance.periods import Policy
from polaris_spark.maintenance.sweep import sweep
from polaris_spark.maintenance.trim import trim
from polaris_spark.system.clocks import StoreClock
from polaris_spark.system.registry import ROOT
from tests.simulation.plan import HOUR
from tests.simulation.world import Process, World

LOG_MS = 10_000 * int(HOUR)
"""Time for which the log of trimmed commits is kept, longer than any simulation takes."""


class Keeper:
    """A thread that does upkeep of the store."""

    def __init__(self, world: World, process: Process, rng: Random) -> None:
        self._world = world
        self._process = process
        self._rng = rng

    def act(self) -> None:
        """Trim, fence, sweep or hold a task. An error of the product ends the action early."""
        process, began = self._process, self._world.tick()
        action = self._rng.choice((self.trim_all, self.fence_one, self.sweep, self.sweep, self.hold_task))
        try:
            if self._world.plan.ahead and action in (self.trim_all, self.sweep):
                # Every job that deletes checks the clock first.
                StoreClock(process.backend, process.clock).refuse_deleting()
            action()
        except CorruptionError as error:
            gone = self._world.observer.gone
            if not any(str(id) in str(error) for id, when in gone.items() if when > began):
                self._world.observer.blame(f"upkeep by {process.name} found the store corrupt: {error}")
        except PolarisError as error:
            if isinstance(error, ClockError):
                process.refused(error)
            self._world.note(process.name, "gave up", action.__name__, type(error).__name__)

    def trim_all(self) -> None:
        """Raise the floors of all references."""
        trim(self._process.references, Policy(int(self._world.plan.retention_ms), 0, LOG_MS))

    def fence_one(self) -> None:
        """Fence one reference."""
        references = self._process.references
        rows = [ROOT, *(registered.row_name for registered in references.listed())]
        with contextlib.suppress(ReferenceGoneError):
            references.fence(self._rng.choice(rows))

    def hold_task(self) -> None:
        """Hold a task that only one process can run at a time. Renew its lease up to twice, and release it mostly."""
        process, rng = self._process, self._rng
        held = process.tasks.acquire("sweep", "all", holder=process.name, duration_ms=2_000, renew=False)
        for _ in range(rng.randrange(3)):
            process.clock.sleep_ms(rng.uniform(0, 3_000))
            with contextlib.suppress(OutcomeUnknownError):
                held.renew()
        if rng.random() < 0.8:
            held.release()

    def sweep(self) -> None:
        """Delete objects that are not needed."""
        process, plan = self._process, self._world.plan
        policy = Policy(int(plan.retention_ms), int(plan.grace_ms), LOG_MS)
        swept = sweep(process.references, policy, operation=Operation(b"", "sweep"))
        self._world.note(process.name, "swept", sum(count.rows for count in swept.counts))
