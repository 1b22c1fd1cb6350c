"""`gc.enabled`: the innermost of table, namespaces and catalog decides for every job that deletes files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from polaris_spark.catalog.catalogs.property_changes import set_properties
from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.catalog.tables.snapshot_expiry import gc_enabled
from polaris_spark.commits.change import Operation
from polaris_spark.jobs.registry import call
from tests.maintenance.lakes import ROWS, Lake, folder, paths

NO, YES = {"gc.enabled": "false"}, {"gc.enabled": "true"}
Open = Callable[..., Lake]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens a catalog with a grace period of 0 s."""
    lakes: list[Lake] = []

    def open(**properties: Any) -> Lake:
        given = {"grace": "0s", **properties}
        lakes.append(Lake(f"sqlite://{tmp_path}/c.db", tmp_path / "warehouse", **given))
        return lakes[-1]

    yield open
    for lake in lakes:
        lake.close()


class Tables:
    """Tables whose files may be deleted and tables whose files may not, according to `gc.enabled` at each level."""

    def __init__(self, lake: Lake) -> None:
        lake.catalog.create_namespace("no", NO)
        lake.catalog.create_namespace("odd", {"gc.enabled": "perhaps"})
        lake.catalog.create_namespace("no.plain")
        lake.catalog.create_namespace("no.yes", YES)
        self.may = [
            self._table(lake, "db.t"),
            self._table(lake, "no.yes.t"),
            self._table(lake, "no.t", **YES),
        ]
        self.may_not = [
            self._table(lake, "db.kept", **NO),
            self._table(lake, "no.kept"),
            self._table(lake, "no.plain.kept"),
            self._table(lake, "no.yes.kept", **NO),
            self._table(lake, "odd.kept"),
        ]

    def _table(self, lake: Lake, name: str, **properties: str) -> Any:
        table = lake.catalog.create_table(name, ROWS.schema, properties=properties)
        table.append(ROWS)
        table.overwrite(ROWS)
        return table


def names(tables: list[Any]) -> list[str]:
    return sorted(".".join(table.name()) for table in tables)


@pytest.mark.parametrize(
    ("levels", "may"),
    [
        ([{}, {}, {}], True),
        ([{}, {}, NO], False),
        ([{}, YES, NO], True),
        ([NO, YES, YES], False),
        ([YES, NO, NO], True),
        ([{}, NO, YES], False),
        ([{"gc.enabled": "TRUE"}], True),
        ([{"gc.enabled": "yes"}], False),
    ],
)
def test_gc_enabled_at_the_innermost_level_decides(levels: list[dict[str, str]], may: bool) -> None:  # a case
    assert gc_enabled(levels) is may


def test_expire(opened: Open) -> None:
    lake = opened()
    tables = Tables(lake)
    rows = {row[0]: row for row in call(lake.session, "expire", older_than="0 s")}
    assert sorted(name for name, row in rows.items() if row[1]) == names(tables.may)
    assert {rows[name][-1] for name in names(tables.may_not)} == {"gc.enabled is false"}


def test_expire_keeps_the_files_of_a_table_that_was_dropped_from_a_namespace_that_says_no(
    opened: Open,
) -> None:
    lake = opened()
    lake.catalog.create_namespace("no")
    for name in ("db.t", "no.t"):
        table = lake.catalog.create_table(name, ROWS.schema)
        table.append(ROWS)
        table.overwrite(ROWS)
    kept = {file for file in lake.files() if folder(table) in file.parents}

    def interrupt(doing: str, done: int, total: int) -> None:
        if doing == "deleting data and delete files":
            raise InterruptedError

    with pytest.raises(InterruptedError):
        call(lake.session, "expire", watch=interrupt, older_than="0 s")
    lake.catalog.update_namespace_properties("no", updates=NO)
    for name in ("db.t", "no.t"):
        lake.catalog.drop_table(name)
    kept |= {file for file in lake.files() if folder(table) in file.parents}
    rows = call(lake.session, "expire", older_than="0 s")
    assert sorted((row[4], row[-1]) for row in rows) == [
        (0, "files are left: gc.enabled is false"),
        (1, None),
    ]
    assert kept <= lake.files()
    lake.catalog.update_namespace_properties("no", removals={"gc.enabled"})
    [row] = call(lake.session, "expire", older_than="0 s")
    assert row[4] == 1


