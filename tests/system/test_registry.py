"""Commits on the registry create and drop references. A reference that is created again gets a new row."""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend
from polaris_spark.clock import SystemClock
from polaris_spark.commits.change import Operation
from polaris_spark.commits.log import entries
from polaris_spark.commits.rows import Move
from polaris_spark.commits.state import State
from polaris_spark.errors import (
    AlreadyExistsError,
    NotFoundError,
    OutcomeUnknownError,
    RealmMovedError,
    ReferenceGoneError,
    UnprocessableError,
)
from polaris_spark.system.leases import NodeLeases
from polaris_spark.system.registry import References
from polaris_spark.testing.processes import in_processes
from polaris_spark.testing.waiting import PATIENCE_S
from tests.commits.support import Add, number, references
from tests.stores import StoreOn, in_turn

ME = Operation(b"", "me")
NAME = "cat/1/heads/main"


class Two(NamedTuple):
    """Two processes that use one store."""

    backend: Backend
    one: References
    other: References

    def rows(self) -> list[str]:
        """Return the names of the rows of all generations of `NAME`."""
        listed = entries(self.one.store, self.one.root.read().head)
        generations = {entry.entity for _, _, _, entry in listed}
        names = [f"{NAME}@{generation:x}" for generation in generations]
        return [name for name in names if self.backend.read_reference("r", name) is not None]


@pytest.fixture(params=in_turn(ordinary=("memory", "sqlite")))
def two(request: pytest.FixtureRequest, store_on: StoreOn) -> Iterator[Two]:
    """A store, and two processes that use it."""
    backend = open_backend(store_on(request.param))
    yield Two(backend, references(backend, clock=SystemClock()), references(backend, clock=SystemClock()))
    backend.close()


class Died(BaseException):
    """Raised where the simulated process ends."""


def dying(references_: References, method: str) -> None:
    """Make a process die when it calls `method`."""

    def die(*_: object) -> None:
        raise Died

    setattr(references_, method, die)


def held(references_: References, name: str = "n") -> int:
    """Return the number at a name of the reference `NAME`."""
    references_.read(NAME)
    return number(references_.open(NAME), name)


def test_a_created_reference_is_found_by_every_process(two: Two) -> None:
    two.one.create(NAME, ME)
    two.one.commit(NAME, Add("n"))
    two.other.commit(NAME, Add("n"))
    assert held(two.one) == held(two.other) == 2


def test_a_reference_does_not_exist_before_it_is_created(two: Two) -> None:
    for use in (two.one.open, two.one.read):
        with pytest.raises(ReferenceGoneError):
            use(NAME)
    with pytest.raises(ReferenceGoneError):
        two.one.commit(NAME, Add("n"))
    assert two.one.lookup(NAME) is None


@pytest.mark.parametrize("end", ["dropped", "moved"])
def test_a_process_that_never_opened_a_dropped_reference_gets_the_answers_of_its_earlier_operations(
    two: Two, end: str
) -> None:
    two.one.create(NAME, ME)
    at = two.one.clock.now_ms()
    done, new, old = (
        Operation(made.to_bytes(6, "big") + b"\x70" + bytes(8) + bytes([n]), "me", b"d")
        for n, made in enumerate((at, at, at - 40 * 60_000))
    )
    two.one.commit(NAME, Add("n", operation=done))
    if end == "dropped":
        two.one.drop(NAME, ME)
    else:
        move = Move("elsewhere", "pause", done=True)
        for committer in (two.one.open(NAME), two.one.root):
            with pytest.raises(RealmMovedError):
                committer.amend(lambda head: msgspec.structs.replace(head, move=move))
    assert two.other.commit(NAME, Add("n", operation=done)) == 1
    for operation in (ME, new):
        with pytest.raises((ReferenceGoneError, RealmMovedError)):
            two.other.commit(NAME, Add("n", operation=operation))
    with pytest.raises(OutcomeUnknownError):
        two.other.commit(NAME, Add("n", operation=old))


