"""The simulation detects every broken protocol, and the seed that shows it has no violation without the fault."""

from __future__ import annotations

import pytest

from tests.simulation import simulate
from tests.simulation.branches.mutants import BRANCH_MUTANTS
from tests.simulation.branches.scenario import simulate_branches
from tests.simulation.intent_mutants import INTENT_MUTANTS
from tests.simulation.mutants import MUTANTS, Mutant, broken
from tests.simulation.refreshes.mutants import REFRESH_MUTANTS
from tests.simulation.refreshes.scenario import simulate_refreshes
from tests.simulation.run import Verdict
from tests.simulation.sweep_mutants import SWEEP_MUTANTS

ALL = {**MUTANTS, **INTENT_MUTANTS, **SWEEP_MUTANTS, **REFRESH_MUTANTS, **BRANCH_MUTANTS}


def simulated(name: str, seed: int) -> Verdict:
    """Return the verdict of a seed, in the plan of a mutant."""
    run = simulate_refreshes if name in REFRESH_MUTANTS else simulate
    return (simulate_branches if name in BRANCH_MUTANTS else run)(seed, **ALL[name].plan)


def catching_seed(name: str, mutant: Mutant) -> int | None:
    """Return the first seed that shows a violation; None if no allowed seed does."""
    with broken(mutant):
        seeds = range(mutant.first, mutant.first + mutant.most)
        return next((seed for seed in seeds if simulated(name, seed).violations), None)


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_a_broken_protocol_is_caught(name: str) -> None:
    seed = catching_seed(name, ALL[name])
    assert seed is not None
    assert not simulated(name, seed).violations


def test_each_fault_can_still_be_put_in_place() -> None:
    for mutant in ALL.values():
        with broken(mutant):
            pass
