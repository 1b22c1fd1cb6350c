"""Plans of simulations, drawn from seeds: number of processes, kinds and rates of faults, actions of clients.

Each plan has only some of the faults, with different rates ("swarm testing", Groce et al., ISSTA 2012). A fault that
occurs in every plan would hide errors that appear only without it.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from polaris_spark.testing.schedules import Rates

SECOND = 1_000.0
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
FAR_AHEAD = (400 * 24 * HOUR, 10 * 365 * 24 * HOUR)
"""Errors of clocks that are far ahead (`Plan.ahead`), in milliseconds."""


class Plan(NamedTuple):
    """The parameters of one simulation. Times are milliseconds."""

    seed: int
    processes: int
    threads: int
    """Number of threads in each process."""
    transactional: bool
    nodes: int
    """Number of node numbers that the processes share."""
    names: tuple[str, ...]
    """Names of the references."""
    keys: int
    quota: int
    """Maximum size of an index's embedded part, in bytes."""
    cache_bytes: int
    gaps: tuple[float, ...]
    """Times between the starts of bursts of activity."""
    actions: int
    """Maximum number of actions of each thread in a burst."""
    think_ms: float
    rates: Rates
    skews: tuple[float, ...]
    """Errors of clocks; each process draws its clock's error from these, and changes it at random."""
    retention_ms: float
    grace_ms: float
    registry: float
    """Share of client actions that create, drop and undrop references."""
    upkeep: float
    """Share of actions that do upkeep, such as trim, fence and sweep."""
    reads: float
    restart_ms: float
    transaction_rows: int
    """Maximum number of rows in a transaction. If there are more rows, they are written before the swap."""
    inserts: Rates | None = None
    """Fault rates of inserts of references, if they differ from the rates of other operations."""
    ahead: float = 0.0
    """Probability that a clock is far ahead. All other clocks are then correct, and must not be refused."""
    messages: float | None = None
    """Probability that a message between processes is lost; None if they exchange no messages."""
    database_clock: bool = False
    """Whether the database has its own clock, which is correct."""
    weights: tuple[tuple[str, int], ...] = ()
    """(name, weight) of actions of branches' clients whose weight replaces the usual one."""


def draw(seed: int, **changes: object) -> Plan:
    """Return the plan of a seed. `changes` replace fields of the plan."""
    rng = Random(seed)

    def sometimes(likely: float, *values: float) -> float:
        return rng.choice(values) if rng.random() < likely else 0.0

    rates = Rates(
        busy=sometimes(0.4, 0.01, 0.05),
        lost=sometimes(0.5, 0.01, 0.03, 0.15),
        unheard=sometimes(0.6, 0.01, 0.03, 0.15),
        late=sometimes(0.5, 0.01, 0.03, 0.10),
        partial=sometimes(0.4, 0.01, 0.05),
        stale=sometimes(0.5, 0.2, 1.0),
        death=sometimes(0.5, 0.001, 0.005),
        stall=sometimes(0.5, 0.001, 0.004),
        delay_ms=rng.choice((0.0, 1.0, 3.0, 3.0, 20.0)),
        late_ms=(1.0, rng.choice((20.0, 2_000.0, 120_000.0))),
        stall_ms=(MINUTE, rng.choice((5 * MINUTE, 5 * HOUR))),
    )
    skewed = rng.random() < 0.5
    plan = Plan(
        seed=seed,
        processes=rng.choice((1, 2, 2, 3, 3, 4)),
        threads=rng.choice((1, 1, 2, 3)),
        transactional=rng.random() < 0.5,
        nodes=rng.choice((5, 8, 16)),
        names=("main", "branch", "other")[: rng.choice((1, 1, 2, 3))],
        keys=rng.choice((3, 20, 120)),
        quota=rng.choice((300, 1_000, 2_048)),
        cache_bytes=rng.choice((0, 20_000, 2**20)),
        gaps=tuple(
            rng.choice((0.0, SECOND, MINUTE, 20 * MINUTE, 40 * MINUTE, 2 * HOUR, 7 * HOUR)) for _ in range(4)
        ),
        actions=rng.choice((4, 8)),
        think_ms=rng.choice((0.0, 2.0, 10.0)),
        rates=rates,
        skews=(0.0, 20 * SECOND, -20 * SECOND, 50 * SECOND, -50 * SECOND, 70 * MINUTE, -3 * HOUR)
        if skewed
        else (0.0, 0.0, 5.0, -5.0),
        retention_ms=rng.choice((MINUTE, 30 * MINUTE, 3 * HOUR)),
        grace_ms=rng.choice((0.0, MINUTE, 30 * MINUTE, 3 * HOUR)),
        registry=rng.choice((0.0, 0.05, 0.2)),
        upkeep=rng.choice((0.0, 0.05, 0.15)),
        reads=rng.choice((0.0, 0.1, 0.3)),
        restart_ms=rng.choice((1.0, 100.0, MINUTE)),
        transaction_rows=rng.choice((100_000, 100_000, 4)),
    )
    plan = plan._replace(database_clock=rng.random() < 0.3)
    if rng.random() < 0.25:
        plan = plan._replace(ahead=rng.choice((0.1, 0.4)), skews=(0.0, 0.0, 5.0, -5.0))
    return plan._replace(**changes)  # type: ignore[arg-type]  # whatever the caller changes