def test_a_name_is_created_once(two: Two) -> None:
    two.one.create(NAME, ME)
    with pytest.raises(AlreadyExistsError):
        two.other.create(NAME, ME)


def test_a_reference_begins_where_its_source_stood(two: Two) -> None:
    two.one.create(NAME, ME)
    two.one.commit(NAME, Add("n"))
    two.one.create("branch", ME, source=two.one.read(NAME))
    two.one.commit(NAME, Add("n"))
    two.other.commit("branch", Add("n", 10))
    assert number(two.other.open("branch"), "n") == 11
    assert held(two.other) == 2
    assert two.other.read("branch").head.number == 2


def test_a_dropped_reference_raises_an_error_for_processes_that_have_it_open(two: Two) -> None:
    two.one.create(NAME, ME)
    committer = two.other.open(NAME)
    two.other.commit(NAME, Add("n"))
    two.one.drop(NAME, ME)
    with pytest.raises(ReferenceGoneError):
        committer.commit(Add("n"))
    for use in (two.other.read, two.other.open, lambda name: two.other.commit(name, Add("n"))):
        with pytest.raises(ReferenceGoneError):
            use(NAME)


def test_a_drop_of_a_missing_entity_is_refused(two: Two) -> None:
    with pytest.raises(NotFoundError):
        two.one.drop(NAME, ME)
    two.one.create(NAME, ME)
    two.one.drop(NAME, ME)
    with pytest.raises(NotFoundError):
        two.other.drop(NAME, ME)


def test_a_name_created_again_is_a_new_row_that_all_find(two: Two) -> None:
    two.one.create(NAME, ME)
    two.other.commit(NAME, Add("n", 5))
    stale = two.other.open(NAME)
    two.one.drop(NAME, ME)
    two.one.create(NAME, ME)
    assert two.other.commit(NAME, Add("n", 1)) == 1
    assert held(two.one) == held(two.other) == 1
    with pytest.raises(ReferenceGoneError):
        stale.commit(Add("n"))
    assert len(two.rows()) == 2


def test_a_name_that_is_dropped_and_created_again_more_than_once_is_found_all_the_same(two: Two) -> None:
    class Unlucky(Add):
        """A change whose reference is dropped and created again each time that it is prepared."""

        def prepare(self, view: State) -> None:
            if self.unlucky:
                self.unlucky -= 1
                two.one.drop(NAME, ME)
                two.one.create(NAME, ME)

        unlucky = 4

    two.one.create(NAME, ME)
    assert two.other.commit(NAME, Unlucky("n")) == 1
    assert held(two.one) == 1


def test_an_undropped_reference_has_all_that_was_committed(two: Two) -> None:
    two.one.create(NAME, ME)
    for _ in range(3):
        two.other.commit(NAME, Add("n"))
    before = two.other.read(NAME).head
    two.one.drop(NAME, ME)
    two.one.undrop(NAME, ME)
    after = two.other.read(NAME).head
    assert (after.commit, after.number, after.sealed) == (before.commit, before.number, False)
    assert two.other.commit(NAME, Add("n")) == 4
    assert len(two.rows()) == 2


def test_only_a_dropped_reference_is_undropped(two: Two) -> None:
    with pytest.raises(NotFoundError):
        two.one.undrop(NAME, ME)
    two.one.create(NAME, ME)
    with pytest.raises(NotFoundError):
        two.one.undrop(NAME, ME)


def test_a_reference_of_a_dead_creator_is_completed_by_the_next_process_that_reads_it(two: Two) -> None:
    dying(two.one, "_insert")
    with pytest.raises(Died):
        two.one.create(NAME, ME)
    assert two.rows() == []
    assert two.other.commit(NAME, Add("n")) == 1
    assert len(two.rows()) == 1


def test_a_reference_of_a_dead_creator_can_be_dropped(two: Two) -> None:
    dying(two.one, "_insert")
    with pytest.raises(Died):
        two.one.create(NAME, ME)
    two.other.drop(NAME, ME)
    with pytest.raises(ReferenceGoneError):
        two.other.open(NAME)
    third = references(two.backend, clock=SystemClock())
    third.create(NAME, ME)
    assert third.commit(NAME, Add("n")) == 1


