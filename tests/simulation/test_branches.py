"""Branches, merges, transactions and staging areas, with concurrent clients and faults: no token is lost, and a merge
is the union of both sides."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.simulation.__main__ import verdicts
from tests.simulation.branches.actors import REFUSALS
from tests.simulation.branches.scenario import simulate_branches
from tests.simulation.refreshes.mutants import CALM
from tests.sizes import TIMES, long

SEEDS = 40
LONG = 200 * TIMES


def test_branches_have_what_was_written_and_merged() -> None:
    told: Counter[str] = Counter()
    deaths = deleted = 0
    for seed in range(SEEDS):
        verdict = simulate_branches(seed)
        assert not verdict.violations, (
            f"replay with: python -m tests.simulation --branches --trace --seed {seed}"
        )
        told.update(verdict.requests)
        deaths, deleted = deaths + verdict.deaths, deleted + verdict.deleted
    assert not [action for action in REFUSALS if not told[f"{action} done"]], told
    assert deaths > 0
    assert deleted > 0


@pytest.mark.parametrize("seeds", [5, long(20)])
def test_many_concurrent_merges_have_no_false_conflicts(seeds: int) -> None:
    failed = {
        seed: verdict.violations[0]
        for seed in range(seeds)
        if (verdict := simulate_branches(seed, **CALM)).violations
    }
    assert not failed


@pytest.mark.long
def test_branches_of_many_seeds_are_clean() -> None:
    failed = {
        verdict.plan.seed: verdict.violations[0]
        for verdict in verdicts(range(SEEDS, LONG), os.cpu_count() or 1, simulate_branches)
        if verdict.violations
    }
    assert not failed, "replay with: python -m tests.simulation --branches --trace --seed N"
