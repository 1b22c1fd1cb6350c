"""Many processes on one catalog, with faults, in simulated time: no commit is lost or made twice."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation import simulate
from tests.simulation.__main__ import verdicts
from tests.simulation.intent_mutants import CROWD
from tests.simulation.refreshes.scenario import simulate_refreshes
from tests.sizes import TIMES, long

SEEDS = 120
LONG = 1_000 * TIMES


def test_reported_outcomes_are_the_outcomes_that_took_effect() -> None:
    failed = {
        verdict.plan.seed: verdict.violations[0]
        for verdict in verdicts(range(SEEDS), 1)
        if verdict.violations
    }
    assert not failed, "replay with: python -m tests.simulation --trace --seed N"


@pytest.mark.parametrize("seeds", [10, long(60)])
@pytest.mark.parametrize("messages", [None, 0.05], ids=["rows", "messages"])
def test_many_processes_that_compete_for_one_reference_lose_and_double_nothing(
    messages: float | None, seeds: int
) -> None:
    failed = {
        seed: verdict.violations[0]
        for seed in range(seeds)
        if (verdict := simulate(seed, **CROWD, messages=messages)).violations
    }
    assert not failed


@pytest.mark.long
def test_a_thousand_seeds_are_clean() -> None:
    # The first of them are those of the test above.
    failed = {
        verdict.plan.seed: verdict.violations[0]
        for verdict in verdicts(range(SEEDS, LONG), os.cpu_count() or 1)
        if verdict.violations
    }
    assert not failed, "replay with: python -m tests.simulation --trace --seed N"


def test_a_seed_replays_exactly_in_any_interpreter() -> None:
    seeds = (3, 5)
    program = (
        "from tests.simulation import simulate; from tests.simulation.refreshes.scenario import simulate_refreshes; "
        f"print(*(run(seed, traced=True).digest for seed in {seeds} for run in (simulate, simulate_refreshes)))"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("0", "1", "4711")
    }
    runs = (simulate, simulate_refreshes)
    assert digests == {" ".join(run(seed, traced=True).digest for seed in seeds for run in runs)}


def test_the_seeds_have_every_kind_of_fault_and_outcome() -> None:
    outcomes: set[str] = set()
    kinds: set[object] = set()
    deaths = deleted = 0
    for seed in range(40):
        verdict = simulate(seed, traced=True)
        outcomes.update(verdict.requests)
        kinds.update(line[-1] for line in verdict.trace if isinstance(line[-1], str))
        deaths, deleted = deaths + verdict.deaths, deleted + verdict.deleted
    assert outcomes >= {"done", "refused", "unknown", "again", "gone", "forgotten", "died"}
    assert kinds >= {"busy", "lost", "unheard", "late", "partial", "stale", "dies before", "dies after"}
    assert deaths > 0
    assert deleted > 0


def test_the_extra_that_is_missing_is_named_in_one_line() -> None:
    program = (
        "import runpy, sys; sys.modules['greenlet'] = None; "
        "runpy.run_module('tests.simulation', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "pip install 'polaris-spark[test]'" in done.stderr
