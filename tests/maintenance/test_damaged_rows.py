"""Jobs that delete files report damaged rows, and keep all files that these rows might need."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.catalog.entities.entities import TableName, table_key
from polaris_spark.catalog.rows import NAMES, TABLE
from polaris_spark.commits.change import Operation
from polaris_spark.commits.log import commits
from polaris_spark.commits.rows import Commit, Entries
from polaris_spark.errors import NewerFormatError
from polaris_spark.jobs.registry import call
from polaris_spark.store.cache import process_cache
from tests.cli.catalogs import run
from tests.maintenance.histories import expire
from tests.maintenance.lakes import ROWS, Lake, folder, paths
from tests.test_objects import raw_row

Damage = Callable[[Path, int], None]


def lose(directory: Path, id: int) -> None:
    change(directory, "DELETE FROM objects WHERE id = ?", id)


def garble(directory: Path, id: int) -> None:
    change(directory, "UPDATE objects SET value = x'00ff00' WHERE id = ?", id)


def change(directory: Path, statement: str, id: int) -> None:
    with sqlite3.connect(directory / "c.db") as database:
        assert database.execute(statement, (id,)).rowcount == 1
    process_cache().clear()  # as in another process


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A catalog with a second branch and a grace period of 0 s. Because of the second branch, DROP TABLE ... PURGE
    leaves the deletion of files to maintenance."""
    lake = Lake(f"sqlite://{tmp_path}/c.db", tmp_path / "warehouse", grace="0s")
    catalog = lake.session.catalog
    side = head_name(catalog.row, "side")
    catalog.references.create(side, Operation(b"", "somebody"), source=catalog.head())
    yield lake
    lake.close()


@pytest.fixture(params=["process", pytest.param("executors", marks=pytest.mark.spark)])
def spark_or_none(request: pytest.FixtureRequest) -> SparkSession | None:
    return request.getfixturevalue("spark") if request.param == "executors" else None


def found(lake: Lake, action: str) -> tuple[int, Commit]:
    """Return the newest commit whose log has this action."""
    head = lake.session.catalog.head()
    return next(
        (id, commit)
        for id, commit in commits(head.store, head.head)
        if commit.entries and head.store.get(commit.entries, Entries).entries[0].action == action
    )


def content(lake: Lake, name: str) -> int:
    """Return the object id of the content of a table of namespace `db`."""
    entry = lake.session.catalog.head().index(NAMES).get(table_key(TableName(("db",), name), TABLE))
    assert entry is not None
    return entry.pointer


def row_key(lake: Lake, id: int) -> str:
    """Return the key of a row as messages spell it."""
    return str(lake.session.catalog.references.store.key(id))


@pytest.mark.parametrize("damage", [lose, garble])
def test_a_damaged_log_keeps_every_file(
    lake: Lake, tmp_path: Path, damage: Damage, spark_or_none: SparkSession | None
) -> None:
    sound = lake.table("sound")
    lake.table("dropped")
    lake.catalog.drop_table("db.dropped")
    strays = {lake.stray("stray"), lake.stray(folder(sound) / "data" / "stray")}
    lake.old()
    assert paths(lake.remove()) == strays
    _, commit = found(lake, "drop-table")
    damage(tmp_path, commit.entries)
    before = lake.files()
    [kept] = lake.remove(spark=spark_or_none, dry_run=False)
    assert kept[3:5] == (f"the log of default.lake, commit number {commit.number}", "kept")
    assert row_key(lake, commit.entries) in kept[5]
    assert kept[5].endswith("; nothing is deleted, because any file may be needed")
    assert lake.files() == before


@pytest.mark.parametrize("check_files", ["store", "locations"])
def test_a_damaged_log_keeps_the_files_of_expired_snapshots(
    lake: Lake, tmp_path: Path, check_files: str
) -> None:
    table = lake.table("sound")
    lake.table("dropped")
    lake.catalog.drop_table("db.dropped")
    table.overwrite(ROWS)
    _, commit = found(lake, "drop-table")
    garble(tmp_path, commit.entries)
    before = lake.files()
    [row] = expire(lake.catalog, older_than="0 s", check_files=check_files)
    assert f"the log of default.lake, commit number {commit.number}" in row["note"]
    assert row_key(lake, commit.entries) in row["note"]
    assert before <= lake.files()


def test_where_the_log_is_damaged_a_purge_is_left_to_maintenance(tmp_path: Path) -> None:
    lake = Lake(f"sqlite://{tmp_path}/c.db", tmp_path / "warehouse")
    for name in ("first", "second"):
        lake.table(name)
    lake.catalog.drop_table("db.first")
    _, commit = found(lake, "drop-table")
    garble(tmp_path, commit.entries)
    before = lake.files()
    lake.catalog.purge_table("db.second")
    assert lake.files() == before
    lake.close()


def test_a_history_that_is_broken_off_keeps_every_file(lake: Lake, tmp_path: Path) -> None:
    lake.table("dropped")
    lake.catalog.drop_table("db.dropped")
    lake.table("sound")
    lake.stray("stray")
    lake.old()
    id, _ = found(lake, "drop-table")
    lose(tmp_path, id)
    before = lake.files()
    rows = lake.remove(dry_run=False)
    assert {(row[3], row[4]) for row in rows} == {("the history of default.lake", "kept")}
    assert row_key(lake, id) in rows[0][5]
    assert lake.files() == before