@pytest.mark.parametrize("by", ["process", pytest.param("executors", marks=pytest.mark.spark)])
def test_remove_orphans(opened: Open, by: str, request: pytest.FixtureRequest) -> None:
    lake = opened()
    tables = Tables(lake)
    goes = {lake.stray(folder(table) / "data" / "stray") for table in tables.may}
    stays = [lake.stray(folder(table) / "data" / "stray") for table in tables.may_not]
    goes.add(lake.stray("elsewhere"))
    lake.old()
    spark: SparkSession | None = request.getfixturevalue("spark") if by == "executors" else None
    assert paths(lake.remove(spark=spark, dry_run=False), "deleted") == goes
    assert all(file.exists() for file in stays)


@pytest.mark.parametrize("by", ["process", pytest.param("executors", marks=pytest.mark.spark)])
def test_remove_orphans_where_the_catalog_says_no(
    opened: Open, by: str, request: pytest.FixtureRequest
) -> None:
    lake = opened(**NO)
    plain, said = lake.table("plain"), lake.table("said", **YES)
    goes = lake.stray(folder(said) / "data" / "stray")
    lake.stray(folder(plain) / "data" / "stray")
    lake.stray("elsewhere")
    lake.old()
    spark: SparkSession | None = request.getfixturevalue("spark") if by == "executors" else None
    assert paths(lake.remove(spark=spark)) == {goes}


def test_gc_enabled_in_a_catalogs_row_also_applies_to_jobs_of_other_catalogs(opened: Open) -> None:
    lake = opened()
    catalog = lake.session.catalog
    properties = {"warehouse": catalog.context.warehouse, "shared-locations": "allow", **NO}
    lake.session.catalogs.create("other", properties)
    other = opened(catalog="other")
    other.stray(folder(other.table()) / "data" / "stray")
    lake.stray("elsewhere")
    lake.old()
    assert paths(lake.remove()) == set()


@pytest.mark.parametrize("set_while", ["live", "dropped"])
def test_gc_enabled_in_a_catalogs_row_applies_while_its_branch_is_dropped_and_after_its_restore(
    opened: Open, set_while: str
) -> None:
    lake = opened(grace="1 h")
    catalog = lake.session.catalog
    properties = {"warehouse": catalog.context.warehouse, "shared-locations": "allow"}
    operation, references = Operation(b"", "somebody"), catalog.references
    row = lake.session.catalogs.create("other", properties).row
    other = opened(catalog="other", grace="1 h")
    table = other.table()
    if set_while == "live":
        other.session.set_catalog_properties(NO)
    references.drop(head_name(row), operation)
    if set_while == "dropped":
        set_properties(references, catalog.context, operation, row, NO, ())
    stray, own = lake.stray("elsewhere"), lake.stray(folder(table) / "data" / "stray")
    lake.old()
    before = lake.files()
    assert paths(lake.remove(dry_run=False)) == set()
    references.undrop(head_name(row), operation)
    assert paths(lake.remove(dry_run=False)) == set()
    assert paths(other.remove(dry_run=False)) == set()
    other.session.set_catalog_properties(removals=["gc.enabled"])
    assert paths(lake.remove(dry_run=False), "deleted") == {stray, own}
    assert lake.files() == before - {stray, own}
    assert table.refresh().scan().to_arrow().num_rows == 6


def test_drop_with_purge(opened: Open) -> None:
    lake = opened()
    tables = Tables(lake)
    for name in names(tables.may_not):
        before = lake.files()
        with pytest.raises(Exception, match=r"gc\.enabled is false"):
            lake.catalog.purge_table(name)
        assert lake.catalog.table_exists(name)
        assert lake.files() == before
    for table in tables.may:
        lake.catalog.purge_table(".".join(table.name()))
        assert not [file for file in lake.files() if folder(table) in file.parents]


