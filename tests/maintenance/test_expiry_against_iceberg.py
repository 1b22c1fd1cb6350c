"""`expire` leaves what Iceberg's own `expire_snapshots` leaves, file by file.

The same table is expired by both: its files are set aside before, and put back when it is registered anew.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import Row, SparkSession

from conftest import CatalogPlace
from polaris_spark.jobs.registry import call
from polaris_spark.maintenance.expiry import deletion
from polaris_spark.maintenance.expiry.files import DecideTables, Examine
from polaris_spark.maintenance.expiry.manifests import FindNeeded, ReadManifests
from polaris_spark.maintenance.file_deletion import DeleteFiles, FindAbsent
from polaris_spark.maintenance.orphans.files_in_use import FindNamed, ListManifests
from polaris_spark.pyiceberg import PolarisCatalog
from tests.maintenance.histories import SCHEMA, expire, ids, make, needed, path, there
from tests.maintenance.test_expiry_looking_again import branch
from tests.maintenance.test_expiry_sharing import SHARED, forget, shared_file

pytestmark = pytest.mark.spark

Sql = Callable[..., list[Row]]


class Left(NamedTuple):
    """The files that an expiry left of a table, and those that it reports as deleted."""

    files: set[str]
    snapshots: list[int]
    refs: dict[str, int]
    log: list[int]
    statistics: set[str]
    schemas: set[int]
    specs: set[int]
    deleted: tuple[int, ...]
    rows: list[Any]


@pytest.fixture(scope="module")
def catalog(spark: SparkSession, place: CatalogPlace) -> Iterator[PolarisCatalog]:
    """The session's catalog as pyiceberg sees it."""
    with PolarisCatalog("polaris", store=place.store, warehouse=place.warehouse) as opened:
        yield opened


@pytest.fixture
def sql(spark: SparkSession, namespace: str) -> Sql:
    """Runs a statement about the table `{t}`."""

    def run(statement: str, **names: object) -> list[Row]:
        return spark.sql(statement.format(t=f"{namespace}.t", **names)).collect()

    return run


def history(sql: Sql, version: int) -> None:
    """Appends, deletes, an overwrite, a merge, branches and tags, a rollback and a picked snapshot."""
    modes = ", ".join(f"'write.{one}.mode' = 'merge-on-read'" for one in ("delete", "update", "merge"))
    sql(
        "CREATE TABLE {t} (id BIGINT, day INT) USING iceberg PARTITIONED BY (day) "
        f"TBLPROPERTIES ('format-version' = '{version}'{', ' + modes if version > 1 else ''})"
    )
    for day in range(3):
        sql("INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, {day} FROM range(100)", day=day)
    sql("ALTER TABLE {t} CREATE TAG first RETAIN 1 DAYS")
    sql("DELETE FROM {t} WHERE id < 10 AND day = 1")
    sql("DELETE FROM {t} WHERE day = 0")
    sql("ALTER TABLE {t} CREATE BRANCH side WITH SNAPSHOT RETENTION 2 SNAPSHOTS")
    sql("INSERT INTO {t}.branch_side SELECT /*+ COALESCE(1) */ id, 7 FROM range(10)")
    sql("INSERT INTO {t}.branch_side SELECT /*+ COALESCE(1) */ id, 8 FROM range(10)")
    sql("CALL polaris.system.compute_table_stats(table => '{t}')")
    before = current(sql)
    sql("UPDATE {t} SET id = id + 1000 WHERE id % 10 = 3")
    sql("CALL polaris.system.rollback_to_snapshot('{t}', {id})", id=before)
    sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.wap.enabled' = 'true')")


