"""How long to wait before the next attempt, and how processes take turns at one reference."""

from __future__ import annotations

import random

from polaris_spark.clock import Clock
from polaris_spark.commits.state import Snapshot
from polaris_spark.ids import IdGenerator, id_time_ms, unpack

BASE_MS = 2.0
CAP_MS = 400.0
PATIENCE_MS = 500.0
"""A change that has waited this long waits half as long as a new one, and so on: age buys priority."""

PATIENCE_COMMITS = 20
"""The same among processes that take turns, in the time of a commit."""

COURTESY = (0.35, 1.05)
"""What part of a round of everybody else's commits a process lets pass before it begins. With 4 and 8 processes on
PostgreSQL half of it costs fairness, and twice of it throughput."""

DOUBLINGS = 4
"""How often the wait doubles from one lost attempt to the next, at most."""

LEAST_SHARE = 0.25
"""For how large a share a process waits at least that lost an attempt."""

RIVALRY_MS = 1_000.0
"""Other processes count as rivals until so long after one of them came first."""


def backoff_ms(attempt: int, age_ms: float, rng: random.Random) -> float:
    """Milliseconds to wait before attempt number `attempt` (the first retry is 1) of a change `age_ms` old.

    Exponential backoff with full jitter ("Exponential Backoff And Jitter", AWS Architecture Blog, 2015), divided by a
    weight that grows with age so that the oldest change tends to win and none starves.
    """
    ceiling = min(CAP_MS, BASE_MS * 2.0 ** min(attempt, 16))
    return rng.uniform(0, ceiling) / (1.0 + age_ms / PATIENCE_MS)


class Turns:
    """How a process takes turns with others that commit to the same reference.

    Nobody tells a process who else is there; the ids of the last commits do, because they carry the number of the node
    that made them. A process that had more than its share of them waits longer, one that had none does not wait.
    """

    def __init__(self, ids: IdGenerator, clock: Clock, rng: random.Random) -> None:
        self._ids = ids
        self._clock = clock
        self._rng = rng
        self._rivals_until = -1.0
        self._commit_ms = BASE_MS
        """How long it takes to publish a commit, a running average, milliseconds."""

    @property
    def contended(self) -> bool:
        """Whether other processes are likely to commit in between."""
        return self._clock.monotonic_ms() < self._rivals_until

    def lost(self) -> None:
        """Another process came first."""
        self._rivals_until = self._clock.monotonic_ms() + RIVALRY_MS

    def won(self, took_ms: float) -> None:
        """A commit was published in so many milliseconds."""
        self._commit_ms += (took_ms - self._commit_ms) / 8

    def pause_ms(self, head: Snapshot, attempt: int, age_ms: float) -> float:
        """Milliseconds to let others commit, before attempt number `attempt` (from 0) of a batch `age_ms` old."""
        if not self.contended:
            return 0.0
        rivals, share = self._share(head)
        round_ms = self._commit_ms * max(1, rivals)
        if attempt:
            wait = round_ms * max(share, LEAST_SHARE) * self._rng.uniform(0, 2.0 ** min(attempt, DOUBLINGS))
        else:
            wait = round_ms * share * self._rng.uniform(*COURTESY)
        return min(CAP_MS, wait / (1.0 + age_ms / (self._commit_ms * PATIENCE_COMMITS)))

    def _share(self, head: Snapshot) -> tuple[int, float]:
        """How many others made the last commits, and this process's part of them in relation to a fair one."""
        since = id_time_ms(head.head.commit) - RIVALRY_MS
        nodes = [unpack(id).node for id in (head.head.commit, *head.commit.parents) if id_time_ms(id) > since]
        mine = unpack(self._ids.next_id()).node
        rivals = len({*nodes, mine}) - 1
        return rivals, nodes.count(mine) * (rivals + 1) / len(nodes)
