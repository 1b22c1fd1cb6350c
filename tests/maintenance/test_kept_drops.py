"""A table that was dropped without PURGE can be registered again. `expire` and PURGE keep its files while history has
the drop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.table import Table

from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.catalog.drops import purge
from polaris_spark.catalog.entities.entities import TableName
from polaris_spark.catalog.tables.registration import RegisterTable
from polaris_spark.commits.change import Operation
from polaris_spark.jobs.registry import call
from polaris_spark.pyiceberg import PolarisCatalog
from tests.maintenance.conftest import Open
from tests.maintenance.histories import SCHEMA, expire, ids, make, needed, path, rows, there

SHARED = "files are left that another table, branch or catalog needs"


class DiedError(Exception):
    """Raised where a simulated run ends."""


def expire_until(lake: PolarisCatalog, step: str, then: Callable[[], object]) -> None:
    """Expire everything, and call a function once when a given step begins."""
    happened: list[str] = []

    def watch(doing: str, done: int, total: int) -> None:
        if doing == step and not happened:
            happened.append(doing)
            then()

    call(lake._opened, "expire", watch=watch, older_than="0 s")
    assert happened


def expire_and_die(lake: PolarisCatalog) -> None:
    """Expire everything, and die before a file is deleted."""

    def die() -> None:
        raise DiedError

    with pytest.raises(DiedError):
        expire_until(lake, "looking for tables with files to delete", die)


def register_over(lake: PolarisCatalog, name: str, metadata_file: str) -> Table:
    """Replace a table by registering a metadata file."""
    catalog = lake._opened.catalog
    operation, target = Operation(b"", "test"), TableName(("db",), name)
    catalog.commit(
        RegisterTable(catalog.context, operation, target, metadata_file, catalog.files, overwrite=True)
    )
    return lake.load_table(("db", name))


def twins(opened: Open, tmp_path: Path) -> tuple[PolarisCatalog, PolarisCatalog, Table, Table]:
    """Two catalogs. A table of the first one is also registered in the second one."""
    shared = {"shared-locations": "allow"}
    lake = opened(grace="0 s")
    pond = opened("pond", grace="0 s", warehouse=str(tmp_path / "lake"), **shared)
    for one in (lake, pond):
        one.create_namespace("db")
    table = make(lake, "db.t")
    return lake, pond, table, pond.register_table("db.u", table.metadata_location)


@pytest.fixture(params=["store", "locations"])
def check_files(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_table_that_was_rolled_back_by_registering_an_old_version_before_it_was_dropped_keeps_that(
    lake: PolarisCatalog, check_files: str
) -> None:
    table = lake.create_table("db.t", SCHEMA)
    table.append(rows(1))
    old = table.metadata_location
    table.overwrite(rows(2))
    table.append(rows(3))
    expire_and_die(lake)
    last = register_over(lake, "t", old).metadata_location
    lake.drop_table("db.t")
    expire(lake, older_than="0 s", check_files=check_files)
    assert ids(lake.register_table("db.t", last)) == [1]


def test_a_file_that_a_dropped_table_had_removed_and_added_again_is_its_own(
    lake: PolarisCatalog, check_files: str
) -> None:
    table = lake.create_table("db.t", SCHEMA)
    table.append(rows(1))
    [task] = table.scan().plan_files()
    table.delete("id = 1")
    table.append(rows(2))
    expire_and_die(lake)
    table = lake.load_table("db.t")
    table.add_files([task.file.file_path])
    lake.drop_table("db.t")
    [row] = expire(lake, older_than="0 s", check_files=check_files)
    assert row["note"] is None
    assert row["data_files"] == 0
    assert row["manifests"] > 0
    assert ids(lake.register_table("db.t", table.metadata_location)) == [1, 2]


def test_expire_keeps_what_another_catalog_dropped_without_purge(
    opened: Open, tmp_path: Path, check_files: str
) -> None:
    lake, pond, table, twin = twins(opened, tmp_path)
    before, kept = ids(twin), needed(twin)
    pond.drop_table("db.u")
    table.overwrite(rows(2))
    [row] = expire(lake, older_than="0 s", check_files=check_files)
    assert row["note"] == SHARED
    assert kept <= there(table)
    again = pond.register_table("db.u", twin.metadata_location)
    assert ids(again) == before
    pond.purge_table("db.u")
    expire(lake, older_than="0 s", check_files=check_files)
    assert kept <= there(table), "the first drop is still in history"


def test_purge_leaves_what_another_catalog_dropped_without_purge(opened: Open, tmp_path: Path) -> None:
    lake, pond, table, twin = twins(opened, tmp_path)
    before, kept = ids(twin), needed(twin)
    pond.drop_table("db.u")
    lake.purge_table("db.t")
    assert kept <= there(table)
    assert call(lake._opened, "purge_dropped") == []
    assert ids(pond.register_table("db.u", twin.metadata_location)) == before


@pytest.mark.parametrize("where", ["the same branch", "another branch"])
def test_a_table_is_restored_whole_although_its_files_were_expired_and_purged_elsewhere(
    opened: Open, check_files: str, where: str
) -> None:
    lake = there_too = opened(grace="0 s", shared_locations="allow")
    lake.create_namespace("db")
    table = make(lake, "db.t")
    before, kept = ids(table), needed(table)
    if where == "another branch":
        call(lake._opened, "create_branch", name="dev")
        there_too = opened(grace="0 s", shared_locations="allow", branch="dev")
    lake.drop_table("db.t")
    if where == "the same branch":
        there_too.register_table("db.twin", table.metadata_location)
    twin = "db.twin" if where == "the same branch" else "db.t"
    there_too.load_table(twin).overwrite(rows(7))
    assert expire(there_too, older_than="0 s", check_files=check_files)
    there_too.purge_table(twin)
    for one in (lake, there_too):
        call(one._opened, "purge_dropped")
        call(one._opened, "remove_orphans", older_than="0 s", force=True, dry_run=False)
    call(lake._opened, "undrop", table="db.t")
    again = lake.load_table("db.t")
    assert (ids(again), needed(again)) == (before, kept)
    assert kept <= there(again)


def test_a_table_that_was_rolled_back_itself_is_purged_at_once(lake: PolarisCatalog) -> None:
    table = make(lake, "db.t")
    register_over(lake, "t", table.metadata_location)
    lake.purge_table("db.t")
    assert there(table) == set()


def test_purge_leaves_files_that_were_added_from_the_place_of_a_table_dropped_without_purge(
    lake: PolarisCatalog,
) -> None:
    table, other = make(lake, "db.t"), make(lake, "db.u")
    before, files = ids(other), [task.file.file_path for task in other.scan().plan_files()]
    table.add_files(files)
    lake.drop_table("db.u")
    lake.purge_table("db.t")
    assert there(table).isdisjoint(needed(other))
    assert ids(lake.register_table("db.u", other.metadata_location)) == before


def test_where_histories_are_long_a_purge_is_left_to_maintenance(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = opened(grace="0 s")
    lake.create_namespace("db")
    monkeypatch.setattr(purge, "MOST_COMMITS", 5)
    table = make(lake, "db.t")
    before = there(table)
    lake.purge_table("db.t")
    assert there(table) == before
    call(lake._opened, "purge_dropped")
    assert there(table) == set()


@pytest.mark.parametrize("branch", [None, "dev"])
def test_a_table_that_is_registered_and_dropped_between_two_looks_keeps_its_files(
    opened: Open, branch: str | None
) -> None:
    lake = opened(shared_locations="allow")
    lake.create_namespace("db")
    table = make(lake, "db.t")
    old = table.metadata.metadata_log[3].metadata_file

    def come_and_go() -> None:
        where = lake
        if branch is not None:
            catalog = lake._opened.catalog
            name = head_name(catalog.row, branch)
            catalog.references.create(name, Operation(b"", "test"), source=catalog.head())
            where = opened(branch=branch, shared_locations="allow")
        where.register_table("db.old", old)
        where.drop_table("db.old")

    expire_until(lake, "deleting data and delete files", come_and_go)
    again = lake.register_table("db.old", old)
    assert ids(again) == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert needed(again) <= there(table)


@pytest.mark.parametrize("lost", ["data", "manifests", "lists", "metadata"])
def test_missing_files_of_a_dropped_table_hold_nothing_up(lake: PolarisCatalog, lost: str) -> None:
    table, other = make(lake, "db.t"), make(lake, "db.u")
    lake.drop_table("db.u")
    lose(other, lost)
    [row] = expire(lake, older_than="0 s")
    assert row["note"] is None
    assert there(table) == needed(table.refresh())


def test_a_missing_manifest_of_a_table_is_reported_even_if_a_dropped_table_named_it_too(opened: Open) -> None:
    lake = opened(shared_locations="allow")
    lake.create_namespace("db")
    table, other = make(lake, "db.t"), make(lake, "db.u")
    lake.register_table("db.copy", other.metadata_location)
    lake.drop_table("db.u")
    lose(other, "manifests")
    left = there(other)
    found = expire(lake, table="db.t", older_than="0 s")
    assert [row["table"] for row in found] == ["db.t", "default.lake.db.copy"]
    assert found[1]["note"].startswith("files in its locations are left: there is no file ")
    assert there(table) == needed(table.refresh())
    assert there(other) == left


def lose(table: Table, what: str) -> None:
    """Delete files of a table."""
    named = {Path(file) for file in needed(table)}
    lists = {file for file in named if file.name.startswith("snap-")}
    data = {file for file in named if file.suffix == ".parquet"}
    metadata = {Path(path(table.metadata_location))}
    found = {"data": data, "manifests": named - lists - data, "lists": lists, "metadata": metadata}
    for file in found[what]:
        file.unlink()
