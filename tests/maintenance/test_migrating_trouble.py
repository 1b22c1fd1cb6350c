"""Processes die or pause while a realm moves to another store. One of the two stores always has every acknowledged
commit."""

from __future__ import annotations

import contextlib
import random
import threading

import pytest

from polaris_spark.errors import (
    PolarisError,
    RealmStateError,
    TaskLostError,
    TryAgainError,
)
from polaris_spark.maintenance.migration import marks, steps
from polaris_spark.maintenance.migration.steps import PauseTooLongError, write_reference
from polaris_spark.store.references import ReferenceStore
from polaris_spark.system.realms import RealmState
from polaris_spark.system.registry import ROOT
from polaris_spark.testing.faults import ProcessDied
from polaris_spark.testing.schedules import Fault
from tests.commits.support import Add, number
from tests.maintenance.moving import DECIDED, DEV, MAIN, ME, AtChange, World, a_world
from tests.sizes import TIMES

pytestmark = pytest.mark.usefixtures("one_thread")


STRIDES = [pytest.param(3, id="some steps"), pytest.param(1, id="every step", marks=pytest.mark.long)]


@pytest.mark.parametrize("kind", ["dies before", "dies after"])
@pytest.mark.parametrize("aborts", [False, True])
@pytest.mark.parametrize("stride", STRIDES)
def test_a_process_that_dies_at_any_step(kind: str, aborts: bool, stride: int) -> None:
    seen = set()
    for n in range(1, 1_000, stride):
        world = a_world()
        schedule = AtChange(n, Fault(kind))  # type: ignore[arg-type]  # one of the kinds
        try:
            world.migrate(schedule)
        except ProcessDied:
            seen.add(world.states())
        went_on = world.writer.add(MAIN)
        if world.states()[1] is RealmState.ACTIVE:
            assert went_on or world.states()[0] is RealmState.ACTIVE
        if aborts and schedule.reached:
            try:
                world.abort()
            except RealmStateError:
                if world.states() != DECIDED:
                    world.migrate()
            else:
                assert world.writer.add(MAIN)
                assert world.states() in ((RealmState.ACTIVE, None), (RealmState.ACTIVE, RealmState.PURGING))
        elif world.states() != DECIDED:
            world.migrate()
        world.check()
        assert all(world.writer.add(name) for name in world.acknowledged)
        world.check()
        if not schedule.reached:
            break
    assert n > 30
    assert (RealmState.ACTIVE, RealmState.LOADING) in seen
    assert (RealmState.ACTIVE, RealmState.ACTIVE) in seen


@pytest.mark.parametrize("kind", ["busy", "lost", "unheard"])
@pytest.mark.parametrize("stride", STRIDES)
def test_trouble_of_a_database_at_any_step(kind: str, stride: int) -> None:
    for n in range(1, 1_000, stride):
        world = a_world()
        schedule = AtChange(n, Fault(kind))  # type: ignore[arg-type]  # one of the kinds
        world.migrate(schedule)
        assert world.states() == DECIDED
        world.check()
        if not schedule.reached:
            break
    assert n > 30


@pytest.mark.parametrize("other", ["finishes it", "aborts it"])
@pytest.mark.parametrize("stride", STRIDES)
def test_a_process_that_sleeps_while_another(other: str, stride: int) -> None:
    for n in range(1, 1_000, stride):
        world = a_world()

        def meanwhile(world: World = world) -> None:
            assert world.writer.add(MAIN) or world.states() != (RealmState.ACTIVE, None)
            if other == "finishes it":
                world.migrate()
            else:
                try:
                    world.abort()
                except RealmStateError:
                    return
            assert world.writer.add(MAIN)

        schedule = AtChange(n, then=meanwhile)
        with contextlib.suppress(PolarisError):
            world.migrate(schedule)
        world.check()
        assert world.writer.add(MAIN)
        assert world.writer.add(DEV)
        world.check()
        if not schedule.reached:
            break
    assert n > 30


def test_two_runs_of_which_each_sleeps_while_the_other_goes_on() -> None:
    rng = random.Random(2025)
    for _ in range(25 * TIMES):
        first, second = rng.randrange(1, 60), rng.randrange(1, 60)
        world = a_world()
        asleep, awake = threading.Event(), threading.Event()

        def sleep(asleep: threading.Event = asleep, awake: threading.Event = awake) -> None:
            asleep.set()
            assert awake.wait(60)

        def run(schedule: AtChange, world: World = world, asleep: threading.Event = asleep) -> None:
            with contextlib.suppress(PolarisError):
                world.migrate(schedule, verify=False)
            asleep.set()

        thread = threading.Thread(target=run, args=(AtChange(first, then=sleep),))

        def wake(
            world: World = world, awake: threading.Event = awake, thread: threading.Thread = thread
        ) -> None:
            world.writer.add(MAIN)
            awake.set()
            thread.join(60)
            world.writer.add(MAIN)

        thread.start()
        assert asleep.wait(60)
        world.writer.add(DEV)
        run(AtChange(second, then=wake))
        awake.set()
        thread.join(60)
        assert not thread.is_alive()
        if world.states() != DECIDED:
            world.migrate()
        world.check()
        assert world.writer.add(MAIN), (first, second)
        assert world.writer.add(DEV), (first, second)
        world.check()


