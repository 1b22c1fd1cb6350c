"""A realm moves to another store, and whoever dies or sleeps meanwhile, one of them serves, with every commit."""

from __future__ import annotations

import contextlib
import random
import threading

import pytest

from polaris_spark.backends.base import ObjectKey, ObjectRow
from polaris_spark.commits.log import commits, entries
from polaris_spark.commits.state import State
from polaris_spark.errors import (
    PolarisError,
    RealmMovedError,
    RealmStateError,
    StateError,
    TaskLostError,
    TryAgainError,
)
from polaris_spark.index import Entry
from polaris_spark.maintenance.migrating import marks, steps
from polaris_spark.maintenance.migrating.steps import PauseTooLongError, write_reference
from polaris_spark.maintenance.purging import Purge
from polaris_spark.objects import rows_of
from polaris_spark.store.references import ReferenceStore
from polaris_spark.system.realms import RealmState
from polaris_spark.system.registry import ROOT
from polaris_spark.testing.faults import ProcessDied
from polaris_spark.testing.schedules import Fault
from tests.commits.support import Add, number
from tests.maintenance.moving import DEV, MAIN, ME, AtChange, World

DECIDED = (RealmState.INACTIVE, RealmState.ACTIVE)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Things happen in the same order each time."""
    monkeypatch.setattr(marks, "_THREADS", 1)


def a_world() -> World:
    """Two references with some history, one that forked and was dropped, and one that came back."""
    world = World()
    world.writer.create(MAIN)
    for _ in range(25):
        world.writer.add(MAIN)
    world.writer.create(DEV, MAIN)
    for name in (DEV, MAIN, DEV):
        world.writer.add(name)
    for name in ("gone", "back"):
        world.writer.create(name, MAIN)
        world.writer.add(name)
        world.here.drop(name, ME)
    world.here.undrop("back", ME)
    del world.acknowledged["gone"]
    return world


def test_a_realm_moves_with_its_history() -> None:
    world = a_world()
    before = {
        name: list(entries(world.here.store, world.here.read(name).head)) for name in (MAIN, DEV, "back")
    }
    gone = world.here.lookup("gone")
    steps = {step.name: step for step in world.migrate()}
    assert world.states() == DECIDED
    assert steps["verify"].different == 0
    assert steps["verify"].rows > 100
    there = world.references(world.process("target"))
    for name, listed in before.items():
        assert list(entries(there.store, there.read(name).head)) == listed
    assert there.lookup("gone") == gone
    there.undrop("gone", ME)
    assert number(there.open("gone"), "n") == 27
    assert world.writer.add(MAIN)
    world.check()


def test_ids_made_in_the_target_are_above_all_that_were_copied() -> None:
    world = a_world()
    far_ahead = world.source.ids.next_id() + (1 << 40)
    world.inner["source"].write_objects(
        world.record.instance, [ObjectRow(far_ahead, 0, b"left by an attempt")]
    )
    other = world.process("target")
    assert other.ids.next_id() < far_ahead  # it leased its node long before
    world.migrate()
    assert world.references(other).open(MAIN).commit(Add("n")) == 27
    head = world.references(other).read(MAIN).head
    assert head.commit > far_ahead
    assert head.fence > far_ahead


def unknown(world: World) -> list[ObjectRow]:
    """Rows of an object of two parts, and of one that it points to, of a type that no program here knows."""
    world.here.read(MAIN)  # as every change does: ids are above its fence then
    opaque, further = world.here.ids.next_ids(2)
    header = b"\x93\xa7unknown\x05\x91\xcf" + further.to_bytes(8, "big")  # type, revision, strong pointers
    leaf = b"\x92\xa7unknown\x05"
    data = b"\x01\x00\x02" + len(header).to_bytes(4, "big") + header + b"?" * 400_000
    return [*rows_of(opaque, data), *rows_of(further, b"\x01\x00\x01" + len(leaf).to_bytes(4, "big") + leaf)]


@pytest.mark.parametrize("when", ["copying rows", "comparing objects"])
def test_objects_of_unknown_types_go_along(when: str) -> None:
    world = a_world()
    rows: list[ObjectRow] = []

    class Point(Add):
        def apply(self, state: State, prepared: object) -> int:
            state.put("names", b"opaque", Entry(rows[0].id))
            return super().apply(state, prepared)

    def between(doing: str, done: int, total: int) -> None:
        if doing == when and not rows:
            rows.extend(unknown(world))
            world.inner["source"].write_objects(world.record.instance, rows)
            world.here.commit(MAIN, Point("n"))

    steps = world.migrate(watch=between)
    assert [row.part for row in rows] == [0, 1, 0]
    instance = world.references(world.process("target")).store.realm
    keys = [ObjectKey(row.id, row.part) for row in rows]
    found = world.inner["target"].read_objects(instance, keys)
    assert [found[key] for key in keys] == [row.value for row in rows]
    assert steps[-1].different == 0


def test_references_that_come_and_go_meanwhile() -> None:
    world = a_world()
    happened: list[str] = []

    def between(doing: str, done: int, total: int) -> None:
        if doing in happened:
            return
        happened.append(doing)
        name = f"new while {doing}"
        world.writer.create(name, DEV)
        assert world.writer.add(name)
        assert world.writer.add(MAIN)
        if doing == "catching up":
            world.here.drop("back", ME)
            del world.acknowledged["back"]
            world.writer.create("back")
            assert world.writer.add("back")

    world.migrate(watch=between)
    assert happened == ["copying rows", "catching up", "comparing objects", "switching"]
    assert world.acknowledged["back"] == 1
    world.check()
    assert all(world.writer.add(name) for name in world.acknowledged)
    world.check()


@pytest.mark.parametrize("kind", ["dies before", "dies after"])
@pytest.mark.parametrize("aborts", [False, True])
def test_a_process_that_dies_at_any_step(kind: str, aborts: bool) -> None:
    seen = set()
    for n in range(1, 1_000):
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
def test_trouble_of_a_database_at_any_step(kind: str) -> None:
    for n in range(1, 1_000):
        world = a_world()
        schedule = AtChange(n, Fault(kind))  # type: ignore[arg-type]  # one of the kinds
        world.migrate(schedule)
        assert world.states() == DECIDED
        world.check()
        if not schedule.reached:
            break
    assert n > 30


@pytest.mark.parametrize("other", ["finishes it", "aborts it"])
def test_a_process_that_sleeps_while_another(other: str) -> None:
    for n in range(1, 1_000):
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
    for _ in range(60):
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
    """It sleeps before it looks at the target's rows, while another run writes its own and decides."""
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