def later(sql: Sql, spark: SparkSession) -> None:
    """More history: snapshots that are staged and picked, a new schema and spec, compaction."""
    for wap in ("picked", "staged"):
        spark.conf.set("spark.wap.id", wap)
        try:
            sql("INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, 5 FROM range(5)")
        finally:
            spark.conf.unset("spark.wap.id")
    sql("INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, 6 FROM range(10)")
    picked = sql("SELECT snapshot_id FROM {t}.snapshots WHERE summary['wap.id'] = 'picked'")[0][0]
    sql("CALL polaris.system.cherrypick_snapshot('{t}', {id})", id=picked)
    sql("ALTER TABLE {t} ADD COLUMN more STRING")
    sql("ALTER TABLE {t} ADD PARTITION FIELD bucket(2, id)")
    sql("INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, 9, 'new' FROM range(20)")
    sql("CALL polaris.system.rewrite_data_files(table => '{t}', options => map('rewrite-all', 'true'))")
    sql("CALL polaris.system.rewrite_manifests('{t}')")
    sql("CALL polaris.system.compute_table_stats(table => '{t}')")


def current(sql: Sql) -> int:
    return int(sql("SELECT snapshot_id FROM {t}.refs WHERE name = 'main'")[0][0])


def left(catalog: PolarisCatalog, sql: Sql, name: str, deleted: Row) -> Left:
    table = catalog.load_table(name)
    metadata = table.metadata
    refs = {ref: one.snapshot_id for ref, one in metadata.refs.items()}
    read = "SELECT id, day FROM {t} ORDER BY ALL"
    return Left(
        there(table),
        [one.snapshot_id for one in metadata.snapshots],
        refs,
        [one.snapshot_id for one in metadata.snapshot_log],
        {one.statistics_path for one in metadata.statistics},
        set(table.schemas()),
        set(table.specs()),
        tuple(deleted),
        [
            sql(read),
            *(sql("SELECT count(*) FROM {t} VERSION AS OF '{ref}'", ref=ref) for ref in sorted(refs)),
        ],
    )


def in_sql(time: datetime) -> str:
    return f"TIMESTAMP '{time:%Y-%m-%d %H:%M:%S.%f}'"


NOW = "older_than => {now}"


@pytest.mark.parametrize(
    ("version", "arguments"),
    [
        pytest.param(1, NOW, marks=pytest.mark.long),
        (2, f"{NOW}, clean_expired_metadata => true"),
        pytest.param(2, "older_than => {middle}, retain_last => 2", marks=pytest.mark.long),
        pytest.param(3, NOW, marks=pytest.mark.long),
        (3, f"{NOW}, retain_last => 3"),
    ],
)
def test_expire_keeps_the_same_files_as_iceberg(
    spark: SparkSession,
    sql: Sql,
    namespace: str,
    catalog: PolarisCatalog,
    tmp_path: Path,
    version: int,
    arguments: str,
) -> None:
    history(sql, version)
    middle = datetime.now(timezone.utc)
    later(sql, spark)
    arguments = arguments.format(now=in_sql(datetime.now(timezone.utc)), middle=in_sql(middle))
    # Iceberg asks no other tables, hence ours must not here.
    alone = f"{arguments}, check_files => 'locations'"
    name = namespace.removeprefix("polaris.") + ".t"
    table = catalog.load_table(name)
    place, before = Path(path(table.location())), there(table)
    shutil.copytree(place, tmp_path / "aside")

    [theirs] = sql(f"CALL polaris.system.expire_snapshots(table => '{{t}}', {arguments})")
    expected = left(catalog, sql, name, theirs)
    assert expected.files < before
    data, position_deletes, _, manifests, lists, statistics = expected.deleted
    assert all((data, manifests, lists, statistics))
    assert position_deletes or version == 1

    catalog.drop_table(name)
    shutil.rmtree(place)
    shutil.copytree(tmp_path / "aside", place)
    catalog.register_table(name, table.metadata_location)
    [dry] = sql(f"CALL polaris.system.expire(table => '{{t}}', {alone}, dry_run => true)")
    assert there(table) == before
    [ours] = sql(f"CALL polaris.system.expire(table => '{{t}}', {alone})")
    assert ours == dry
    found = left(
        catalog,
        sql,
        name,
        Row(
            ours.data_files,
            ours.position_delete_files,
            ours.equality_delete_files,
            ours.manifests,
            ours.manifest_lists,
            ours.statistics_files,
        ),
    )
    assert found == expected
    assert found.files >= needed(catalog.load_table(name))


