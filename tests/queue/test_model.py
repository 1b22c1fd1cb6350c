"""Random workers that die, fail, are late and give up, against a model of the queue."""

from __future__ import annotations

import random
from collections import Counter
from typing import NamedTuple

import pytest

from polaris_spark.clock import ManualClock
from polaris_spark.commits.change import Operation
from polaris_spark.jobs.queue.history import commit_queue, read_queue
from polaris_spark.jobs.registry import call
from polaris_spark.maintenance.queue.changes import (
    LEASE_MS,
    Claim,
    Finish,
    GiveBack,
    Renew,
    all_runs,
    all_tasks,
    ended,
)
from polaris_spark.maintenance.queue.rows import QueuedTask
from polaris_spark.rest.session import Session
from polaris_spark.system.clocks import BEHIND_MS

SEED = random.SystemRandom().randrange(2**32)
ATTEMPTS = 3
_NOBODY = Operation(b"", "w")


class Held(NamedTuple):
    """A lease that a worker believes it holds."""

    task: QueuedTask
    run: bytes
    until: int
    """Time at which another worker may take the task over."""


class Model:
    """The queue of a catalog, and what must hold of it."""

    def __init__(self, session: Session, clock: ManualClock, rng: random.Random) -> None:
        self.session, self.clock, self.rng = session, clock, rng
        self.held: list[Held] = []
        self.attempts: Counter[int] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.done: set[int] = set()
        self.added = 0

    def step(self) -> None:
        step = self.rng.choice([self.add, self.claim, self.claim, self.end, self.end, self.renew, self.wait])
        step()
        self.check()

    def add(self) -> None:
        if self.added < 6:
            call(self.session, "enqueue", procedure="expire", attempts=ATTEMPTS)
            self.added += 1

    def claim(self) -> None:
        run = self.rng.randbytes(16)
        change = Claim(self.clock, _NOBODY, "w", run, lease_ms=LEASE_MS, keep_ms=10**12)
        task: QueuedTask | None = commit_queue(self.session.catalog, change)
        if task is None:
            return
        now = self.clock.now_ms()
        assert all(one.until <= now for one in self.held if one.task.id == task.id)
        assert task.id not in self.done
        self.attempts[task.id] += 1
        assert task.attempt == self.attempts[task.id] <= ATTEMPTS
        self.held.append(Held(task, run, now + LEASE_MS + BEHIND_MS))

    def end(self) -> None:
        """A worker finishes, fails, is interrupted, or dies."""
        if not self.held:
            return
        one = self.held.pop(self.rng.randrange(len(self.held)))
        how = self.rng.choice(["succeeded", "failed", "interrupted", "died"])
        task = one.task
        assert task.lease is not None
        holds = self.holder(task.id) == one.run
        if how == "interrupted":
            commit_queue(self.session.catalog, GiveBack(self.clock, _NOBODY, task.id, one.run))
            self.attempts[task.id] -= holds
        elif how != "died":
            record = ended(task, task.lease, self.clock.now_ms(), how, "x" * (how == "failed"), {})
            finish = Finish(self.clock, _NOBODY, task.id, record, keep_ms=10**12)
            assert commit_queue(self.session.catalog, finish) is holds
            if holds and how == "succeeded":
                self.done.add(task.id)

    def renew(self) -> None:
        """All workers that live renew their leases."""
        runs = {one.run: one.task.id for one in self.held}
        still = {one.run for one in self.held if self.holder(one.task.id) == one.run}
        found = commit_queue(self.session.catalog, Renew(self.clock, _NOBODY, runs, LEASE_MS))
        assert found == still
        until = self.clock.now_ms() + LEASE_MS + BEHIND_MS
        self.held = [one._replace(until=until) if one.run in still else one for one in self.held]

    def wait(self) -> None:
        self.clock.advance(self.rng.choice([1_000, 40_000, LEASE_MS + BEHIND_MS]))

    def holder(self, id: int) -> bytes | None:
        found = next((task for task in self.tasks() if task.id == id), None)
        return None if found is None or found.lease is None else found.lease.run

    def tasks(self) -> list[QueuedTask]:
        state = read_queue(self.session.catalog)
        return [] if state is None else all_tasks(state)

    def check(self) -> None:
        there = {task.id: task for task in self.tasks()}
        assert self.done.isdisjoint(there)
        assert len(there) + len(self.done) == self.added
        for task in there.values():
            assert task.attempt == self.attempts[task.id]
            assert not task.has_failed or (task.attempt == ATTEMPTS and task.lease is None)

    def finish(self) -> None:
        """Without further trouble, every task ends."""
        self.held.clear()
        for _ in range(200):
            self.clock.advance(LEASE_MS + BEHIND_MS)
            self.claim()
            if self.held:
                one = self.held.pop()
                assert one.task.lease is not None
                record = ended(one.task, one.task.lease, self.clock.now_ms(), "succeeded", "", {})
                finish = Finish(self.clock, _NOBODY, one.task.id, record, keep_ms=10**12)
                assert commit_queue(self.session.catalog, finish) is True
                self.done.add(one.task.id)
            if all(task.has_failed for task in self.tasks()):
                break
        assert all(task.has_failed for task in self.tasks())
        state = read_queue(self.session.catalog)
        runs = [] if state is None else all_runs(state, 10_000, lambda _: True)
        assert len({run.run for run in runs}) == len(runs)
        ends = Counter(run.outcome for run in runs)
        assert ends["succeeded"] >= len(self.done)


@pytest.mark.parametrize("number", range(6))
def test_every_task_ends_once_whatever_workers_do(session: Session, clock: ManualClock, number: int) -> None:
    print("seed", SEED + number)
    model = Model(session, clock, random.Random(SEED + number))
    for _ in range(150):
        model.step()
    model.finish()
    assert call(session, "fsck") == []