@pytest.mark.parametrize("damage", [lose, garble])
def test_a_damaged_table_keeps_every_file(
    lake: Lake, tmp_path: Path, damage: Damage, spark_or_none: SparkSession | None
) -> None:
    sound = lake.table("sound")
    lake.table("broken")
    lake.stray(folder(sound) / "data" / "stray")
    lake.old()
    id = content(lake, "broken")
    damage(tmp_path, id)
    before = lake.files()
    rows = lake.remove(spark=spark_or_none, dry_run=False)
    assert {(row[3], row[4]) for row in rows} == {("default.lake.db.broken", "kept")}
    assert row_key(lake, id) in rows[0][5]
    assert lake.files() == before


def test_pieces_of_a_table_that_are_lost_keep_every_file(lake: Lake, tmp_path: Path) -> None:
    from polaris_spark.catalog.metadata.rows import Table

    sound = lake.table("sound")
    lake.table("broken")
    lake.stray(folder(sound) / "data" / "stray")
    lake.old()
    [lost] = lake.session.catalog.reader.get(content(lake, "broken"), Table).snapshots.pointers[:1]
    lose(tmp_path, lost)
    before = lake.files()
    rows = lake.remove(dry_run=False)
    assert {(row[3], row[4]) for row in rows} == {("default.lake.db.broken", "kept")}
    assert row_key(lake, lost) in rows[0][5]
    assert lake.files() == before


def purge(lake: Lake, **arguments: Any) -> list[tuple[Any, ...]]:
    return call(lake.session, "purge_dropped", **arguments)


def test_late_purges_wait_where_the_log_is_damaged(
    lake: Lake, tmp_path: Path, spark_or_none: SparkSession | None
) -> None:
    lake.table("first")
    lake.catalog.drop_table("db.first")
    lake.table("second")
    lake.catalog.purge_table("db.second")
    before, number = lake.files(), lake.session.catalog.head().head.number
    head = lake.session.catalog.head()
    _, commit = next(
        (id, one)
        for id, one in commits(head.store, head.head)
        if one.entries
        and [(e.action, e.summary.get("purge")) for e in head.store.get(one.entries, Entries).entries]
        == [("drop-table", None)]
    )
    lose(tmp_path, commit.entries)
    rows = purge(lake, spark=spark_or_none)
    assert {row[3] for row in rows} == {f"the log of default.lake, commit number {commit.number}"}
    assert {row[4] for row in rows} == {"kept"}
    assert all(row_key(lake, commit.entries) in row[5] for row in rows)
    assert lake.files() == before
    assert lake.session.catalog.head().head.number == number, "nothing is recorded"


def test_a_damaged_log_is_reported_although_nothing_must_be_purged(lake: Lake, tmp_path: Path) -> None:
    lake.table("t")
    _, commit = found(lake, "create-table")
    garble(tmp_path, commit.entries)
    [row] = purge(lake)
    assert row[3:5] == (f"the log of default.lake, commit number {commit.number}", "kept")
    assert row_key(lake, commit.entries) in row[5]


@pytest.mark.parametrize("damage", [lose, garble])
def test_other_late_purges_go_on_where_one_dropped_table_is_damaged(
    lake: Lake, tmp_path: Path, damage: Damage
) -> None:
    broken, sound = lake.table("broken"), lake.table("sound")
    id = content(lake, "broken")
    for name in ("broken", "sound"):
        lake.catalog.purge_table(f"db.{name}")
    left = {file for file in lake.files() if folder(broken) in file.parents}
    goes = {file for file in lake.files() if folder(sound) in file.parents}
    damage(tmp_path, id)
    rows = purge(lake)
    [kept] = [row for row in rows if row[4] == "kept"]
    assert kept[3] == "default.lake.db.broken"
    assert row_key(lake, id) in kept[5]
    assert paths(rows, "deleted") == goes
    assert lake.files() == left


def test_a_dropped_table_of_an_unknown_type_is_not_purged(lake: Lake, tmp_path: Path) -> None:
    lake.table("t")
    id = content(lake, "t")
    lake.catalog.purge_table("db.t")
    before = lake.files()
    strange = raw_row("plugin-thing", 1, [], [], {})
    with sqlite3.connect(tmp_path / "c.db") as database:
        [[row]] = database.execute("SELECT value FROM objects WHERE id = ?", (id,))
        database.execute("UPDATE objects SET value = ? WHERE id = ?", (strange, id))
    process_cache().clear()
    with pytest.raises(
        NewerFormatError, match="not installed"
    ):  # unknown fields may name files of other tables
        purge(lake)
    assert lake.files() == before
    with sqlite3.connect(tmp_path / "c.db") as database:
        database.execute("UPDATE objects SET value = ? WHERE id = ?", (row, id))
    process_cache().clear()
    assert paths(purge(lake), "deleted") == before


@pytest.mark.parametrize("damage", [lose, garble])
@pytest.mark.parametrize("row", ["entries", "commit"])
def test_the_report_goes_on_and_names_the_row(lake: Lake, tmp_path: Path, damage: Damage, row: str) -> None:
    lake.table("t")
    lake.catalog.drop_table("db.t")
    lake.table("u")
    id, commit = found(lake, "drop-table")
    damaged = commit.entries if row == "entries" else id
    damage(tmp_path, damaged)
    page = tmp_path / "page.html"
    answer = run("report", f"sqlite://{tmp_path}/c.db", "--output", str(page))
    assert answer.code == 0, answer.err
    text = page.read_text()
    assert "Damaged rows of the log, which are not shown: " in text
    assert escape(row_key(lake, damaged)) in text