def test_what_was_altered_on_the_way_is_found() -> None:
    world = a_world()
    head = world.here.read(MAIN).head

    migration = world.migration().run()
    while next(migration).name != "catch up 1":
        pass
    instance = world.process("target").realms.find("r").instance  # type: ignore[union-attr]  # it is there
    world.inner["target"]._tables.objects[instance][head.commit, 0] = b"another"  # type: ignore[attr-defined]
    with pytest.raises(StateError, match=f"object {head.commit}/0 is altered"):
        next(migration)
    assert world.states() == (RealmState.ACTIVE, RealmState.LOADING)
    assert world.writer.add(MAIN)
    world.abort()
    assert world.writer.add(MAIN)
    world.check()


def test_what_is_missing_afterwards_is_found() -> None:
    world = a_world()
    head = world.here.read(DEV).head
    row = world.here.lookup(DEV).row_name  # type: ignore[union-attr]
    migration = world.migration()
    lost = []
    for step in migration.run():
        if step.name == "switch":
            instance = world.process("target").realms.find("r").instance  # type: ignore[union-attr]
            tables = world.inner["target"]._tables  # type: ignore[attr-defined]
            del tables.objects[instance][head.commit, 0]
            del tables.references[instance][row]
        lost = list(step.differences)
    assert {(one.what, one.key, one.found) for one in lost} == {
        ("object", f"{head.commit}/0", "missing"),
        ("reference", row, "missing"),
    }


def test_what_a_migration_fills_is_purged_only_once_it_is_aborted() -> None:
    world = a_world()
    with pytest.raises(PauseTooLongError):
        world.migrate(max_pause_ms=-1.0)
    purge = Purge(world.process("target").backend, world.clock)
    with pytest.raises(RealmStateError, match=r"is being moved here from .*: abort the migration first"):
        purge.realm("r")
    assert world.states() == (RealmState.ACTIVE, RealmState.LOADING)
    world.abort()
    assert purge.realm("r").deleted
    with pytest.raises(PauseTooLongError):
        world.migrate(max_pause_ms=-1.0)
    assert purge.realm("r", deactivate=True).deleted
    assert world.writer.add(MAIN)


def test_targets_that_cannot_be_used() -> None:
    world = a_world()
    world.target.realm("r", create=True, initialise=lambda found: found.initialize())
    with pytest.raises(RealmStateError, match="has a realm 'r' already, which is ACTIVE"):
        world.migrate()
    assert world.writer.add(MAIN)
    other = a_world()
    elsewhere = World()
    with pytest.raises(PauseTooLongError):
        other.migrate(max_pause_ms=-1.0)
    other.inner["target"], other.uris["target"] = elsewhere.inner["source"], elsewhere.uris["source"]
    with pytest.raises(RealmStateError, match="already, which is ACTIVE"):
        other.migrate()
    other.inner["target"], other.uris["target"] = elsewhere.inner["target"], elsewhere.uris["target"]
    with pytest.raises(RealmStateError, match=r"is being moved to memory:moving-.* already"):
        other.migrate()
    assert other.writer.add(MAIN)


def test_those_who_had_the_realm_open_are_told_where_it_is() -> None:
    world = a_world()
    world.migrate()
    where = str(world.uris["target"])
    with pytest.raises(RealmMovedError, match=where):
        world.here.commit(MAIN, Add("n"))
    with pytest.raises(RealmMovedError, match=where):
        world.here.read(MAIN)
    with pytest.raises(RealmMovedError, match=where):
        world.source.realms.active("r")
    with pytest.raises(RealmMovedError, match=where):
        world.source.realms.move("r", RealmState.ACTIVE)
    record = world.target.realms.active("r")
    assert record.properties == {"moved-from": str(world.uris["source"])}


def test_history_below_the_floor_stays_behind() -> None:
    world = a_world()
    head = world.here.read(MAIN).head
    for name in (MAIN, DEV, "back", ROOT):
        committer = world.here.root if name == ROOT else world.here.open(name)
        newest = next(iter(commits(world.here.store, committer.read().head)))[1]
        committer.amend(lambda h, c=newest: marks.upkeep.raise_floor(h, c))  # type: ignore[misc]
    world.migrate()
    there = world.references(world.process("target")).read(MAIN).head
    assert there.floor_number == there.number == head.number
