"""`remove_orphans` in one process: which files it deletes, and which it keeps."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.commits.change import Operation
from polaris_spark.commits.upkeep import raise_floor
from polaris_spark.errors import InputError
from polaris_spark.system.realms import RealmState
from tests.maintenance.lakes import (
    ROWS,
    Lake,
    age,
    folder,
    make_too_deep,
    name_statistics,
    paths,
    recorded_deletions,
    table_elsewhere,
)
from tests.maintenance.manifests import write_manifest
from tests.pyiceberg_adapter.content import view_version


@pytest.fixture(params=["every-commit", "never"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    lake = Lake(f"memory:{uuid.uuid4()}", tmp_path / "warehouse", metadata_files=request.param)
    yield lake
    lake.close()


def test_a_folder_that_cannot_be_listed_is_reported_and_stops_nothing_else(lake: Lake) -> None:
    lake.table()
    lake.old()
    strays = {lake.stray("a/stray"), lake.stray("z/stray")}
    warehouse = next(iter(strays)).parents[1]
    make_too_deep(warehouse)
    rows = lake.remove(dry_run=False)
    assert paths(rows, "deleted") == strays
    [(location, problem)] = [(row[0], row[5]) for row in rows if row[4] == "kept"]
    assert "/" + "d" * 250 in location
    assert "cannot list" in problem
    assert problem.endswith("nothing is deleted here")


def branch(lake: Lake, name: str) -> None:
    """Create a branch of the catalog from its newest commit."""
    catalog = lake.session.catalog
    operation = Operation(b"", "somebody")
    catalog.references.create(head_name(catalog.row, name), operation, source=catalog.head())


def drop_branch(lake: Lake, name: str) -> None:
    catalog = lake.session.catalog
    catalog.references.drop(head_name(catalog.row, name), Operation(b"", "somebody"))


def test_a_file_that_nothing_names_goes_and_every_other_stays(lake: Lake) -> None:
    table = lake.table()
    lake.old()
    before = lake.files()
    strays = {
        lake.stray(folder(table) / "data" / "stray.parquet"),
        lake.stray(folder(table) / "metadata" / "stray.avro"),
        lake.stray("elsewhere/stray"),
    }
    assert paths(lake.remove(), "would delete") == strays
    assert lake.files() == before | strays
    assert paths(lake.remove(dry_run=False), "deleted") == strays
    assert lake.files() == before
    assert table.refresh().scan().to_arrow().num_rows == 6
    assert lake.remove(dry_run=False) == []


def test_every_deletion_is_recorded(lake: Lake) -> None:
    stray = lake.stray("stray")
    lake.remove()
    assert recorded_deletions(lake) == []
    lake.remove(dry_run=False)
    assert recorded_deletions(lake) == [("remove_orphans", "deleted", f"file://{stray}", 5)]


def test_rows_say_size_time_and_the_table_that_a_file_lies_in(lake: Lake) -> None:
    table = lake.table()
    inside, outside = lake.stray(folder(table) / "data" / "a"), lake.stray("b")
    found = {row[0].removeprefix("file://"): row for row in lake.remove()}
    assert found[str(inside)][3] == "default.lake.db.t"
    assert found[str(outside)][3] is None
    _, size, modified, _, _, error = found[str(inside)]
    assert (size, int(modified.timestamp()), error) == (5, int(inside.stat().st_mtime), None)


def test_young_files_stay(lake: Lake) -> None:
    young, old = lake.stray("young", days=2.9), lake.stray("old", days=3.1)
    assert paths(lake.remove()) == {old}
    assert paths(lake.remove(older_than="2d")) == {old, young}
    with pytest.raises(InputError, match="24 hours"):
        lake.remove(older_than="1h")
    assert paths(lake.remove(older_than="1h", force=True)) == {old, young}


def test_files_of_a_commit_under_way_are_protected_by_their_age(lake: Lake) -> None:
    lake.table()
    lake.stray("being-written", days=0)
    assert paths(lake.remove()) == set()


def test_all_snapshots_branches_and_tags_of_a_table_are_needed(lake: Lake) -> None:
    table = lake.table(appends=1)
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "first").commit()  # type: ignore[union-attr]
    table.delete()
    table.append(ROWS)
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "side").commit()  # type: ignore[union-attr]
    table.append(ROWS, branch="side")
    lake.old()
    assert lake.remove() == []


def test_a_snapshot_that_was_expired_leaves_orphans(lake: Lake) -> None:
    table = lake.table(appends=1)
    first = table.current_snapshot()
    assert first is not None
    table.overwrite(ROWS)
    lake.old()
    assert lake.remove() == []
    table.maintenance.expire_snapshots().by_id(first.snapshot_id).commit()
    lake.old()
    gone = paths(lake.remove(dry_run=False), "deleted")
    assert str(local(first.manifest_list)) in {str(path) for path in gone}
    assert table.refresh().scan().to_arrow().num_rows == 3


def local(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def test_another_branch_of_the_catalog_keeps_its_files(lake: Lake) -> None:
    table = lake.table()
    branch(lake, "side")
    lake.catalog.drop_table("db.t")
    lake.old()
    assert lake.remove() == []
    drop_branch(lake, "side")
    assert lake.remove() == [], "a dropped branch can be brought back, and history still names the table"
    assert folder(table).exists()


def abandon(lake: Lake) -> None:
    """Write to tables in a transaction, then fail."""
    with lake.catalog.transaction() as transaction:
        transaction.load_table("db.t").append(ROWS)
        transaction.create_table("db.made", ROWS.schema).append(ROWS)
        raise ZeroDivisionError


def test_files_of_a_transaction_that_was_rolled_back_are_deleted(lake: Lake) -> None:
    lake.table()
    lake.old()
    before = lake.files()
    with pytest.raises(ZeroDivisionError):
        abandon(lake)
    left = lake.files() - before
    assert len([file for file in left if file.suffix == ".parquet"]) == 2
    assert lake.remove(dry_run=False) == [], "they are younger than the grace period"
    lake.old()
    assert paths(lake.remove(dry_run=False), "deleted") == left
    assert lake.files() == before
    with lake.catalog.transaction() as transaction:
        transaction.load_table("db.t").append(ROWS)
    lake.old()
    assert lake.remove() == []


def test_other_catalogs_and_realms_keep_their_files(lake: Lake, tmp_path: Path) -> None:
    store = str(lake.session.properties.store)
    others = [
        Lake(store, lake.warehouse, catalog="other", **{"shared-locations": "allow"}),
        Lake(store, lake.warehouse, realm="tenant"),
    ]
    for other in others:
        other.table()
    lake.old()
    stray = lake.stray("x")
    assert paths(lake.remove()) == {stray}
    realms = lake.session.connection.realms
    realms.move("tenant", RealmState.INACTIVE)
    assert paths(lake.remove()) == {stray}
    realms.move("tenant", RealmState.PURGING)
    assert len(paths(lake.remove())) > 1, "what a realm held that is being purged is orphaned"
    for other in others:
        other.close()


def test_a_table_dropped_without_purge_keeps_its_files_until_its_drop_is_trimmed_away(lake: Lake) -> None:
    table = lake.table()
    lake.catalog.drop_table("db.t")
    lake.old()
    files = lake.files()
    assert lake.remove() == []
    lake.catalog.create_namespace("later")
    catalog = lake.session.catalog
    newest = catalog.head().commit
    catalog.references.open(catalog.reference).amend(lambda row: raise_floor(row, newest))
    assert paths(lake.remove()) == {file for file in files if folder(table) in file.parents}


def test_a_table_whose_metadata_cannot_be_read_keeps_what_it_may_need(lake: Lake) -> None:
    broken, sound = lake.table("broken"), lake.table("sound")
    snapshot = broken.current_snapshot()
    assert snapshot is not None
    lake.old()
    local(snapshot.manifest_list).write_bytes(b"garbage")
    age(local(snapshot.manifest_list), 10)
    goes = lake.stray(folder(sound) / "data" / "stray")
    stays = [lake.stray(folder(broken) / "data" / "stray"), lake.stray("elsewhere/stray")]
    rows = lake.remove(dry_run=False)
    assert paths(rows, "deleted") == {goes}
    assert all(file.exists() for file in stays)
    [kept] = [row for row in rows if row[4] == "kept"]
    assert kept[3] == "default.lake.db.broken"
    assert "damaged" in kept[5]
    assert snapshot.manifest_list in kept[5]


@pytest.mark.parametrize("lost", ["list", "manifest"])
def test_a_missing_manifest_list_or_manifest_keeps_only_files_in_the_locations_of_its_table(
    lake: Lake, lost: str
) -> None:
    broken, sound = lake.table("broken"), lake.table("sound")
    snapshot = broken.current_snapshot()
    assert snapshot is not None
    missing = snapshot.manifest_list if lost == "list" else snapshot.manifests(broken.io)[0].manifest_path
    lake.old()
    local(missing).unlink()
    goes = {lake.stray(folder(sound) / "data" / "stray"), lake.stray("elsewhere/stray")}
    stays = {file for file in lake.files() if folder(broken) in file.parents}
    stays.add(lake.stray(folder(broken) / "data" / "stray"))
    rows = lake.remove(dry_run=False)
    assert paths(rows, "deleted") == goes
    assert {file for file in lake.files() if folder(broken) in file.parents} == stays
    [kept] = [row for row in rows if row[4] == "kept"]
    assert kept[3] == "default.lake.db.broken"
    assert missing in kept[5]
    assert kept[5].endswith("nothing is deleted here")
    assert sound.refresh().scan().to_arrow().num_rows == 6


def test_a_missing_manifest_list_keeps_files_in_all_locations_of_its_table(
    lake: Lake, tmp_path: Path
) -> None:
    paths_of_it = {
        "write.data.path": f"file://{tmp_path}/data",
        "write.metadata.path": f"file://{tmp_path}/meta",
    }
    snapshot = lake.table("broken", **paths_of_it).current_snapshot()
    assert snapshot is not None
    local(snapshot.manifest_list).unlink()
    strays = [lake.stray(tmp_path / "data" / "stray"), lake.stray(tmp_path / "meta" / "stray")]
    for file in tmp_path.rglob("*.*"):
        age(file, 10)
    rows = lake.remove(dry_run=False)
    assert paths(rows, "deleted") == set()
    assert all(stray.exists() for stray in strays)


def test_a_missing_manifest_list_does_not_hide_an_unreadable_table(lake: Lake) -> None:
    missing, damaged = lake.table("missing").current_snapshot(), lake.table("damaged").current_snapshot()
    assert missing is not None
    assert damaged is not None
    local(missing.manifest_list).unlink()
    local(damaged.manifest_list).write_bytes(b"garbage")
    stray = lake.stray("stray")
    lake.old()
    rows = lake.remove(dry_run=False)
    assert stray.exists()
    assert {row[3] for row in rows if row[4] == "kept"} == {
        "default.lake.db.missing",
        "default.lake.db.damaged",
    }


def test_an_unreadable_table_may_need_files_at_the_same_path_in_other_storage(tmp_path: Path) -> None:
    lake = Lake(f"memory:{uuid.uuid4()}", tmp_path / "warehouse", metadata_files="never")
    there = table_elsewhere(lake)
    stray = lake.stray(there / "stray")
    here, same = {"location": str(lake.warehouse)}, {"equal_schemes": {"s3": "file"}}
    assert [row[3] for row in lake.remove(**here)] == [None]
    assert [row[3] for row in lake.remove(**here, **same)] == ["default.lake.db.elsewhere"]
    snapshot = lake.table("broken").current_snapshot()
    assert snapshot is not None
    local(snapshot.manifest_list).write_bytes(b"garbage")
    assert paths(lake.remove(**here), "would delete") == set()
    assert paths(lake.remove(**here, **same), "would delete") == {stray}
    lake.close()


def test_a_table_whose_location_names_no_scheme_lies_on_this_machine(tmp_path: Path) -> None:
    lake = Lake(f"memory:{uuid.uuid4()}", tmp_path / "warehouse")
    lake.catalog.create_table("db.bare", ROWS.schema, location=f"{lake.warehouse}/bare")
    lake.stray("bare/data/stray")
    assert [row[3] for row in lake.remove()] == ["default.lake.db.bare"]
    lake.close()


def test_a_manifest_that_is_missing_keeps_what_its_table_may_need(lake: Lake) -> None:
    table = lake.table()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    [first, *_] = snapshot.manifests(table.io)
    local(first.manifest_path).unlink()
    lake.old()
    rows = lake.remove()
    assert paths(rows, "would delete") == set()
    assert [row[4] for row in rows] == ["kept"]


def test_a_manifest_that_names_no_file_keeps_what_its_table_may_need(lake: Lake) -> None:
    snapshot = lake.table().current_snapshot()
    assert snapshot is not None
    manifest = local(snapshot.manifests(lake.catalog.load_table("db.t").io)[0].manifest_path)
    write_manifest(manifest, [{"name": "file_path", "type": "string"}], {"file_path": "/f"})
    lake.stray("stray")
    lake.old()
    [kept] = lake.remove(dry_run=False)
    assert kept[3:5] == ("default.lake.db.t", "kept")
    assert str(manifest) in kept[5]


def test_gc_enabled_false_keeps_everything_below_a_table(lake: Lake) -> None:
    table = lake.table(**{"gc.enabled": "false"})
    lake.stray(folder(table) / "data" / "stray")
    elsewhere = lake.stray("stray")
    lake.old()
    assert paths(lake.remove()) == {elsewhere}


@pytest.mark.parametrize(
    "name",
    [
        "a b",
        "a%20b",
        "a%2Fb",
        "a#b",
        "a?b=c",
        "ünï код",
        "a+b",
        "p=x%2Fy",
        "a'b\"c",
        "a\\b",
        "...",
        "e\u0301",
    ],
)
def test_files_of_any_name_are_found_and_deleted_alone(lake: Lake, name: str) -> None:
    table = lake.table()
    lake.old()
    before = lake.files()
    stray = lake.stray(folder(table) / "data" / f"{name}.parquet") if name != "..." else lake.stray("a/b../f")
    assert paths(lake.remove(dry_run=False), "deleted") == {stray}
    assert lake.files() == before


def test_tables_in_folders_of_any_name_keep_their_files(lake: Lake) -> None:
    for number, name in enumerate(["a b", "a%20b", "ünï код", "a+b", "a%2Fb"]):
        table = lake.catalog.create_table(
            f"db.t{number}", ROWS.schema, location=f"file://{lake.warehouse}/{name}/{number}"
        )
        table.append(ROWS)
    lake.old()
    assert lake.remove() == []


def test_hidden_files_stay(lake: Lake) -> None:
    table = lake.table()
    lake.stray(folder(table) / "_temporary" / "0" / "f")
    lake.stray(folder(table) / "data" / ".f.crc")
    lake.stray("_committed")
    seen = lake.stray(folder(table) / "data" / "f")
    lake.old()
    assert paths(lake.remove()) == {seen}


def test_symbolic_links_are_neither_followed_nor_deleted(lake: Lake, tmp_path: Path) -> None:
    table = lake.table()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"mine")
    age(outside / "f", 10)
    (folder(table) / "data" / "link").symlink_to(outside)
    (folder(table) / "data" / "loop").symlink_to(folder(table))
    (folder(table) / "data" / "file").symlink_to(outside / "f")
    lake.old()
    assert lake.remove(dry_run=False) == []
    assert (outside / "f").exists()


def test_a_warehouse_reached_by_a_symbolic_link_has_the_same_files(lake: Lake, tmp_path: Path) -> None:
    lake.table()
    lake.old()
    stray = lake.stray("stray")
    (tmp_path / "alias").symlink_to(lake.warehouse)
    rows = lake.remove(location=str(tmp_path / "alias"))
    assert {path.resolve() for path in paths(rows)} == {stray}


def test_a_link_that_is_set_anew_between_two_runs_keeps_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "disk1").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "disk1")
    lake = Lake(f"memory:{uuid.uuid4()}", link / "warehouse")
    lake.catalog.create_table("db.t", ROWS.schema, location=f"file://{link}/warehouse/t").append(ROWS)
    lake.old()
    assert lake.remove() == []
    shutil.copytree(tmp_path / "disk1", tmp_path / "disk2")
    link.unlink()
    link.symlink_to(tmp_path / "disk2")
    assert lake.remove(location=str(tmp_path / "disk2")) == []
    lake.close()


def test_a_name_that_is_not_a_uri_does_not_stop_the_cleaning_of_other_tables(lake: Lake) -> None:
    name_statistics(lake.table(), "file://[x/y.stats")
    stray = lake.stray("stray")
    lake.old()
    assert paths(lake.remove(dry_run=False), "deleted") == {stray}


def test_locations_outside_the_warehouse_that_tables_own_are_cleaned_too(lake: Lake, tmp_path: Path) -> None:
    outside = tmp_path / "outside" / "t"
    table = lake.catalog.create_table("db.t", ROWS.schema, location=f"file://{outside}")
    table.append(ROWS)
    stray = lake.stray(outside / "data" / "stray")
    beside = lake.stray(tmp_path / "outside" / "beside")
    lake.old()
    for file in outside.rglob("*"):
        age(file, 10)
    assert paths(lake.remove()) == {stray}
    assert paths(lake.remove(location=str(tmp_path / "outside"))) == {stray, beside}


def test_views_and_their_metadata_are_kept(lake: Lake) -> None:
    lake.catalog.create_view("db.v", ROWS.schema, view_version())
    lake.old()
    assert lake.remove() == []


def test_a_store_in_the_warehouse_keeps_its_files(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    for uri in (f"sqlite://{tmp_path}/w/c.db", f"file://{tmp_path}/w/store"):
        lake = Lake(uri, tmp_path / "w")
        lake.catalog.create_namespace_if_not_exists("db")
        stray = lake.stray("stray")
        lake.old()
        own = {file for file in lake.files() if "store" in file.parts or file.name.startswith("c.db")}
        found = paths(lake.remove())
        assert own
        assert stray in found
        assert not [file for file in found if str(file).startswith(uri.partition("//")[2])]
        lake.close()
