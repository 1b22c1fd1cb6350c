"""`expire` deletes the files of expired snapshots, and no others."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from pyiceberg.table.statistics import StatisticsFile

from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.catalog.engine import Reach
from polaris_spark.catalog.tables import snapshot_expiry
from polaris_spark.clock import ManualClock
from polaris_spark.commits.change import Operation
from polaris_spark.jobs.registry import call
from polaris_spark.maintenance.deletion_records import DELETIONS, DeletedFiles, deletions_reference
from polaris_spark.maintenance.expiry.manifests import Manifests, ReadManifests
from polaris_spark.pyiceberg import PolarisCatalog
from tests.maintenance.conftest import Open
from tests.maintenance.histories import SCHEMA, expire, give_up_drops, ids, make, needed, path, rows, there
from tests.maintenance.manifests import write_manifest


def test_exactly_the_files_of_the_remaining_snapshots_are_kept(lake: PolarisCatalog) -> None:
    table = make(lake, "db.t")
    before, kept = there(table), ids(table)
    [row] = expire(lake, older_than="0 s")
    table.refresh()
    assert len(table.metadata.snapshots) == 1
    assert there(table) == needed(table) < before
    assert ids(table) == kept
    counted = [row[name] for name in ("data_files", "manifests", "manifest_lists")]
    assert sum(counted) == len(before) - len(needed(table))
    assert all(counted)
    assert row["bytes"] > 0
    assert expire(lake, older_than="0 s") == []


@pytest.mark.parametrize("entry", [{"content": 7, "size": 1}, {"content": 0, "size": "much"}])
def test_a_manifest_with_files_of_unknown_kind_or_size_is_reported(
    lake: PolarisCatalog, tmp_path: Path, entry: dict[str, Any]
) -> None:
    fields = [
        {"name": "file_path", "type": "string", "field-id": 100},
        {"name": "size", "type": ["long", "string"], "field-id": 104},
        {"name": "content", "type": "int", "field-id": 134},
    ]
    manifest = tmp_path / "m.avro"
    write_manifest(manifest, fields, {"file_path": "/f", **entry})
    catalog = lake._opened.catalog
    read, item = ReadManifests(), Manifests(1, (str(manifest),))
    found = read(Reach(catalog.references.store, catalog.files), item)
    assert found.files == ()
    assert str(manifest) in found.problem


def test_branches_and_tags_keep_their_files(lake: PolarisCatalog) -> None:
    table = make(lake, "db.t")
    first, second = (snapshot.snapshot_id for snapshot in table.metadata.snapshots[:2])
    table.manage_snapshots().create_tag(first, "first").create_branch(second, "side").commit()
    table.append(rows(300), branch="side")
    expire(lake, older_than="0 s")
    table.refresh()
    assert set(table.metadata.refs) == {"main", "first", "side"}
    assert len(table.metadata.snapshots) == 3
    assert there(table) == needed(table)
    assert sorted(table.scan(snapshot_id=first).to_arrow()["id"].to_pylist()) == [0, 1, 2]


def test_files_of_rolled_back_snapshots_are_deleted(lake: PolarisCatalog) -> None:
    table = make(lake, "db.t")
    second = table.metadata.snapshots[1].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(second).commit()
    table.append(rows(300))
    expire(lake, older_than="0 s")
    table.refresh()
    assert ids(table) == [0, 1, 2, 3, 4, 5, 300]
    assert there(table) == needed(table)


def test_a_dry_run_reports_the_same_as_a_run_and_changes_nothing(lake: PolarisCatalog) -> None:
    table = make(lake, "db.t")
    before, version = there(table), table.metadata_location
    said = expire(lake, older_than="0 s", dry_run=True)
    assert table.refresh().metadata_location == version
    assert there(table) == before
    assert said == expire(lake, older_than="0 s")
    assert said[0]["data_files"] > 0


def test_a_file_that_another_table_needs_stays(opened: Open) -> None:
    lake = opened(shared_locations="allow", grace="0 s")
    lake.create_namespace("db")
    table = make(lake, "db.t")
    first = lake.register_table("db.first", table.metadata.metadata_log[2].metadata_file)
    kept = ids(first)
    expire(lake, table="db.t", older_than="0 s")
    assert data(there(table)) == data(needed(table.refresh(), first))
    assert ids(first) == kept
    expire(lake, older_than="0 s")
    assert data(there(table)) == data(needed(table, first.refresh()))
    assert needed(first) <= there(table)
    lake.purge_table("db.first")
    expire(lake, older_than="0 s")
    assert there(table) == needed(table)


def test_a_table_of_another_catalog_or_realm_keeps_its_files(opened: Open) -> None:
    lake = opened(shared_locations="allow")
    lake.create_namespace("db")
    table = make(lake, "db.t")
    others = []
    for name, realm in (("lake", "another"), ("pond", "default")):
        other = opened(name, realm=realm, shared_locations="allow")
        other.create_namespace("db")
        others.append(other.register_table("db.u", table.metadata.metadata_log[3].metadata_file))
    expire(lake, older_than="0 s")
    assert data(there(table)) == data(needed(table.refresh(), *others))
    for other in others:
        assert needed(other) <= there(table)
        assert ids(other) == [0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_a_branch_of_the_catalog_keeps_its_files_until_it_is_dropped_and_beyond_recovery(
    opened: Open,
) -> None:
    clock = ManualClock(int(time.time() * 1_000))
    lake = opened(clock=clock, grace="3 h")
    lake.create_namespace("db")
    table = make(lake, "db.t")
    before = there(table)
    session = lake._opened
    references, dev = session.catalog.references, head_name(session.catalog.row, "dev")
    operation = Operation(b"", "test")
    references.create(dev, operation, source=session.catalog.head())
    clock.advance(60_000)
    [row] = expire(lake, older_than="0 s")
    assert (row["snapshots"], row["data_files"]) == (len(table.metadata.snapshots) - 1, 0)
    assert len(table.refresh().metadata.snapshots) == 1
    assert there(table) == before
    references.drop(dev, operation)
    expire(lake, older_than="0 s")
    assert there(table) == before
    clock.advance(4 * 3_600_000)
    [row] = expire(lake, older_than="0 s")
    assert row["snapshots"] == 0
    assert there(table) == needed(table) < before


def test_many_branches_of_the_catalog_share_files_and_expire_snapshots(opened: Open) -> None:
    """Each branch begins at another state, changes the table, and expires its snapshots at another time."""
    clock = ManualClock(int(time.time() * 1_000))
    lakes = {"main": opened(clock=clock)}
    lakes["main"].create_namespace("db")
    tables = {"main": make(lakes["main"], "db.t")}
    session = lakes["main"]._opened
    for number in range(6):
        name = f"b{number}"
        call(session, "create_branch", name=name)
        lakes[name] = opened(branch=name, clock=clock)
        tables[name] = lakes[name].load_table("db.t")
        tables[name].append(rows(1_000 + number))
        tables["main"].refresh().overwrite(rows(number))
    expected = {name: ids(table.refresh()) for name, table in tables.items()}
    for name in ("b3", "main", "b0", "b5"):
        clock.advance(60_000)
        expire(lakes[name], older_than="0 s")
        for table in tables.values():
            assert needed(table.refresh()) <= there(table)
    for name in ("b1", "b2", "b4"):
        call(session, "merge", source=name, strategy="theirs")
        expire(lakes[name], older_than="0 s")
    expected["main"] = expected["b4"]
    assert {name: ids(table.refresh()) for name, table in tables.items()} == expected
    before = there(tables["main"])
    for lake in lakes.values():
        clock.advance(60_000)
        expire(lake, older_than="0 s")
    assert before > there(tables["main"])
    every = set().union(*(needed(table.refresh()) for table in tables.values()))
    assert data(there(tables["main"])) == data(every)
    left = there(tables["main"]) - every
    assert left  # among manifests that lead to files of main's expired snapshots that branches need
    assert {name: ids(table) for name, table in tables.items()} == expected
    for number in range(6):
        call(session, "drop_branch", name=f"b{number}")
    clock.advance(4 * 3_600_000)
    expire(lakes["main"], older_than="0 s")
    assert left.isdisjoint(there(tables["main"]))
    assert needed(tables["main"]) <= there(tables["main"])
    assert ids(tables["main"]) == expected["main"]


def test_a_branch_keeps_its_files_of_a_table_that_another_moved_away(opened: Open, tmp_path: Path) -> None:
    lake = opened()
    lake.create_namespace("db")
    table = make(lake, "db.t")
    before = there(table)
    session = lake._opened
    dev = head_name(session.catalog.row, "dev")
    session.catalog.references.create(dev, Operation(b"", "test"), source=session.catalog.head())
    old = opened(branch="dev").load_table("db.t")
    update = {"action": "set-location", "location": f"file://{tmp_path}/lake/moved"}
    answer = session.request(
        "POST", "v1/namespaces/db/tables/t", None, json.dumps({"requirements": [], "updates": [update]})
    )
    assert answer[0] == 200, answer
    expire(lake, older_than="0 s")
    assert len(table.refresh().metadata.snapshots) == 1
    assert there(old) == before
    assert ids(old) == ids(table)


def test_a_table_of_another_catalog_of_the_warehouse_keeps_what_lies_in_its_place(
    opened: Open, tmp_path: Path
) -> None:
    lake, pond = opened(), opened("lake", catalog="pond", **{"shared-locations": "allow"})
    for one in (lake, pond):
        one.create_namespace("db")
    other = make(pond, "db.other")
    table = make(lake, "db.t")
    text = Path(path(table.metadata_location)).read_text()
    listed = table.metadata.snapshots[1].manifest_list
    forged = text.replace(listed, other.metadata.snapshots[1].manifest_list)
    file = Path(path(table.metadata_location)).with_name("00099-forged.metadata.json")
    file.write_text(forged)
    lake.drop_table("db.t")
    lake.register_table("db.t", f"file://{file}")
    expire(lake, older_than="0 s")
    assert needed(other) <= there(other)


def test_files_of_a_dropped_table_that_its_last_expiry_left_go(opened: Open) -> None:
    clock = ManualClock(int(time.time() * 1_000))
    lake = opened(clock=clock)
    lake.create_namespace("db")
    table = make(lake, "db.t", **{"polaris.expire-on-commit": "true"})
    clock.advance(6 * 24 * 3_600_000)
    table.append(rows(300))
    assert len(table.metadata.snapshots) == 1
    assert there(table) > needed(table)
    lake.drop_table("db.t")
    [row] = expire(lake)
    assert row["table"].startswith("dropped table")
    assert row["data_files"] > 0
    assert there(table) == needed(table)
    assert ids(lake.register_table("db.again", table.metadata_location)) == [
        3,
        5,
        6,
        7,
        8,
        100,
        101,
        200,
        300,
    ]


@pytest.mark.parametrize("purged", ["data", "manifests", "everything"])
def test_files_that_an_expiry_left_of_a_purged_table_go_however_far_the_purge_came(
    opened: Open, purged: str
) -> None:
    clock = ManualClock(int(time.time() * 1_000))
    lake = opened(clock=clock)
    lake.create_namespace("db")
    table = make(lake, "db.t", **{"polaris.expire-on-commit": "true"})
    clock.advance(6 * 24 * 3_600_000)
    table.append(rows(300))
    named = needed(table)
    lake.drop_table("db.t")
    for file in named:
        is_list = Path(file).name.startswith("snap-")
        if purged == "everything" or file.endswith(".parquet") or (purged == "manifests" and not is_list):
            Path(file).unlink()
    rest = {file for file in named if Path(file).exists()}
    assert there(table) > rest
    expire(lake)
    assert there(table) == rest
    assert expire(lake) == []


def test_files_outside_of_the_table_and_the_warehouse_are_left(lake: PolarisCatalog, tmp_path: Path) -> None:
    table = make(lake, "db.t")
    foreign = tmp_path / "foreign.parquet"
    pq.write_table(rows(500), foreign)
    table.add_files([str(foreign)])
    table.delete("id = 500")
    [row] = expire(lake, older_than="0 s")
    assert foreign.exists()
    assert row["note"] == "1 files are left: they are outside the table's locations"
    assert there(table) == needed(table.refresh())


def test_statistics_files_go_with_their_snapshots(lake: PolarisCatalog) -> None:
    table = make(lake, "db.t")
    for snapshot in (table.metadata.snapshots[0], table.metadata.snapshots[-1]):
        file = Path(path(table.location())) / "metadata" / f"{snapshot.snapshot_id}.stats"
        file.write_bytes(b"statistics")
        with table.update_statistics() as update:
            update.set_statistics(
                StatisticsFile(
                    snapshot_id=snapshot.snapshot_id,
                    statistics_path=str(file),
                    file_size_in_bytes=10,
                    file_footer_size_in_bytes=1,
                    blob_metadata=[],
                )
            )
    [row] = expire(lake, older_than="0 s")
    assert row["statistics_files"] == 1
    assert there(table) == needed(table.refresh())


def test_a_snapshot_may_have_more_statistics_files_than_a_record_names(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_expiry, "RECORD_PIECES", 1)
    clock = ManualClock(int(time.time() * 1_000))
    lake = opened(clock=clock)
    lake.create_namespace("db")
    table = lake.create_table("db.t", SCHEMA)
    table.append(rows(1))
    table.append(rows(2))
    metadata = Path(path(table.metadata_location))
    text = json.loads(metadata.read_text())
    files = [metadata.with_name(f"{n}.stats") for n in range(3)]
    for file in files:
        file.write_bytes(b"statistics")
    of_first = {"snapshot-id": text["snapshots"][0]["snapshot-id"], "file-size-in-bytes": 10}
    text["statistics"] = [
        {**of_first, "statistics-path": str(file), "file-footer-size-in-bytes": 1, "blob-metadata": []}
        for file in files[:2]
    ]
    text["partition-statistics"] = [{**of_first, "statistics-path": str(files[2])}]
    named = metadata.with_name("named.metadata.json")
    named.write_text(json.dumps(text))
    lake.drop_table("db.t")
    table = lake.register_table("db.t", str(named))
    give_up_drops(lake, clock)
    [row] = expire(lake, older_than="0 s")
    assert row["snapshots"] == 1
    assert row["statistics_files"] == 3
    assert there(table) == needed(table.refresh())


def test_a_limit_of_files_leaves_whole_tables_to_the_next_run(lake: PolarisCatalog) -> None:
    tables = [make(lake, f"db.t{n}") for n in range(3)]
    done = [expire(lake, older_than="0 s", max_files=1) for _ in range(3)]
    assert [sum(row["manifest_lists"] > 0 for row in one) for one in done] == [1, 1, 1]
    assert [sum(row["snapshots"] > 0 for row in one) for one in done] == [3, 0, 0]
    for table in tables:
        assert there(table) == needed(table.refresh())


def test_a_limit_of_tables_leaves_the_others_as_they_are(lake: PolarisCatalog) -> None:
    tables = [make(lake, f"db.t{n}") for n in range(3)]
    assert len(expire(lake, older_than="0 s", max_tables=2)) == 2
    assert [len(table.refresh().metadata.snapshots) == 1 for table in tables] == [True, True, False]


def test_every_deletion_is_recorded(lake: PolarisCatalog) -> None:
    table = make(lake, "db.t")
    before = there(table)
    expire(lake, older_than="0 s")
    gone = before - there(table)
    catalog = lake._opened.catalog
    head = catalog.references.read(deletions_reference(catalog.row))
    batches = [head.store.get(entry.pointer, DeletedFiles) for _, entry in head.index(DELETIONS).range()]
    assert {path(file.location) for batch in batches for file in batch.files} == gone
    assert {(batch.job, batch.table, batch.outcome) for batch in batches} == {("expire", "db.t", "deleted")}


def test_a_file_that_cannot_be_deleted_is_reported_recorded_and_tried_again(lake: PolarisCatalog) -> None:
    table = make(lake, "db.t")
    victim = next(file for file in there(table) if file.endswith(".parquet") and file not in last(table))
    Path(victim).unlink()
    Path(victim).mkdir()
    [row] = expire(lake, older_than="0 s")
    assert row["failed"] == 1
    assert row["manifests"] == row["manifest_lists"] == 0
    Path(victim).rmdir()
    [row] = expire(lake, older_than="0 s")
    assert row["failed"] == 0
    assert row["manifest_lists"] > 0
    assert there(table) == needed(table.refresh())


def data(files: set[str]) -> set[str]:
    """Return the data files among these files."""
    return {file for file in files if file.endswith(".parquet")}


def last(table: Table) -> set[str]:
    """Return the data files of the current snapshot."""
    return {path(task.file.file_path) for task in table.scan().plan_files()}


def test_a_damaged_manifest_keeps_the_files_of_its_table_alone_if_locations_are_compared(
    lake: PolarisCatalog,
) -> None:
    table, other = make(lake, "db.t"), make(lake, "db.u")
    before = there(table)
    current = table.current_snapshot()
    assert current is not None
    damaged = Path(path(current.manifest_list))
    content = damaged.read_bytes()
    damaged.write_bytes(b"not avro")
    told = {row["table"]: row for row in expire(lake, older_than="0 s", check_files="locations")}
    assert "is damaged" in told["db.t"]["note"]
    assert there(table) == before
    assert there(other) == needed(other.refresh())
    damaged.write_bytes(content)
    expire(lake, older_than="0 s")
    assert there(table) == needed(table.refresh())


@pytest.mark.parametrize("check_files", ["store", "locations"])
def test_a_file_that_the_table_still_names_stays_however_that_is_spelled(
    lake: PolarisCatalog, check_files: str
) -> None:
    table = make(lake, "db.t")
    file = Path(path(table.location())) / "data" / "twice.parquet"
    pq.write_table(rows(500), file)
    spellings = [str(file), f"file:{file}", f"{file.parent}//{file.name}", f"file://{file}"]
    table.add_files(spellings)
    named = {task.file.file_path: task.file for task in table.refresh().scan().plan_files()}
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
        for spelling in spellings[:-1]:
            overwrite.delete_data_file(named[spelling])
    [row] = expire(lake, older_than="0 s", check_files=check_files)
    assert row["note"] is None
    assert there(table) == needed(table.refresh())
    assert 500 in ids(table)
