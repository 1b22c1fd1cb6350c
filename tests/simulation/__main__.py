"""`python -m tests.simulation`: many seeds, or one with its trace."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing import get_context

from rich.console import Console

from polaris_spark.errors import MissingLibraryError

try:
    from tests.simulation import Verdict, simulate
    from tests.simulation.branches.scenario import simulate_branches
    from tests.simulation.refreshes.scenario import simulate_refreshes
except MissingLibraryError as missing:
    sys.exit(str(missing))

_AT_ONCE = 50

Simulation = Callable[..., Verdict]
"""Runs the simulation of a seed."""


def main() -> None:
    """Run the requested seeds; exit with status 1 if a seed shows a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds to run (default: 300)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="that run seeds beside each other"
    )
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--refreshes", action="store_true", help="simulate refreshes of materialized views")
    parser.add_argument("--branches", action="store_true", help="simulate branches, merges and transactions")
    parser.add_argument("--trace", action="store_true", help="with --seed: print what every process did")
    asked = parser.parse_args()
    console = Console(width=200, highlight=False, markup=False, soft_wrap=True)
    run: Simulation = simulate_refreshes if asked.refreshes else simulate
    if asked.branches:
        run = simulate_branches
    if asked.seed is not None:
        sys.exit(_one(console, run, asked.seed, traced=asked.trace))
    sys.exit(_many(console, run, range(asked.first, asked.first + asked.seeds), asked.processes))


def _one(console: Console, run: Simulation, seed: int, *, traced: bool) -> int:
    verdict = run(seed, traced=traced)
    if traced:
        for when, *what in verdict.trace:
            console.print(f"{when:>16}", *what)
        console.print("trace", verdict.digest)
    console.print(verdict.plan)
    console.print(f"{verdict.commits} commits; requests: {verdict.requests}")
    for violation in verdict.violations:
        console.print("violation:", violation)
    return 1 if verdict.violations else 0


def _many(console: Console, run: Simulation, seeds: range, processes: int) -> int:
    began = time.monotonic()
    failed: list[int] = []
    sums: Counter[str] = Counter()
    for verdict in verdicts(seeds, processes, run):
        sums.update(verdict.requests)
        sums.update(commits=verdict.commits, deaths=verdict.deaths, swept=verdict.deleted)
        if verdict.violations:
            failed.append(verdict.plan.seed)
            console.print(f"seed {verdict.plan.seed}: {verdict.violations[0]}")
    seconds = time.monotonic() - began
    told = ", ".join(f"{number:,} {what}" for what, number in sorted(sums.items()))
    console.print(
        f"{len(seeds):,} seeds in {seconds:.0f} s ({1_000 * seconds / len(seeds):.1f} ms each): {told}"
    )
    console.print(f"{len(failed)} with violations" + (f": {failed[:20]}" if failed else ""))
    return 1 if failed else 0


def verdicts(seeds: range, processes: int, run: Simulation = simulate) -> Iterator[Verdict]:
    """Yield the verdict of each seed, in the order of the seeds."""
    if processes <= 1:
        yield from map(run, seeds)
        return
    with get_context("spawn").Pool(processes, initializer=gc.freeze) as pool:
        yield from pool.imap(run, seeds, chunksize=_AT_ONCE)


if __name__ == "__main__":
    main()
