"""Other processes act at any step of a sweep, and pause at any of their own steps. Nothing that is needed is lost."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from polaris_spark.errors import CorruptionError, TryAgainError
from polaris_spark.maintenance import sweep_roots
from polaris_spark.system import registry_changes
from polaris_spark.system.registry import References
from tests.commits.support import Add
from tests.maintenance.interleaving import BRIEF, GONE, GRACE, MAIN, ME, SIDE, Action, Held, Merge, Place
from tests.simulation.mutants import Mutant, Patch, broken


def _replace(process: References) -> None:
    process.drop(SIDE, ME)
    process.create(SIDE, ME, source=process.read(MAIN))


def _fork_and_merge(process: References) -> None:
    process.create("third", ME, source=process.read(SIDE))
    process.commit("third", Add("third"))
    process.commit(MAIN, Merge("third", process))
    process.drop("third", ME)
    process.create("third", ME)


def _branch_and_commit(process: References) -> None:
    process.create("third", ME, source=process.read(SIDE))
    process.commit("third", Add("third"))


UNDROP = "an undrop"
ACTIONS: dict[str, Action] = {
    "a write": lambda process: process.commit(MAIN, Add("main0" + "x" * 600)),
    "a branch": lambda process: process.create("branch", ME, source=process.read(MAIN)),
    "a merge": lambda process: process.commit(MAIN, Merge(SIDE, process)),
    "a drop": lambda process: process.drop(SIDE, ME),
    UNDROP: lambda process: process.undrop(GONE, ME),
    "a new reference of an old name": _replace,
    "a branch with a commit": _branch_and_commit,
    "a branch that is merged, dropped and replaced": _fork_and_merge,
}


def _length(action: Action) -> int:
    """Return the number of database operations of an action."""
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


def _interleaved(name: str, begins: int, stands: int, *, transactional: bool, meanwhile: bool) -> Held:
    """Run a sweep; before its n-th operation an action begins, and stands still before its own m-th until the sweep has
    ended. What it writes is older than grace at once. If `meanwhile`, time passes while it stands, others write, and
    history is trimmed."""
    place = Place(transactional=transactional, dropped=name == UNDROP)
    process = place.process(place.behind)
    process[0].ids.next_id()
    other = Held(process, ACTIONS[name], stands)
    sweeper, backend = place.process()
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == begins:
            other.begin()
            if meanwhile:
                place.later()

    backend.step = step
    try:
        place.sweep(sweeper, grace_ms=GRACE if name == UNDROP else BRIEF)
    except TryAgainError:  # of what it began with, something was trimmed or given up meanwhile
        assert meanwhile
    place.check()
    backend.step = lambda: None
    other.end()
    place.check()
    place.sweep()
    place.check()
    return other


STRIDES = [
    pytest.param(41, id="some steps"),
    pytest.param(9, id="every ninth step", marks=pytest.mark.long),
    pytest.param(1, id="every step", marks=pytest.mark.exhaustive),
]


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("transactional", [True, False], ids=["with transactions", "rows first, then swap"])
@pytest.mark.parametrize("stride", STRIDES)
def test_a_process_may_stand_still_across_a_sweep(name: str, transactional: bool, stride: int) -> None:
    steps = _sweep_steps()
    for stands in range(1, _length(ACTIONS[name]) + 1):
        for begins in range(1 + stands % stride, steps + 1, stride):
            other = _interleaved(name, begins, stands, transactional=transactional, meanwhile=False)
            assert not isinstance(other.error, CorruptionError), other.error


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("stride", STRIDES)
def test_history_may_be_trimmed_while_a_process_stands_still(name: str, stride: int) -> None:
    steps = _sweep_steps()
    for stands in range(1, _length(ACTIONS[name]) + 1):
        for begins in range(1 + stands % stride, steps + 1, stride):
            _interleaved(name, begins, stands, transactional=False, meanwhile=True)


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("stride", STRIDES)
def test_anything_may_be_done_before_any_step(name: str, stride: int) -> None:
    steps = _sweep_steps()
    for begins in range(1, steps + 1, min(stride, 5)):
        other = _interleaved(name, begins, 0, transactional=True, meanwhile=False)
        assert other.error is None, other.error


class Broken(NamedTuple):
    """A fault in a sweep, or in an action that a sweep meets, and the action that suffers."""

    method: str
    old: str
    new: str
    action: str
    meanwhile: bool
    owner: Any = sweep_roots._Fencing
    """Class or module of the method."""


BROKEN = {
    "no reference is fenced": Broken(
        "_close", "references.fence(registered.row_name)", "pass", "a write", meanwhile=False
    ),
    "the registry is not fenced": Broken("run", "references.fence(ROOT)", "pass", "a branch", meanwhile=True),
    "references that are born meanwhile are overlooked": Broken(
        "run", "born = self._born(after)", "born = []", "a branch with a commit", meanwhile=False
    ),
    "roots begin at the floors of the end": Broken(
        "roots", "head, floor)", "head, head.floor_number)", "a branch", meanwhile=True
    ),
    "the source of a branch is read before the registry": Broken(
        "head_in",
        "fresh = references.read(name)",
        "fresh = source",
        "a branch",
        meanwhile=True,
        owner=registry_changes,
    ),
}


def _loses(name: str, *, meanwhile: bool) -> bool:
    """Whether some run loses data. In each run, an action begins at one step of a sweep, and pauses late at one of its
    own."""
    length, steps = _length(ACTIONS[name]), _sweep_steps()
    for stands in range(length, length // 4, -1):
        for begins in range(1, steps + 1):
            try:
                other = _interleaved(name, begins, stands, transactional=False, meanwhile=meanwhile)
            except (AssertionError, CorruptionError):
                return True
            if isinstance(other.error, CorruptionError) and not meanwhile:
                return True
    return False


@pytest.mark.long
@pytest.mark.parametrize("broken_one", BROKEN.values(), ids=BROKEN)
def test_a_broken_sweep_loses_something(broken_one: Broken) -> None:
    patch = Patch(broken_one.owner, broken_one.method, broken_one.old, broken_one.new)
    with broken(Mutant((patch,))):
        assert _loses(broken_one.action, meanwhile=broken_one.meanwhile)