def test_deletions_are_a_view(
    spark: SparkSession, place: CatalogPlace, catalog: PolarisCatalog, namespace: str
) -> None:
    name = namespace.removeprefix("polaris.")
    table = make(catalog, f"{name}.t")
    before = there(table)
    arguments = f"table => '{name}.t', older_than => '0 s', check_files => 'locations'"
    spark.sql(f"CALL polaris.system.expire({arguments})")
    deleted = spark.sql(
        f"SELECT location, job, outcome, file_bytes > 0 AS known FROM polaris.system.deletions "
        f"WHERE table = '{name}.t'"
    ).collect()
    assert {path(row.location) for row in deleted} == before - there(table)
    assert {(row.job, row.outcome, row.known) for row in deleted} == {("expire", "deleted", True)}


def test_a_spark_job_has_the_same_result(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everywhere = (
        DecideTables,
        Examine,
        ReadManifests,
        FindNeeded,
        ListManifests,
        FindNamed,
        FindAbsent,
        DeleteFiles,
    )
    for work in everywhere:
        monkeypatch.setattr(work, "few", 0)
    store, warehouse = f"sqlite://{tmp_path / 'catalog.db'}", str(tmp_path / "warehouse")
    with PolarisCatalog("lake", store=store, warehouse=warehouse) as catalog:
        catalog.create_namespace("db")
        tables = [make(catalog, f"db.t{n}") for n in range(4)]
        other = catalog.create_table("db.u", SCHEMA)
        shared = shared_file(tables[0], [tables[0], other])
        forget(tables[0])
        dry = expire(catalog, older_than="0 s", dry_run=True)
        found = expire(catalog, spark=spark, older_than="0 s")
        assert sorted(map(str, found)) == sorted(map(str, dry))
        for table in tables[1:]:
            assert there(table) == needed(table.refresh())
        assert {shared} | needed(tables[0].refresh()) <= there(tables[0])
        assert ids(other) == [SHARED]
        forget(other)
        expire(catalog, spark=spark, older_than="0 s")
        assert there(tables[0]) == needed(tables[0].refresh())


@pytest.mark.parametrize("wave", [7, 20_000])
def test_executors_keep_what_is_branched_or_registered_before_files_are_deleted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wave: int
) -> None:
    for work in (Examine, ReadManifests, FindNeeded, ListManifests, FindNamed, DeleteFiles):
        monkeypatch.setattr(work, "few", 0)
    monkeypatch.setattr(deletion, "FILES_OF_A_WAVE", wave)
    given = {"store": f"sqlite://{tmp_path / 'catalog.db'}", "warehouse": str(tmp_path / "warehouse")}
    with PolarisCatalog("lake", **given, shared_locations="allow") as catalog:
        catalog.create_namespace("db")
        kept = make(catalog, "db.kept")
        commit = catalog._opened.catalog.head()
        other = make(catalog, "db.other")
        before, happened = there(kept), []

        def watch(doing: str, done: int, total: int) -> None:
            if doing == "deleting data and delete files" and not happened:
                happened.append(doing)
                branch(catalog, "dev", commit)
                catalog.register_table("db.old", other.metadata.metadata_log[3].metadata_file)

        call(catalog._opened, "expire", spark=spark, watch=watch, older_than="0 s")
        assert happened
        assert there(kept) == before
        with PolarisCatalog("lake", **given, branch="dev") as dev:
            assert needed(dev.load_table("db.kept")) == before
        old = catalog.load_table("db.old")
        assert needed(old, other.refresh()) < there(other)
        assert ids(old) == [0, 1, 2, 3, 4, 5, 6, 7, 8]
