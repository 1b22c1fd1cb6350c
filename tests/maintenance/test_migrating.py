"""A realm moves to another store with all its commits."""

from __future__ import annotations

import msgspec
import pytest

from polaris_spark.backends.base import ObjectKey, ObjectRow
from polaris_spark.commits.log import commits, entries
from polaris_spark.commits.state import State
from polaris_spark.errors import (
    CorruptionError,
    RealmMovedError,
    RealmStateError,
    StateError,
)
from polaris_spark.index import Entry
from polaris_spark.maintenance.migration import marks
from polaris_spark.maintenance.migration.steps import PauseTooLongError
from polaris_spark.maintenance.realm_purge import Purge
from polaris_spark.objects import rows_of
from polaris_spark.system.features import ALL_FEATURES
from polaris_spark.system.realms import FIRST_FORMAT, REALM_FORMAT, RealmState
from polaris_spark.system.registry import ROOT
from tests.commits.support import Add, number
from tests.maintenance.moving import DECIDED, DEV, MAIN, ME, World, a_world

pytestmark = pytest.mark.usefixtures("one_thread")


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
    """Rows of an object of two parts, and of an object to which it points. No program here knows their type."""
    world.here.read(MAIN)  # as every change does: ids are above its fence then
    opaque, further = world.here.ids.next_ids(2)
    header = b"\x93\xa7unknown\x05\x91\xcf" + further.to_bytes(8, "big")  # type, revision, strong pointers
    leaf = b"\x92\xa7unknown\x05"
    data = b"\x01\x00\x02" + len(header).to_bytes(4, "big") + header + b"?" * 400_000
    return [*rows_of(opaque, data), *rows_of(further, b"\x01\x00\x01" + len(leaf).to_bytes(4, "big") + leaf)]


@pytest.mark.parametrize("when", ["copying rows", "comparing rows"])
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


def test_a_realm_is_upgraded_during_a_migration() -> None:
    """Releases without the features must refuse the realm in the target, too."""
    world = a_world()
    realms = world.source.realms
    found = realms._read(world.record.name)
    assert found is not None
    earlier = msgspec.structs.replace(found.value, format=FIRST_FORMAT, features={}, revisions={"table": 1})
    assert realms._replace(found, earlier)

    def between(doing: str, done: int, total: int) -> None:
        if doing == "comparing rows":
            realms.upgrade(world.record.name, {"table": 2})

    world.migrate(watch=between)
    moved = world.process("target").realms.active(world.record.name)
    assert (moved.format, moved.features, moved.revisions) == (REALM_FORMAT, ALL_FEATURES, {"table": 2})


def test_references_are_created_and_dropped_during_a_migration() -> None:
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
    comparing = ["comparing rows", "reading rows that differ", "comparing objects"]
    assert happened == ["copying rows", "catching up", *comparing, "switching"]
    assert world.acknowledged["back"] == 1
    world.check()
    assert all(world.writer.add(name) for name in world.acknowledged)
    world.check()


def test_rows_that_were_altered_during_the_copy_are_found() -> None:
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


def test_rows_that_are_missing_after_the_move_are_found() -> None:
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


def test_a_migration_that_is_decided_is_not_aborted_and_says_how_to_go_on() -> None:
    world = a_world()
    migration = world.migration().run()
    while next(migration).name != "switch":
        pass
    with pytest.raises(RealmStateError, match="cannot be undone; run the migration again to finish it"):
        world.abort()
    for _ in migration:
        pass
    with pytest.raises(RealmStateError, match="cannot be undone; open it there"):
        world.abort()
    with pytest.raises(RealmMovedError, match=r"was moved to .*: open it there"):
        world.migrate()


def test_the_target_of_a_migration_is_purged_only_after_it_is_aborted() -> None:
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


@pytest.mark.parametrize("committed", [True, False])
def test_a_missing_row_moves_only_where_nothing_was_committed_to_it(committed: bool) -> None:
    world = a_world()
    world.writer.create("new", MAIN)
    lost = world.here.lookup(MAIN if committed else "new")
    assert lost is not None
    realm = world.record.instance
    row = world.inner["source"].read_reference(realm, lost.row_name)
    assert row is not None
    world.inner["source"].delete_reference(realm, lost.row_name, row.version)
    if committed:
        with pytest.raises(CorruptionError, match=r"run (polaris-spark )?recover"):
            world.migrate()
        assert world.states()[0] is RealmState.ACTIVE
        assert world.inner["source"].read_reference(realm, lost.row_name) is None
    else:
        world.migrate()
        assert world.states() == DECIDED
        assert world.writer.add("new")
        world.check()


def test_targets_that_cannot_be_used() -> None:
    world = a_world()
    world.target.realm("r", create=True, initialize=lambda found: found.initialize())
    with pytest.raises(RealmStateError, match=r"already has a realm 'r' \(state ACTIVE\)"):
        world.migrate()
    assert world.writer.add(MAIN)
    other = a_world()
    elsewhere = World()
    with pytest.raises(PauseTooLongError):
        other.migrate(max_pause_ms=-1.0)
    other.inner["target"], other.uris["target"] = elsewhere.inner["source"], elsewhere.uris["source"]
    with pytest.raises(RealmStateError, match=r"\(state ACTIVE\)"):
        other.migrate()
    other.inner["target"], other.uris["target"] = elsewhere.inner["target"], elsewhere.uris["target"]
    with pytest.raises(RealmStateError, match=r"is already being moved to memory:moving-"):
        other.migrate()
    assert other.writer.add(MAIN)


def test_open_sessions_learn_where_the_realm_is() -> None:
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


def test_history_below_the_floor_is_not_copied() -> None:
    world = a_world()
    head = world.here.read(MAIN).head
    for name in (MAIN, DEV, "back", ROOT):
        committer = world.here.root if name == ROOT else world.here.open(name)
        newest = next(iter(commits(world.here.store, committer.read().head)))[1]
        committer.amend(lambda h, c=newest: marks.upkeep.raise_floor(h, c))  # type: ignore[misc]
    world.migrate()
    there = world.references(world.process("target")).read(MAIN).head
    assert there.floor_number == there.number == head.number
