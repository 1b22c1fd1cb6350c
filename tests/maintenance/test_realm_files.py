"""A realm is exported to a file as it was at one instant, and imported with every commit."""

from __future__ import annotations

import copy
import errno
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from polaris_spark.backends.base import ObjectRow
from polaris_spark.commits.log import entries
from polaris_spark.errors import (
    CorruptionError,
    InputError,
    NewerFormatError,
    PolarisError,
    RealmMovedError,
    RealmStateError,
    SourceError,
    TaskLostError,
    TryAgainError,
)
from polaris_spark.maintenance.migration.copy import rows_of_batch
from polaris_spark.maintenance.realm_file import exporter, layout
from polaris_spark.maintenance.realm_file.exporter import Export, Exported
from polaris_spark.maintenance.realm_file.importer import Import
from polaris_spark.maintenance.realm_file.layout import RealmFile, Writer
from polaris_spark.maintenance.realm_purge import Purge
from polaris_spark.system.realms import RealmRecord, RealmState
from tests.commits.support import Add, number
from tests.maintenance.moving import DEV, MAIN, ME, World, a_world
from tests.maintenance.realm_files import contents

pytestmark = pytest.mark.usefixtures("one_thread")

Watch = Callable[[str, int, int], None]


def ignore(doing: str, done: int, total: int) -> None:
    """Nobody watches the progress."""


def export(world: World, path: Path, watch: Watch = ignore) -> Exported:
    return Export(world.process("source"), "r", "test", watch).write(path)


def load(world: World, path: Path, watch: Watch = ignore, name: str = "r") -> RealmRecord:
    with RealmFile(path) as file:
        return Import(world.process("target"), file, name, watch).run()