def test_drop_with_purge_where_the_catalog_says_no(opened: Open) -> None:
    lake = opened(**NO)
    lake.table("plain")
    lake.table("said", **YES)
    with pytest.raises(Exception, match=r"gc\.enabled is false"):
        lake.catalog.purge_table("db.plain")
    lake.catalog.purge_table("db.said")
    assert lake.catalog.table_exists("db.plain")


def test_purge_dropped_uses_the_present_properties_of_namespaces(opened: Open) -> None:
    lake = opened()
    catalog = lake.session.catalog
    side = head_name(catalog.row, "side")
    catalog.references.create(side, Operation(b"", "somebody"), source=catalog.head())
    lake.catalog.create_namespace("other")
    table = lake.table()
    said = lake.catalog.create_table("db.said", ROWS.schema, properties=YES)
    said.append(ROWS)
    before = {file for file in lake.files() if folder(table) in file.parents}
    for name in ("db.t", "db.said"):
        lake.catalog.purge_table(name)
    lake.catalog.update_namespace_properties("db", updates=NO)
    rows = call(lake.session, "purge_dropped")
    assert [(row[3], row[4], row[5]) for row in rows if row[4] == "kept"] == [
        ("default.lake.db.t", "kept", "gc.enabled is false")
    ]
    assert {row[3] for row in rows if row[4] == "deleted"} == {"default.lake.db.said"}
    assert lake.files() == before
    lake.catalog.update_namespace_properties("db", removals={"gc.enabled"})
    assert paths(call(lake.session, "purge_dropped"), "deleted") == before


def test_an_expiry_decides_by_what_its_commit_sees(opened: Open) -> None:
    lake = opened()
    table = lake.table(appends=3)
    before = lake.files()
    happened: list[str] = []

    def watch(doing: str, done: int, total: int) -> None:
        if doing == "removing snapshots" and not happened:
            happened.append(doing)
            lake.catalog.update_namespace_properties("db", updates=NO)

    call(lake.session, "expire", watch=watch, older_than="0 s")
    assert happened
    assert len(table.refresh().metadata.snapshots) == 3
    assert before <= lake.files()
    lake.catalog.update_namespace_properties(
        "db", removals={"gc.enabled"}, updates={"history.expire.min-snapshots-to-keep": "1"}
    )
    happened.clear()

    def keep_two(doing: str, done: int, total: int) -> None:
        if doing == "removing snapshots" and not happened:
            happened.append(doing)
            lake.catalog.update_namespace_properties(
                "db", updates={"history.expire.min-snapshots-to-keep": "2"}
            )

    call(lake.session, "expire", watch=keep_two, older_than="0 s")
    assert len(table.refresh().metadata.snapshots) == 2


def test_an_expiry_keeps_files_if_the_catalog_says_no_after_its_commit(opened: Open) -> None:
    lake = opened()
    table = lake.table(appends=0)
    table.append(ROWS)
    table.overwrite(ROWS)
    before = lake.files()
    happened: list[str] = []

    def watch(doing: str, done: int, total: int) -> None:
        if doing.startswith("deleting") and not happened:
            happened.append(doing)
            lake.session.set_catalog_properties(NO)

    call(lake.session, "expire", watch=watch, older_than="0 s")
    assert happened
    assert before <= lake.files()


def test_an_expiry_keeps_snapshots_if_the_catalog_says_no_before_its_commit(opened: Open) -> None:
    lake = opened()
    table = lake.table(appends=3)
    before = lake.files()
    happened: list[str] = []

    def watch(doing: str, done: int, total: int) -> None:
        if doing == "removing snapshots" and not happened:
            happened.append(doing)
            lake.session.set_catalog_properties(NO)

    call(lake.session, "expire", watch=watch, older_than="0 s")
    assert happened
    assert len(table.refresh().metadata.snapshots) == 3
    assert before <= lake.files()
