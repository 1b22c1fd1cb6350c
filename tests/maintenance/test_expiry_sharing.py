"""`expire` never deletes a file that another table needs, wherever the file is and whichever table it is."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.catalog.files.files import Files
from polaris_spark.clock import ManualClock
from polaris_spark.commits.change import Operation
from polaris_spark.errors import InputError
from polaris_spark.maintenance import needed_files
from polaris_spark.maintenance.orphans import files_in_use
from polaris_spark.pyiceberg import PolarisCatalog
from tests.maintenance.conftest import Open
from tests.maintenance.histories import SCHEMA, expire, ids, make, needed, path, rows, there

SHARED = 500
"""Id of the only row in a shared file."""


def test_a_file_that_another_table_added_stays_until_the_last_need_ends(lake: PolarisCatalog) -> None:
    table, other = make(lake, "db.t"), lake.create_table("db.u", SCHEMA)
    file = shared_file(table, [table, other])
    forget(table)
    [row] = expire(lake, table="db.t", older_than="0 s")
    assert row["note"] == "files are left that another table, branch or catalog needs"
    assert row["data_files"] > 0
    assert Path(file).exists()
    assert ids(other) == [SHARED]
    forget(other)
    expire(lake, older_than="0 s")
    assert not Path(file).exists()
    assert there(table) == needed(table.refresh())
    assert expire(lake, older_than="0 s") == []


def test_only_locations_are_compared_where_that_is_asked_for(lake: PolarisCatalog) -> None:
    table, other = make(lake, "db.t"), lake.create_table("db.u", SCHEMA)
    file = shared_file(table, [table, other])
    forget(table)
    [row] = expire(lake, table="db.t", older_than="0 s", check_files="Locations")
    assert row["note"] is None
    assert not Path(file).exists()


def test_another_way_of_checking_is_refused(lake: PolarisCatalog) -> None:
    with pytest.raises(InputError, match="check_files is 'all'; it must be one of: store, locations"):
        expire(lake, check_files="all")


def test_a_file_in_the_place_of_a_table_that_needs_it_stays_when_another_forgets_it(
    lake: PolarisCatalog,
) -> None:
    table, other = make(lake, "db.t"), lake.create_table("db.u", SCHEMA)
    file = shared_file(table, [table, other])
    forget(other)
    expire(lake, older_than="0 s")
    assert Path(file).exists()
    assert SHARED in ids(table.refresh())


@pytest.mark.parametrize(("name", "realm"), [("pond", "default"), ("lake", "another")])
def test_tables_of_other_catalogs_and_realms_count_in_both_directions(
    opened: Open, tmp_path: Path, name: str, realm: str
) -> None:
    lake = opened(grace="1 h")
    lake.create_namespace("db")
    shared = {"shared-locations": "allow"}
    pond = opened(name, realm=realm, warehouse=str(tmp_path / "lake"), **shared)
    pond.create_namespace("other")
    table, other = make(lake, "db.t"), pond.create_table("other.u", SCHEMA)
    first, second = (shared_file(table, [table, other], name) for name in ("first", "second"))
    forget(table, first)
    forget(other, second)
    [row] = expire(lake, older_than="0 s")
    assert row["note"] == "files are left that another table, branch or catalog needs"
    expire(pond, older_than="0 s")
    assert Path(first).exists()
    assert Path(second).exists()
    assert SHARED in ids(table.refresh())
    assert ids(other.refresh()) == [SHARED]
    forget(other, first)
    forget(table, second)
    for catalog in (lake, pond, lake):
        expire(catalog, older_than="0 s")
    assert not Path(first).exists()
    assert not Path(second).exists()


def test_a_dropped_branch_keeps_files_of_its_tables_while_it_can_be_restored(opened: Open) -> None:
    clock = ManualClock(int(time.time() * 1_000))
    lake = opened(clock=clock, grace="3 h")
    lake.create_namespace("db")
    table, other = make(lake, "db.t"), lake.create_table("db.u", SCHEMA)
    file = shared_file(table, [other])
    session = lake._opened
    references, dev = session.catalog.references, head_name(session.catalog.row, "dev")
    operation = Operation(b"", "test")
    references.create(dev, operation, source=session.catalog.head())  # where the other table alone has it
    table.add_files([file])
    forget(table)
    forget(other)
    clock.advance(60_000)
    expire(lake, older_than="0 s")
    assert Path(file).exists()
    references.drop(dev, operation)
    expire(lake, older_than="0 s")
    assert Path(file).exists()
    clock.advance(4 * 3_600_000)
    expire(lake, older_than="0 s")
    assert there(table) == needed(table.refresh())
    assert not Path(file).exists()


def test_while_any_table_cannot_be_read_every_file_waits(lake: PolarisCatalog) -> None:
    table, other = make(lake, "db.t"), lake.create_table("db.u", SCHEMA)
    file = shared_file(table, [table, other])
    forget(table)
    before = there(table)
    [manifest] = manifests(other)
    content = manifest.read_bytes()
    manifest.write_bytes(b"not avro")
    [row] = expire(lake, table="db.t", older_than="0 s")
    assert row["data_files"] == row["manifests"] == row["manifest_lists"] == 0
    assert row["note"].startswith("files are left: it is not known whether another table needs them: ")
    assert manifest.name in row["note"]
    assert there(table) == before
    manifest.write_bytes(content)
    expire(lake, table="db.t", older_than="0 s")
    assert needed(table.refresh()) < there(table) < before
    assert Path(file).exists()


@pytest.mark.parametrize("lost", ["list", "manifest"])
def test_a_table_without_a_manifest_list_or_manifest_keeps_only_the_files_in_its_locations(
    opened: Open, lost: str
) -> None:
    lake = opened(shared_locations="allow")
    lake.create_namespace("db")
    table = make(lake, "db.t")
    inside = f"{table.location()}/data/inside"
    other = lake.create_table("db.u", SCHEMA, location=inside)
    other.append(rows(1))
    files = [Path(path(inside)) / "data" / "shared.parquet", Path(path(table.location())) / "first.parquet"]
    for file in files:
        pq.write_table(rows(SHARED), file)
        table.add_files([str(file)])
    snapshot = other.current_snapshot()
    assert snapshot is not None
    gone = snapshot.manifest_list if lost == "list" else snapshot.manifests(other.io)[0].manifest_path
    Path(path(gone)).unlink()
    forget(table)
    stays = there(other)
    found = expire(lake, table="db.t", older_than="0 s")
    assert there(other) == stays
    assert [file.exists() for file in files] == [True, False]
    assert [row["table"] for row in found] == ["db.t", "default.lake.db.u"]
    assert found[0]["data_files"] > 0
    assert found[0]["note"] == "files are left that another table, branch or catalog needs"
    assert found[1]["note"] == f"files in its locations are left: there is no file {gone!r}"


def test_an_unreadable_table_keeps_all_files_and_is_reported_with_the_error(
    lake: PolarisCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, other = make(lake, "db.t"), make(lake, "db.u")
    snapshot = other.current_snapshot()
    assert snapshot is not None
    Path(path(snapshot.manifests(other.io)[0].manifest_path)).unlink()
    before = there(table)
    real = files_in_use.FindIncomplete.__call__

    def damaged(*given: Any) -> list[files_in_use.Incomplete]:
        Path(path(snapshot.manifest_list)).write_bytes(b"not avro")
        return real(*given)

    monkeypatch.setattr(files_in_use.FindIncomplete, "__call__", damaged)
    [_, row] = expire(lake, table="db.t", older_than="0 s")
    assert row["table"] == "default.lake.db.u"
    assert row["note"].startswith("all files are left, because it might need any of them: ")
    assert snapshot.manifest_list in row["note"]
    assert "there is no file" not in row["note"]
    assert there(table) == before


def test_an_unreadable_manifest_list_is_reported_with_its_table(lake: PolarisCatalog) -> None:
    table, other = make(lake, "db.t"), make(lake, "db.u")
    before = there(table)
    current = other.current_snapshot()
    assert current is not None
    Path(path(current.manifest_list)).write_bytes(b"not avro")
    [row] = expire(lake, table="db.t", older_than="0 s")
    assert "default.lake.db.u: " in row["note"]
    assert there(table) == before


def test_nothing_is_read_of_other_tables_when_there_is_nothing_to_delete(
    lake: PolarisCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(lake, "db.t")
    expire(lake, older_than="0 s")
    monkeypatch.setattr(files_in_use, "named_by_manifest", unexpected)
    monkeypatch.setattr(needed_files, "listed_manifests", unexpected)
    assert expire(lake, older_than="0 s") == []


def test_each_manifest_is_read_once(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = opened(shared_locations="allow")
    lake.create_namespace("db")
    table, other = make(lake, "db.t"), make(lake, "db.u")
    session = lake._opened
    references, dev = session.catalog.references, head_name(session.catalog.row, "dev")
    references.create(dev, Operation(b"", "test"), source=session.catalog.head())
    lake.register_table("db.again", other.metadata_location)
    other.append(rows(300))
    read: list[str] = []

    def counted(files: Files, location: str) -> needed_files.NamedLocations:
        read.append(location)
        return needed_files.named_by_manifest(files, location)

    monkeypatch.setattr(files_in_use, "named_by_manifest", counted)
    monkeypatch.setattr(files_in_use, "TABLES_OF_A_WAVE", 1)
    expire(lake, table="db.t", older_than="0 s")
    assert {str(one) for one in manifests(other)} <= set(map(path, read))
    assert len(read) == len(set(read))
    assert needed(table.refresh()) <= there(table)


@pytest.mark.parametrize("wave", [1, 2, 20_000])
def test_no_table_is_skipped_in_batches_of_any_size(
    lake: PolarisCatalog, monkeypatch: pytest.MonkeyPatch, wave: int
) -> None:
    monkeypatch.setattr(files_in_use, "TABLES_OF_A_WAVE", wave)
    monkeypatch.setattr(files_in_use, "TABLES_OF_AN_ITEM", 1)
    monkeypatch.setattr(files_in_use, "MANIFESTS_OF_AN_ITEM", 1)
    tables = [make(lake, f"db.t{n}") for n in range(3)]
    others = [lake.create_table(f"db.u{n}", SCHEMA) for n in range(3)]
    files = [shared_file(table, [table, other]) for table, other in zip(tables, others, strict=True)]
    for table in tables:
        forget(table)
    expire(lake, older_than="0 s")
    for table, other, file in zip(tables, others, files, strict=True):
        assert {path(file)} | needed(table.refresh()) <= there(table)
        assert ids(other) == [SHARED]
        assert expected_data(table) | {path(file)} == {
            one for one in there(table) if one.endswith(".parquet")
        }


@pytest.mark.parametrize("branch", [False, True])
def test_a_dry_run_agrees_where_files_are_shared(lake: PolarisCatalog, branch: bool) -> None:
    tables = [make(lake, "db.t"), lake.create_table("db.u", SCHEMA), lake.create_table("db.v", SCHEMA)]
    shared_file(tables[0], tables[:2], "first")
    second = shared_file(tables[0], [tables[0], tables[2]], "second")
    forget(tables[0])
    forget(tables[1])
    session = lake._opened
    if branch:
        dev = head_name(session.catalog.row, "dev")
        session.catalog.references.create(dev, Operation(b"", "test"), source=session.catalog.head())
    before = there(*tables)
    said = expire(lake, older_than="0 s", dry_run=True)
    assert there(*tables) == before
    assert expire(lake, older_than="0 s") == said
    assert sum(row["data_files"] for row in said) == (0 if branch else count(before - there(*tables)))
    assert Path(second).exists()


def test_a_file_is_known_by_any_spelling(lake: PolarisCatalog, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    table, other = make(lake, "db.t"), lake.create_table("db.u", SCHEMA)
    third, fourth = lake.create_table("db.v", SCHEMA), lake.create_table("db.w", SCHEMA)
    files = [Path(shared_file(table, [table], name)) for name in ("first", "second", "third")]
    other.add_files([f"file://{files[0]}"])
    third.add_files([str(tmp_path / "link" / files[1].relative_to(tmp_path / "lake"))])
    fourth.add_files([f"{files[2].parent}//{files[2].name}"])
    forget(table)
    expire(lake, older_than="0 s")
    assert all(file.exists() for file in files)
    for one in (other, third, fourth):
        assert ids(one) == [SHARED]


def test_a_statistics_file_that_another_table_names_stays(lake: PolarisCatalog) -> None:
    from tests.maintenance.lakes import name_statistics

    table, other = make(lake, "db.t"), make(lake, "db.u")
    file = Path(path(table.location())) / "metadata" / "shared.stats"
    file.write_bytes(b"12345")
    name_statistics(table, str(file))
    name_statistics(other, str(file))
    table.append(rows(300))
    expire(lake, table="db.t", older_than="0 s")
    assert file.exists()
    other.append(rows(300))
    expire(lake, older_than="0 s")
    assert not file.exists()


def test_a_name_through_a_link_that_was_set_anew_keeps_the_file(lake: PolarisCatalog, tmp_path: Path) -> None:
    from tests.maintenance.lakes import name_statistics

    first, table, other = make(lake, "db.s"), make(lake, "db.t"), make(lake, "db.u")
    file = Path(path(table.location())) / "metadata" / "shared.stats"
    file.write_bytes(b"12345")
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    name_statistics(table, str(file))
    name_statistics(other, str(link / file.name))
    for one in (first, table):
        one.append(rows(300))
    expire(lake, table="db.s", older_than="0 s")
    link.unlink()
    link.symlink_to(file.parent)
    expire(lake, table="db.t", older_than="0 s")
    assert file.exists()


def test_a_name_that_is_not_a_uri_does_not_stop_the_expiry_of_other_tables(lake: PolarisCatalog) -> None:
    from tests.maintenance.lakes import name_statistics

    table, other = make(lake, "db.t"), make(lake, "db.u")
    name_statistics(other, "file://[x/y.stats")
    table.append(rows(300))
    [row] = expire(lake, table="db.t", older_than="0 s")
    assert row["manifest_lists"]
    assert row["note"] is None


def shared_file(table: Table, adders: Iterable[Table], name: str = "shared") -> str:
    """Create a data file in the location of a table, and add it to several tables."""
    file = Path(path(table.location())) / "data" / f"{name}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows(SHARED), file)
    for adder in adders:
        adder.add_files([str(file)])
    return str(file)


def forget(table: Table, file: str | None = None) -> None:
    """Remove a file, or all shared files, from the current snapshot of a table."""
    found = [task.file for task in table.refresh().scan(row_filter=f"id = {SHARED}").plan_files()]
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
        for one in found:
            if Path(path(one.file_path)).stem in ("first", "second", "third", "shared") and (
                file is None or path(one.file_path) == file
            ):
                overwrite.delete_data_file(one)


def manifests(table: Table) -> list[Path]:
    """The manifests of the current snapshot."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return [Path(path(one.manifest_path)) for one in snapshot.manifests(table.io)]


def expected_data(table: Table) -> set[str]:
    """Return the data files that a table needs."""
    return {one for one in needed(table) if one.endswith(".parquet")}


def count(files: set[str]) -> int:
    """Return the number of data files among these files."""
    return sum(one.endswith(".parquet") for one in files)


def unexpected(*_: object) -> None:
    raise AssertionError("nothing is to be read")