def once(when: str, then: Callable[[], object]) -> Watch:
    """Something that happens at the first report of a step."""
    happened: list[str] = []

    def watch(doing: str, done: int, total: int) -> None:
        if doing == when and not happened:
            happened.append(doing)
            then()

    return watch


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "r.realm"


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files have several blocks of each kind."""
    monkeypatch.setattr(layout, "_OBJECT_ROWS", 7)
    monkeypatch.setattr(layout, "_REFERENCES_TOGETHER", 2)


def test_a_realm_is_imported_with_its_history(file: Path) -> None:
    world = a_world()
    before = {
        name: list(entries(world.here.store, world.here.read(name).head)) for name in (MAIN, DEV, "back")
    }
    gone = world.here.lookup("gone")
    done = export(world, file)
    record = load(world, file)
    assert (record.state, record.name) == (RealmState.ACTIVE, "r")
    assert record.instance != world.record.instance
    assert set(record.properties) == {"imported-from"}
    assert record.properties["imported-from"].startswith(f"r {world.record.instance} ")
    assert record.revisions == world.record.revisions
    there = world.references(world.process("target"))
    for name, listed in before.items():
        assert list(entries(there.store, there.read(name).head)) == listed
    assert there.lookup("gone") == gone
    there.undrop("gone", ME)
    assert number(there.open("gone"), "n") == 27
    assert there.open(MAIN).commit(Add("n")) == 27
    head = there.read(MAIN).head
    assert min(head.commit, head.fence) > done.trailer.highest
    assert world.writer.add(MAIN)  # the realm that was exported is not affected
    assert done.attempts == 1
    assert file.stat().st_size == done.bytes
    assert file.stat().st_mode & 0o077 == 0
    assert [one.name for one in file.parent.iterdir()] == [file.name]


def test_an_export_writes_nothing_to_the_store(file: Path) -> None:
    world = a_world()
    tables = world.inner["source"]._tables  # type: ignore[attr-defined]  # of a memory store
    before = copy.deepcopy((tables.objects, tables.references))
    export(world, file)
    assert (tables.objects, tables.references) == before


def test_only_what_references_need_is_exported(file: Path) -> None:
    world = a_world()
    left = world.source.ids.next_id()
    world.inner["source"].write_objects(world.record.instance, [ObjectRow(left, 0, b"left by an attempt")])
    done = export(world, file)
    load(world, file)
    instance = world.references(world.process("target")).store.realm
    backend = world.inner["target"]
    [split] = backend.splits("objects", [instance], 1)
    rows = [row for batch in backend.scan(split) for row in rows_of_batch(batch)]
    assert len(rows) == done.trailer.rows
    assert left not in {row.id for row in rows}


def test_a_realm_can_get_another_name_and_be_exported_again(file: Path, tmp_path: Path) -> None:
    world = a_world()
    export(world, file)
    load(world, file, name="renamed")
    again = tmp_path / "again.realm"
    Export(world.process("target"), "renamed", "test").write(again)
    assert contents(again) == contents(file)


def test_an_inactive_realm_is_exported(file: Path) -> None:
    world = a_world()
    world.source.realms.move("r", RealmState.INACTIVE)
    export(world, file)
    assert load(world, file).state is RealmState.ACTIVE


def test_properties_that_are_secrets_or_belong_to_the_store_are_not_exported(file: Path) -> None:
    world = a_world()
    given = {"kept": "yes", "password": "hunter2", "moving-to": "x", "imported-from": "elsewhere"}
    world.source.realms.describe("r", lambda _: given, instance=world.record.instance)
    assert export(world, file).header.properties == {"kept": "yes"}
    assert load(world, file).properties["kept"] == "yes"


# One instant


def test_heads_are_those_of_one_instant(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = a_world()
    read, left = exporter.SourceRealm.heads, [3]

    def heads(self: exporter.SourceRealm) -> list[exporter.Held]:
        found = read(self)
        if left[0]:
            left[0] -= 1
            assert world.writer.add(MAIN)  # after the heads were read, and before they are read again
            assert world.writer.add(DEV)
        return found

    monkeypatch.setattr(exporter.SourceRealm, "heads", heads)
    before = dict(world.acknowledged)
    export(world, file)
    load(world, file)
    there = world.references(world.process("target"))
    found = {name: number(there.open(name), "n") for name in (MAIN, DEV)}
    assert found == {name: before[name] + 3 for name in (MAIN, DEV)}


def test_a_realm_that_never_rests_is_not_exported(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = a_world()
    read = exporter.SourceRealm.heads

    def heads(self: exporter.SourceRealm) -> list[exporter.Held]:
        found = read(self)
        assert world.writer.add(MAIN)
        world.clock.advance(10_000)
        return found

    monkeypatch.setattr(exporter.SourceRealm, "heads", heads)
    with pytest.raises(TryAgainError, match="no instant between two commits was found in 60 s"):
        export(world, file)
    assert list(file.parent.iterdir()) == []


def test_revisions_that_are_allowed_meanwhile_are_exported(file: Path) -> None:
    world = a_world()
    done = Export(world.process("source"), "r", "test")
    allowed = world.source.realms.upgrade("r", {"test-box": 7}).revisions
    assert allowed["test-box"] == 7
    assert done.write(file).header.revisions == allowed


def test_commits_during_an_export_are_not_in_it(file: Path) -> None:
    world = a_world()
    before = dict(world.acknowledged)
    watch = once("marking", lambda: [world.writer.add(name) for name in (MAIN, DEV) * 5])
    export(world, file, watch)
    assert world.acknowledged[MAIN] == before[MAIN] + 5
    load(world, file)
    there = world.references(world.process("target"))
    assert {name: number(there.open(name), "n") for name in before} == before


# What is refused


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_that_appears_during_an_export_is_not_replaced(
    file: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if not has_links:
        monkeypatch.setattr("os.link", no_links)
    world = a_world()
    with pytest.raises(InputError, match="already exists"):
        export(world, file, once("writing objects", lambda: file.write_text("kept")))
    assert file.read_text() == "kept"
    assert list(file.parent.iterdir()) == [file]
    file.unlink()
    export(world, file)
    assert list(file.parent.iterdir()) == [file]


def test_a_lost_object_ends_the_export_and_leaves_no_file(file: Path) -> None:
    world = a_world()
    head = world.here.read(DEV).head
    world.inner["source"].delete_objects(world.record.instance, [(head.commit, 0)])  # type: ignore[list-item]  # a key
    with pytest.raises(CorruptionError, match=f"{head.commit}"):
        export(world, file)
    assert list(file.parent.iterdir()) == []


def test_a_lost_row_of_a_reference_ends_the_export(file: Path) -> None:
    world = a_world()
    lost = world.here.lookup(MAIN)
    assert lost is not None
    backend, realm = world.inner["source"], world.record.instance
    row = backend.read_reference(realm, lost.row_name)
    assert row is not None
    backend.delete_reference(realm, lost.row_name, row.version)
    with pytest.raises(CorruptionError, match="run polaris-spark recover"):
        export(world, file)
    assert list(file.parent.iterdir()) == []


def test_a_realm_that_is_purged_meanwhile_leaves_no_file(file: Path) -> None:
    world = a_world()
    watch = once("writing objects", lambda: world.source.realms.move("r", RealmState.INACTIVE))
    export(world, file, watch)  # INACTIVE is no reason to stop
    file.unlink()
    watch = once("writing objects", lambda: world.source.realms.move("r", RealmState.PURGING))
    with pytest.raises(RealmStateError, match="is PURGING"):
        export(world, file, watch)
    assert list(file.parent.iterdir()) == []


def test_a_realm_that_moved_is_not_exported(file: Path) -> None:
    world = a_world()
    world.migrate()
    with pytest.raises(RealmMovedError, match="export it there"):
        export(world, file)


def test_a_realm_of_the_name_is_refused_unless_this_file_filled_it(file: Path, tmp_path: Path) -> None:
    world = a_world()
    export(world, file)
    world.writer.add(MAIN)
    other = tmp_path / "other.realm"
    export(world, other)

    class InterruptedByTestError(Exception):
        pass

    def interrupt() -> None:
        raise InterruptedByTestError

    with pytest.raises(InterruptedByTestError):
        load(world, file, once("comparing rows", interrupt))
    found = world.target.realms.find("r")
    assert found is not None
    assert found.state is RealmState.LOADING
    with pytest.raises(RealmStateError, match="LOADING and belongs to the unfinished import of another file"):
        load(world, other)
    assert load(world, file).instance == found.instance
    with pytest.raises(RealmStateError, match="which is ACTIVE: choose another name"):
        load(world, file)
    assert Purge(world.inner["target"], world.clock).realm("r", deactivate=True).deleted
    assert load(world, other).instance != found.instance


def test_an_unfinished_import_can_be_purged(file: Path) -> None:
    world = a_world()
    export(world, file)
    watch = once("writing rows", lambda: Purge(world.inner["target"], world.clock).realm("r"))
    with pytest.raises(PolarisError, match="is now GONE"):
        load(world, file, watch)
    assert world.target.realms.find("r") is None
    assert load(world, file).state is RealmState.ACTIVE


def test_rows_that_do_not_arrive_are_found(file: Path) -> None:
    world = a_world()
    export(world, file)
    head = world.here.read(MAIN).head

    def alter() -> None:
        found = world.target.realms.find("r")
        assert found is not None
        rows = world.inner["target"]._tables.objects[found.instance]  # type: ignore[attr-defined]  # of a memory store
        whole = rows[head.commit, 0]
        rows[head.commit, 0] = whole[:-1] + bytes([whole[-1] ^ 1])

    with pytest.raises(PolarisError, match="is not a faithful copy of the file"):
        load(world, file, once("comparing rows", alter))
    found = world.target.realms.find("r")
    assert found is not None
    assert found.state is RealmState.LOADING


def test_a_file_without_a_needed_object_is_not_activated(file: Path, tmp_path: Path) -> None:
    world = a_world()
    export(world, file)
    missing = world.here.read(DEV).head.commit
    part = tmp_path / "part.realm"
    with RealmFile(file) as whole, part.open("wb", buffering=0) as opened:
        writer = Writer(opened, part)
        writer.header(whole.header)
        writer.references(whole.heads)
        for block in range(whole.blocks):
            writer.objects(row for row in whole.rows(block) if row.id != missing)
        writer.finish()
    with pytest.raises(CorruptionError, match=f"{missing}"):
        load(world, part)
    found = world.target.realms.find("r")
    assert found is not None
    assert found.state is RealmState.LOADING
    assert world.inner["target"].read_reference(found.instance, "root") is None


# One loader


@pytest.mark.parametrize("when", ["writing rows", "reading headers", "comparing rows"])
def test_a_second_run_takes_over_and_the_first_one_changes_nothing_more(when: str, file: Path) -> None:
    world = a_world()
    export(world, file)

    def overtake() -> None:
        load(world, file)
        there = world.references(world.process("target"))
        assert there.open(MAIN).commit(Add("n")) == 27

    with pytest.raises(TaskLostError, match="another run of the import"):
        load(world, file, once(when, overtake))
    assert number(world.references(world.process("target")).open(MAIN), "n") == 27


# Damage


@pytest.mark.usefixtures("small_blocks")
def test_every_truncation_of_a_file_is_recognized(file: Path, tmp_path: Path) -> None:
    world = a_world()
    export(world, file)
    whole, torn = file.read_bytes(), tmp_path / "torn.realm"
    for size in range(len(whole)):
        torn.write_bytes(whole[:size])
        error = InputError if size < len(layout.MAGIC) else SourceError
        with pytest.raises(error, match=r"torn\.realm"):
            RealmFile(torn)
    torn.write_bytes(whole + b"\0")
    with pytest.raises(SourceError, match=r"incomplete|damaged"):
        RealmFile(torn)
    torn.write_bytes(whole * 2)
    with pytest.raises(SourceError, match=r"damaged|incomplete"):
        RealmFile(torn)
    torn.write_bytes(whole)
    assert contents(torn) == contents(file)


@pytest.mark.usefixtures("small_blocks")
def test_every_flipped_byte_of_a_file_is_recognized(file: Path, tmp_path: Path) -> None:
    world = a_world()
    export(world, file)
    whole, damaged = file.read_bytes(), tmp_path / "damaged.realm"
    rng = random.Random(7)
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= rng.randrange(1, 256)
        damaged.write_bytes(flipped)
        with pytest.raises((InputError, SourceError), match=r"damaged\.realm"):
            RealmFile(damaged)


@pytest.mark.usefixtures("small_blocks")
def test_a_block_that_is_left_out_or_repeated_is_recognized(file: Path, tmp_path: Path) -> None:
    world = a_world()
    export(world, file)
    whole, damaged = file.read_bytes(), tmp_path / "damaged.realm"
    ends = [len(layout.MAGIC)]
    while ends[-1] < len(whole):
        ends.append(ends[-1] + 9 + int.from_bytes(whole[ends[-1] + 1 : ends[-1] + 5], "big"))
    assert len(ends) > 20
    for begin, end in pairwise(ends):
        for changed in (whole[:begin] + whole[end:], whole[:end] + whole[begin:]):
            damaged.write_bytes(changed)
            with pytest.raises(SourceError, match=r"damaged\.realm"):
                RealmFile(damaged)


def test_a_file_that_changes_after_it_was_checked_is_recognized(file: Path) -> None:
    world = a_world()
    export(world, file)

    def change() -> None:
        with file.open("r+b") as opened:
            opened.seek(file.stat().st_size // 2)
            opened.write(bytes(50))

    with pytest.raises(SourceError, match="damaged"):
        load(world, file, once("writing rows", change))
    found = world.target.realms.find("r")
    assert found is not None
    assert found.state is RealmState.LOADING


def test_a_newer_format_is_refused(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = a_world()
    with monkeypatch.context() as patch:
        patch.setattr(exporter, "FORMAT", layout.FORMAT + 1)
        export(world, file)
    with pytest.raises(NewerFormatError, match=r"has format 2, but .* up to 1: use a newer release"):
        load(world, file)
    newer = tmp_path / "newer.realm"
    record = msgspec.structs.replace(world.record, format=99)
    monkeypatch.setattr(exporter, "exportable", lambda *_: record)
    export(world, newer)
    with pytest.raises(NewerFormatError, match="has format 99"):
        load(world, newer)
    assert world.target.realms.find("r") is None
