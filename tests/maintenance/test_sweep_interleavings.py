"""Whatever others do at any step of a sweep, wherever they stand still meanwhile: nothing is lost that is needed."""

from __future__ import annotations

import pytest

from polaris_spark.errors import CorruptionError, TryAgainError
from polaris_spark.system.registry import References
from tests.commits.support import Add
from tests.maintenance.interleaving import GONE, MAIN, ME, SIDE, Action, Held, Merge, Place


def _replace(process: References) -> None:
    process.drop(SIDE, ME)
    process.create(SIDE, ME, source=process.read(MAIN))


def _fork_and_merge(process: References) -> None:
    process.create("third", ME, source=process.read(SIDE))
    process.commit("third", Add("third"))
    process.commit(MAIN, Merge("third", process))
    process.drop("third", ME)
    process.create("third", ME)


ACTIONS: dict[str, Action] = {
    "a write": lambda process: process.commit(MAIN, Add("main0" + "x" * 600)),
    "a branch": lambda process: process.create("branch", ME, source=process.read(MAIN)),
    "a merge": lambda process: process.commit(MAIN, Merge(SIDE, process)),
    "a drop": lambda process: process.drop(SIDE, ME),
    "an undrop": lambda process: process.undrop(GONE, ME),
    "a new reference of an old name": _replace,
    "a branch that is merged, dropped and replaced": _fork_and_merge,
}
LATER = 10**9


def _length(action: Action) -> int:
    """How many operations an action has."""
    place = Place()
    alone = Held(place.process(), action, 0)
    alone.begin()
    assert alone.error is None
    return alone.operations


def _sweep_steps() -> int:
    place = Place()
    sweeper, backend = place.process()
    steps = 0

    def counted() -> None:
        nonlocal steps
        steps += 1

    backend.step = counted
    place.sweep(sweeper)
    return steps


def _interleaved(
    action: Action, begins: int, stands: int, *, transactional: bool, meanwhile: bool, ends: int = LATER
) -> Held:
    """Run a sweep; before its n-th operation an action begins, and stands still before its own m-th until the sweep has
    ended, or comes to another step; time passes while it stands, and history is trimmed."""
    place = Place(transactional=transactional)
    other = Held(place.process(), action, stands)
    sweeper, backend = place.process()
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == begins:
            other.begin()
            if meanwhile:
                place.later()
        if steps == ends:
            other.end()

    backend.step = step
    try:
        place.sweep(sweeper)
    except TryAgainError:  # of what it began with, something was trimmed or given up meanwhile
        assert meanwhile
    place.check()
    backend.step = lambda: None
    other.end()
    place.check()
    place.sweep()
    place.check()
    return other


STRIDES = [pytest.param(17, id="some steps"), pytest.param(1, id="every step", marks=pytest.mark.long)]


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("transactional", [True, False], ids=["with transactions", "rows first, then swap"])
@pytest.mark.parametrize("stride", STRIDES)
def test_a_process_may_stand_still_across_a_sweep(name: str, transactional: bool, stride: int) -> None:
    action, steps = ACTIONS[name], _sweep_steps()
    for stands in range(1, _length(action) + 1):
        for begins in range(1 + stands % stride, steps + 1, stride):
            other = _interleaved(action, begins, stands, transactional=transactional, meanwhile=False)
            assert not isinstance(other.error, CorruptionError), other.error


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("stride", STRIDES)
def test_history_may_be_trimmed_while_a_process_stands_still(name: str, stride: int) -> None:
    action, steps = ACTIONS[name], _sweep_steps()
    for stands in range(1, _length(action) + 1):
        for begins in range(1 + stands % stride, steps + 1, stride):
            _interleaved(action, begins, stands, transactional=False, meanwhile=True)


@pytest.mark.parametrize("name", ACTIONS)
def test_anything_may_be_done_before_any_step(name: str) -> None:
    action, steps = ACTIONS[name], _sweep_steps()
    for begins in range(1, steps + 1):
        other = _interleaved(action, begins, 0, transactional=True, meanwhile=False)
        assert other.error is None, other.error