def test_no_process_uses_the_old_row_after_its_dropper_died_and_the_name_was_created_again(two: Two) -> None:
    two.one.create(NAME, ME)
    two.other.commit(NAME, Add("n"))
    dying(two.one, "_seal")
    with pytest.raises(Died):
        two.one.drop(NAME, ME)
    third = references(two.backend, clock=SystemClock())
    third.create(NAME, ME)
    assert two.other.commit(NAME, Add("n", 7)) == 7
    assert held(third) == held(two.other) == 7


def test_a_drop_by_a_dead_process_is_completed_by_the_next_process(two: Two) -> None:
    two.one.create(NAME, ME)
    two.other.commit(NAME, Add("n"))
    dying(two.one, "_seal")
    with pytest.raises(Died):
        two.one.drop(NAME, ME)
    with pytest.raises(NotFoundError):
        references(two.backend, clock=SystemClock()).drop(NAME, ME)
    with pytest.raises(ReferenceGoneError):
        two.other.commit(NAME, Add("n"))


def test_an_undrop_after_a_dead_dropper_loses_no_commit(two: Two) -> None:
    two.one.create(NAME, ME)
    two.other.commit(NAME, Add("n"))
    dying(two.one, "_seal")
    with pytest.raises(Died):
        two.one.drop(NAME, ME)
    two.other.commit(NAME, Add("n"))
    third = references(two.backend, clock=SystemClock())
    third.undrop(NAME, ME)
    assert two.other.commit(NAME, Add("n")) == 3
    assert held(third) == 3


def test_each_birth_and_death_is_logged(two: Two) -> None:
    two.one.create(NAME, ME)
    two.one.drop(NAME, ME)
    two.one.undrop(NAME, ME)
    two.one.drop(NAME, ME)
    two.one.create(NAME, ME)
    log = [e for _, _, _, e in entries(two.one.store, two.one.root.read().head)][::-1]
    actions = [entry.action.removesuffix("-reference") for entry in log]
    assert actions == ["create", "drop", "undrop", "drop", "create"]
    assert {(entry.principal, entry.key) for entry in log} == {("me", NAME.encode())}
    assert [bool(entry.after) for entry in log] == [True, False, True, False, True]


def test_registrations_are_listed_live_and_dropped(two: Two) -> None:
    for name in ("a", "b"):
        two.one.create(name, ME)
    two.one.drop("a", ME)
    assert [(r.name, r.registration.state) for r in two.other.listed()] == [("a", "dropped"), ("b", "live")]


def test_an_operation_sent_again_is_done_once(two: Two) -> None:
    operation = Operation(two.one.clock.now_ms().to_bytes(6, "big") + os.urandom(10), "me", b"digest")
    first = two.one.create(NAME, operation)
    assert two.other.create(NAME, operation) == first
    with pytest.raises(UnprocessableError):
        two.other.create(NAME, operation._replace(digest=b"other"))


def test_a_name_that_others_dropped_meanwhile_can_be_created(two: Two) -> None:
    two.one.create(NAME, ME)
    two.other.root.read()
    two.one.drop(NAME, ME)
    two.other.create(NAME, ME)
    assert two.one.commit(NAME, Add("n")) == 1


def test_a_drop_sent_again_after_the_name_came_back_drops_nothing(two: Two) -> None:
    operation = Operation(two.one.clock.now_ms().to_bytes(6, "big") + os.urandom(10), "me", b"digest")
    two.one.create(NAME, ME)
    two.one.drop(NAME, operation)
    two.one.create(NAME, ME)
    two.other.drop(NAME, operation)
    assert [r.commit(NAME, Add("n")) for r in (two.one, two.other)] == [1, 2]


def raced(works: list[Callable[[], object]]) -> list[object]:
    """Call functions at the same time, and return their results or errors."""
    barrier = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> object:
        barrier.wait(60)
        try:
            return work()
        except (AlreadyExistsError, NotFoundError) as error:
            return error

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(run, works))


