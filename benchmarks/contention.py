"""Many writers on one PostgreSQL server: threads of one process, and several processes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.competitors import Catalog, committing
from benchmarks.findings import Finding
from benchmarks.measurement import Figure, Rate, Sample, compare, growth, in_turns, total
from benchmarks.postgresql import durability
from benchmarks.processes import run_processes
from tests.servers.postgresql import PostgreSQL

WRITERS = 64
"""Number of threads that commit at the same time, in one process or distributed over several."""
UNFAIRNESS = 10
"""Maximum ratio, in every process, of the 99th percentile of commit times to the median of all processes."""


def measure(folder: Path, *, rounds: int, seconds: float, crowd: int = 8) -> list[Finding]:
    """Compare several processes with one process, and measure the fairness among many processes.

    Args:
        crowd: number of processes for the fairness measurement. Half as many are compared with one process.
    """
    with PostgreSQL() as server:
        catalog = Catalog(server.database, str(folder), shared=False)
        figures: list[Finding] = [
            *_processes(catalog, rounds, seconds, max(2, crowd // 2)),
            *_fairness(catalog, rounds, seconds, crowd),
            durability(server),
        ]
    return figures


def _processes(catalog: Catalog, rounds: int, seconds: float, processes: int) -> list[Figure]:
    def reached(processes: int) -> Rate:
        return total(run_processes(processes, WRITERS // processes, seconds, committing, catalog))

    several, one = in_turns(rounds, [lambda: reached(processes), lambda: reached(1)])
    what = f"property commits/s, never, {processes} processes x {WRITERS // processes} threads on one catalog"
    beside = f"ours, 1 process x {WRITERS} threads"
    return [compare(what, several, one, least=0.7, faultless=True, beside=beside)]


def _fairness(catalog: Catalog, rounds: int, seconds: float, processes: int) -> list[Figure]:
    """Compare the commit times of the slowest process with the median of all processes."""
    medians, p99s, longest, shares = [], [], [], []
    for _ in range(rounds):
        rates = run_processes(processes, WRITERS // processes, seconds, committing, catalog)
        medians.append(statistics.median(time for rate in rates for time in rate.milliseconds))
        p99s.append(max(_at(rate.milliseconds, 0.99) for rate in rates))
        longest.append(max(rate.milliseconds[-1] for rate in rates))
        together = total(rates).per_second
        shares.append([rate.per_second / together for rate in rates])
    who = f"{processes} processes x {WRITERS // processes} threads on one catalog"
    median = Sample(tuple(medians))
    spread = sorted(min(shares, key=lambda one: min(one)), reverse=True)
    return [
        growth(
            f"p99 of a property commit in the slowest of {who}, ms",
            Sample(tuple(p99s)),
            median,
            "the median of all",
            UNFAIRNESS,
            digits=1,
        ),
        Figure(
            f"the longest property commit of {who}, ms",
            Sample(tuple(longest)).text(1),
            f"{median.text(1)} (the median of all)",
            f"{max(longest) / median.median:.0f}x the time",
            "",
            met=True,
            samples={"longest": Sample(tuple(longest)), "median": median},
        ),
        Figure(
            f"shares of {who}, of the least even round, %",
            " ".join(f"{share * 100:.0f}" for share in spread),
            "",
            "",
            "",
            met=True,
        ),
    ]


def _at(ascending: Sequence[float], part: float) -> float:
    return ascending[min(len(ascending) - 1, int(len(ascending) * part))]
