"""Refreshes of materialized views, with concurrent clients and faults: stored rows are always those of one refresh."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.simulation.__main__ import verdicts
from tests.simulation.refreshes.mutants import CALM
from tests.simulation.refreshes.scenario import simulate_refreshes
from tests.sizes import TIMES, long

SEEDS = 12
LONG = 100 * TIMES


def test_stored_rows_are_those_of_one_refresh_and_each_refresh_is_done_once() -> None:
    told: Counter[str] = Counter()
    deaths = deleted = 0
    for seed in range(SEEDS):
        verdict = simulate_refreshes(seed)
        assert not verdict.violations, (
            f"replay with: python -m tests.simulation --refreshes --trace --seed {seed}"
        )
        told.update(verdict.requests)
        deaths, deleted = deaths + verdict.deaths, deleted + verdict.deleted
    assert told.keys() >= {
        "full",
        "incremental",
        "none",
        "died",
        "InputError",
        "BadRequestError",
        "SparkError",
        "deleted files",
    }
    assert deaths > 0
    assert deleted > 0


@pytest.mark.parametrize("seeds", [2, long(10)])
def test_many_concurrent_refreshes_are_as_if_one_came_after_the_other(seeds: int) -> None:
    failed = {
        seed: verdict.violations[0]
        for seed in range(seeds)
        if (verdict := simulate_refreshes(seed, **CALM)).violations
    }
    assert not failed


@pytest.mark.long
def test_refreshes_of_many_seeds_are_clean() -> None:
    failed = {
        verdict.plan.seed: verdict.violations[0]
        for verdict in verdicts(range(SEEDS, LONG), os.cpu_count() or 1, simulate_refreshes)
        if verdict.violations
    }
    assert not failed, "replay with: python -m tests.simulation --refreshes --trace --seed N"