def test_of_racing_creators_one_wins_and_all_use_its_row(two: Two) -> None:
    for round in range(10):
        name = f"{NAME}{round}"
        results = raced([partial(r.create, name, ME) for r in (two.one, two.other) * 3])
        assert sum(isinstance(result, AlreadyExistsError) for result in results) == 5
        assert [r.commit(name, Add("n")) for r in (two.one, two.other)] == [1, 2]


def test_of_racing_undrops_one_wins(two: Two) -> None:
    two.one.create(NAME, ME)
    two.one.commit(NAME, Add("n"))
    two.one.drop(NAME, ME)
    results = raced([lambda r=r: r.undrop(NAME, ME) for r in (two.one, two.other) * 2])
    assert sum(isinstance(result, NotFoundError) for result in results) == 3
    assert held(two.one) == held(two.other) == 1


def test_racing_initialisers_make_one_registry(tmp_path: Path) -> None:
    backend = open_backend(f"memory:{uuid.uuid4()}")
    made = raced([lambda: references(backend, clock=SystemClock()) for _ in range(6)])
    for number_, found in enumerate(made):
        assert isinstance(found, References)
        found.create(f"n{number_}", ME)
    last = made[-1]
    assert isinstance(last, References)
    assert len(last.listed()) == 6


@pytest.mark.parametrize("seed", range(3))
def test_no_acknowledged_commit_is_lost_while_references_come_and_go(two: Two, seed: int) -> None:
    """Threads commit while others drop and restore references. In the end, all acknowledged commits exist."""
    print(f"seed {seed}")
    two.one.create(NAME, ME)
    acknowledged = []
    end = time.monotonic() + PATIENCE_S

    def committing(references_: References, thread: int) -> None:
        for i in range(25):
            while True:
                try:
                    references_.commit(NAME, Add(f"{thread}-{i}"))
                except ReferenceGoneError:
                    assert time.monotonic() < end, "it does not come back"
                    continue
                break
            acknowledged.append(f"{thread}-{i}")

    def churning() -> None:
        rng = random.Random(seed)
        for _ in range(8):
            (two.one if rng.random() < 0.5 else two.other).drop(NAME, ME)
            (two.one if rng.random() < 0.5 else two.other).undrop(NAME, ME)

    works = [lambda r=r, t=t: committing(r, t) for t, r in enumerate((two.one, two.other) * 2)]
    raced([*works, churning])
    assert len(acknowledged) == 100
    assert [name for name in acknowledged if held(two.one, name) != 1] == []


def opened(uri: str) -> References:
    """The references of a store that other processes use, too."""
    backend = open_backend(uri)
    backend.setup()
    return references(backend, clock=SystemClock(), leases=NodeLeases(backend, SystemClock()))


def _churn(uri: str, seed: int, n: int) -> int:
    """Create references, drop them, and commit, in another process. Return the number of acknowledged commits since the
    last drop."""
    rng, found = random.Random(seed), opened(uri)
    done = 0
    for _ in range(n):
        try:
            if rng.random() < 0.3:
                found.create(f"new/{rng.randrange(4)}", ME)
            elif rng.random() < 0.3:
                found.drop(f"new/{rng.randrange(4)}", ME)
            found.commit(NAME, Add("n"))
            done += 1
        except (AlreadyExistsError, NotFoundError, ReferenceGoneError):
            continue
    found.store.backend.close()
    return done


def test_processes_agree_on_what_lives(tmp_path: Path) -> None:
    uri = f"sqlite://{tmp_path / 'store.db'}"
    found = opened(uri)
    found.create(NAME, ME)
    done = in_processes(_churn, [(uri, seed, 30) for seed in (1, 2)])
    assert held(found) == sum(done)
    state = {}
    for _, _, _, entry in list(entries(found.store, found.root.read().head))[::-1]:
        state[entry.key.decode()] = "dropped" if entry.action.startswith("drop") else "live"
    assert {r.name: r.registration.state for r in found.listed()} == state