def test_a_run_that_slept_never_writes_over_later_heads() -> None:
    world = a_world()
    held = marks.SourceRealm(world.source.realms, "r", world.here).heads()
    main = next(one for one in held if one.row_name.startswith(MAIN))
    assert world.writer.add(MAIN)
    world.migrate()
    there = world.references(world.process("target")).store
    later = there.backend.read_reference(there.realm, main.row_name)
    with pytest.raises(TaskLostError, match="by a later run"):
        write_reference(ReferenceStore(there.backend, there.realm), world.target.ids.next_id(), (main, later))
    world.check()


def test_a_writer_at_any_step() -> None:
    for n in range(1, 1_000):
        world = a_world()
        added: list[bool] = []

        def meanwhile(world: World = world, added: list[bool] = added) -> None:
            world.writer.create("new", MAIN) if world.writer.add(MAIN) else None
            added.append(world.writer.add(DEV))

        schedule = AtChange(n, then=meanwhile)
        world.migrate(schedule, max_pause_ms=60_000.0)
        assert world.states() == DECIDED
        world.check()
        assert all(world.writer.add(name) for name in world.acknowledged)
        world.check()
        if not schedule.reached:
            break
    assert n > 30


def test_commits_wait_in_the_pause_and_go_on_when_it_is_given_up() -> None:
    world = a_world()
    source = marks.SourceRealm(world.source.realms, "r", world.here)
    source.begin("memory:elsewhere", "1")
    source.pause("memory:elsewhere", "token")
    with pytest.raises(TryAgainError, match="being moved to memory:elsewhere"):
        world.here.commit(MAIN, Add("n"))
    assert number(world.here.open(MAIN), "n") == world.acknowledged[MAIN]  # reading goes on
    with pytest.raises(TryAgainError):
        world.here.create("new", ME)
    assert source.end_pause("another token")
    assert not world.writer.add(MAIN)
    assert source.end_pause("token")
    assert world.writer.add(MAIN)
    assert world.writer.add(DEV)
    world.check()


def test_a_switch_that_takes_too_long_is_given_up() -> None:
    world = a_world()
    with pytest.raises(PauseTooLongError, match="allow a longer pause"):
        world.migrate(max_pause_ms=-1.0)
    assert world.states() == (RealmState.ACTIVE, RealmState.LOADING)
    assert world.writer.add(MAIN)
    world.migrate()
    world.check()


def test_references_that_an_attempt_wrote_and_that_are_gone_by_the_next_leave_no_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = a_world()
    late = steps.Switch._write_references

    def too_long(switch: steps.Switch, heads: list[marks.Held]) -> None:
        late(switch, heads)
        raise PauseTooLongError("it took too long")

    with monkeypatch.context() as patched:
        patched.setattr(steps.Switch, "_write_references", too_long)
        with pytest.raises(PauseTooLongError):
            world.migrate()
    before = world.here.lookup("back")
    world.here.drop("back", ME)
    world.writer.create("back")
    world.migrate()
    target = world.process("target")
    there = world.references(target)
    listed = {one.row_name for one in there.listed()}
    rows = {
        name
        for (split,) in [target.backend.splits("references", [there.store.realm], 1)]
        for batch in target.backend.scan(split)
        for name in batch.column("name").to_pylist()
    }
    assert before is not None
    assert rows == listed | {ROOT}
    assert before.row_name not in rows
    world.check()


def test_an_attempt_that_was_ended_removes_no_rows_of_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run pauses before it reads the target's rows. Meanwhile another run writes its own rows and decides the
    switch."""
    world = a_world()
    remove, slept = steps.Switch._remove_others, []

    def sleeps(switch: steps.Switch, references: ReferenceStore, kept: set[str]) -> None:
        if not slept:
            slept.append(True)
            marks.SourceRealm(world.source.realms, "r", world.here).end_pause()
            world.writer.create("late", MAIN)
            assert world.writer.add("late")
            world.migrate()
        remove(switch, references, kept)

    monkeypatch.setattr(steps.Switch, "_remove_others", sleeps)
    world.migrate()  # it finds that the other one decided
    world.check()
    assert all(world.writer.add(name) for name in ("late", MAIN))
    world.check()
