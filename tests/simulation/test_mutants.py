"""The simulation catches a protocol that is broken, whichever way; and the same seeds are clean without that."""

from __future__ import annotations

import pytest

from tests.simulation import simulate
from tests.simulation.intent_mutants import INTENT_MUTANTS
from tests.simulation.mutants import MUTANTS, Mutant, broken
from tests.simulation.sweep_mutants import SWEEP_MUTANTS

ALL = {**MUTANTS, **INTENT_MUTANTS, **SWEEP_MUTANTS}


def seeds_to_catch(mutant: Mutant) -> int:
    """How many seeds it takes until one shows a violation; 0 if none of those allowed does."""
    for number in range(mutant.most):
        with broken(mutant):
            verdict = simulate(number, **mutant.plan)
        if verdict.violations:
            return number + 1
    return 0


@pytest.mark.long
@pytest.mark.parametrize("mutant", ALL.values(), ids=ALL)
def test_a_broken_protocol_is_caught(mutant: Mutant) -> None:
    needed = seeds_to_catch(mutant)
    assert needed
    for seed in range(needed):
        assert not simulate(seed, **mutant.plan).violations


def test_each_fault_can_still_be_put_in_place() -> None:
    for mutant in ALL.values():
        with broken(mutant):
            pass
