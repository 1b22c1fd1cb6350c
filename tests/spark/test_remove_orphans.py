"""`remove_orphans` as a Spark job, compared with Iceberg's own procedure."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from conftest import CatalogPlace
from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.commits.change import Operation
from polaris_spark.errors import InputError
from polaris_spark.jobs.registry import call
from polaris_spark.maintenance.orphans import candidates
from polaris_spark.maintenance.orphans.candidates import PurgeableFiles
from polaris_spark.rest.opening import connect
from polaris_spark.rest.session import Session
from tests.maintenance.lakes import (
    DAY,
    ROWS,
    Lake,
    age,
    folder,
    make_too_deep,
    name_statistics,
    paths,
    table_elsewhere,
)
from tests.maintenance.test_orphans_in_buckets import HOSTILE, Bucket
from tests.servers.versitygw import VersityGateway

pytestmark = pytest.mark.spark


@pytest.fixture
def session(spark: SparkSession, place: CatalogPlace) -> Iterator[Session]:
    with connect(store=place.store, warehouse=place.warehouse, catalog="polaris") as opened:
        yield opened


@pytest.fixture
def home(spark: SparkSession, namespace: str, place: CatalogPlace) -> Path:
    """The directory of a table `t` with two partitions, some history, and only old files."""
    table = f"{namespace}.t"
    spark.sql(f"CREATE TABLE {table} (id BIGINT, _p STRING) USING iceberg PARTITIONED BY (_p)")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a b'), (2, 'x/y')")
    spark.sql(f"INSERT INTO {table} VALUES (3, 'a#b')")
    spark.sql(f"ALTER TABLE {table} CREATE TAG first")
    spark.sql(f"DELETE FROM {table} WHERE id = 2")
    folder = Path(location(spark, table))
    make_old(folder)
    return folder


def location(spark: SparkSession, table: str) -> str:
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
    return str(next(row.data_type for row in rows if row.col_name == "Location")).removeprefix("file://")


def make_old(folder: Path) -> None:
    for file in folder.rglob("*"):
        age(file, 10)


def strays(folder: Path) -> set[Path]:
    names = [
        "data/stray.parquet",
        "data/_p=a b/stray",
        "data/_p=a%23b/s#1",
        "metadata/stray.avro",
        "data/ünï/x y",
    ]
    found = {folder / name for name in names}
    hidden = {folder / "data/.hidden", folder / "_temporary/0/f"}
    for file in found | hidden:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"stray")
        age(file, 10)
    return found


def everything(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def test_it_finds_the_same_files_as_icebergs(
    spark: SparkSession, session: Session, namespace: str, home: Path
) -> None:
    wanted = strays(home)
    ours = paths(call(session, "remove_orphans", spark=spark, location=str(home)), "would delete")
    rows = spark.sql(
        f"CALL polaris.system.remove_orphan_files(table => '{namespace}.t', dry_run => true, "
        f"older_than => {before(3)})"
    ).collect()
    theirs = {Path(row[0].removeprefix("file:")) for row in rows}
    assert ours == theirs == wanted


def before(days: float) -> str:
    return f"timestamp_millis({int((time.time() - days * DAY) * 1_000)})"


def test_after_either_the_same_files_are_left(
    spark: SparkSession, session: Session, namespace: str, home: Path, tmp_path: Path
) -> None:
    wanted = strays(home)
    rows_before = spark.table(f"{namespace}.t").count()
    shutil.copytree(home, tmp_path / "kept", copy_function=shutil.copy2)
    done = call(
        session, "remove_orphans", spark=spark, table=f"polaris.{namespace.split('.')[1]}.t", dry_run=False
    )
    assert paths(done, "deleted") == wanted
    ours = everything(home)
    shutil.rmtree(home)
    shutil.copytree(tmp_path / "kept", home, copy_function=shutil.copy2)
    spark.sql(
        f"CALL polaris.system.remove_orphan_files(table => '{namespace}.t', older_than => {before(3)})"
    ).collect()
    assert ours == everything(home)
    assert spark.table(f"{namespace}.t").count() == rows_before


def test_remove_orphans_can_be_called_in_sql(spark: SparkSession, home: Path) -> None:
    [stray, *_] = sorted(strays(home))
    found = spark.sql(f"CALL polaris.system.remove_orphans(location => '{home}')")
    assert found.columns == ["path", "size", "modified", "owner", "outcome", "error"]
    row = next(row for row in found.collect() if row.path == f"file://{stray}")
    assert (row.size, row.outcome, row.error) == (5, "would delete", None)
    assert row.owner.startswith("default.polaris.ns")


def test_a_table_that_cannot_be_read_keeps_what_it_may_need(
    spark: SparkSession, session: Session, namespace: str, home: Path
) -> None:
    spark.sql(f"CREATE TABLE {namespace}.sound (id BIGINT) USING iceberg")
    sound = Path(location(spark, f"{namespace}.sound"))
    goes = sound / "data" / "stray"
    goes.parent.mkdir(parents=True, exist_ok=True)
    goes.write_bytes(b"")
    make_old(sound)
    wanted = strays(home)
    outside = home.parent / "stray"
    outside.write_bytes(b"")
    age(outside, 10)
    [manifest, *_] = sorted(file for file in (home / "metadata").glob("*-m0.avro"))
    content = manifest.read_bytes()
    manifest.write_bytes(content[: len(content) // 2])
    rows = call(session, "remove_orphans", spark=spark, location=str(home.parent), dry_run=False)
    assert paths(rows, "deleted") == {goes}
    assert all(file.exists() for file in wanted)
    # Tables of other tests of this module, whose files these removed, are told, too.
    [why] = [row[5] for row in rows if row[4] == "kept" and row[0] == str(home)]
    assert manifest.name in why
    manifest.write_bytes(content)
    outside.unlink()


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A catalog with a second branch and a grace period of 0 s."""
    lake = Lake(f"sqlite://{tmp_path}/c.db", tmp_path / "warehouse", grace="0s")
    catalog = lake.session.catalog
    side = head_name(catalog.row, "side")
    catalog.references.create(side, Operation(b"", "somebody"), source=catalog.head())
    yield lake
    lake.close()


@pytest.mark.parametrize("depth", [0, 30])
def test_a_folder_that_cannot_be_listed_is_reported_and_stops_nothing_else(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, spark: SparkSession, depth: int
) -> None:
    monkeypatch.setattr(candidates, "_DEPTH", depth)  # how many levels the driver lists
    lake.table()
    lake.old()
    wanted = {lake.stray("a/stray"), lake.stray("z/stray")}
    make_too_deep(next(iter(wanted)).parents[1])
    rows = call(lake.session, "remove_orphans", spark=spark, dry_run=False)
    assert paths(rows, "deleted") == wanted
    [(location, problem)] = [(row[0], row[5]) for row in rows if row[4] == "kept"]
    assert "/" + "d" * 250 in location
    assert "cannot list" in problem
    assert problem.endswith("nothing is deleted here")


def purgeable_files(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, spark: SparkSession | None
) -> PurgeableFiles:
    """Return the files of tables dropped with PURGE that executors find, or this process without executors."""
    seen: list[PurgeableFiles] = []
    find = candidates.find_purgeable

    def watched(*arguments: Any) -> PurgeableFiles:
        seen.append(find(*arguments))
        return seen[-1]

    with monkeypatch.context() as patch:
        patch.setattr(candidates, "find_purgeable", watched)
        call(lake.session, "purge_dropped", spark=spark, dry_run=True)
    [found] = seen
    return found


def test_late_purges_are_carried_out_by_executors(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = lake.table("kept")
    sound = lake.files()
    adopted = folder(lake.table("t")) / "data" / "of-u.parquet"
    pq.write_table(ROWS, adopted)
    lake.table("u").add_files([f"file://{adopted}"])
    files = lake.files() - sound
    for name in ("t", "u"):
        lake.catalog.purge_table(f"db.{name}")
    found = [purgeable_files(lake, monkeypatch, session) for session in (None, spark)]
    assert found[0] == found[1]
    assert found[1].named_by[f"file://{adopted}"] == {"default.lake.db.u"}
    rows = call(lake.session, "purge_dropped", spark=spark, max_files=2**62)
    assert paths(rows, "deleted") == files
    kinds = [Path(row[0]).suffix for row in rows]
    assert kinds.index(".parquet") < kinds.index(".avro") < kinds.index(".json")
    assert {row[3] for row in rows} == {"default.lake.db.t", "default.lake.db.u"}
    assert lake.files() == sound
    assert call(lake.session, "purge_dropped", spark=spark) == []
    assert kept.scan().to_arrow().num_rows == 6


def test_executors_have_the_same_result_as_one_process(spark: SparkSession, lake: Lake) -> None:
    broken, sound, kept = (
        lake.table("broken"),
        lake.table("sound"),
        lake.table("kept", **{"gc.enabled": "false"}),
    )
    lake.catalog.drop_table("db.sound")
    again = lake.table("again")
    snapshot = broken.current_snapshot()
    assert snapshot is not None
    manifest_list = Path(snapshot.manifest_list.removeprefix("file://"))
    for table in (broken, sound, kept, again):
        for name in ("stray", "a b", "a%20b", "a#b", "ünï", "_hidden/f"):
            lake.stray(folder(table) / "data" / name)
    lake.stray("nowhere")
    unwritten = Lake(str(lake.session.properties.store), lake.warehouse, metadata_files="never")
    elsewhere = lake.stray(table_elsewhere(unwritten) / "stray")
    unwritten.close()
    asked = {"location": str(lake.warehouse), "max_files": 2**62}
    for damage in ("content", "absence"):
        manifest_list.write_bytes(b"garbage") if damage == "content" else manifest_list.unlink()
        lake.old()
        here = sorted(lake.remove(**asked), key=repr)
        assert len({row[4] for row in here}) == 2
        assert (elsewhere in paths(here)) == (damage == "absence")
        assert sorted(lake.remove(spark=spark, **asked), key=repr) == here


def test_executors_apply_prefix_mismatch_mode_to_other_schemes(spark: SparkSession, lake: Lake) -> None:
    table = lake.table()
    stray = lake.stray(folder(table) / "metadata" / "stray.stats")
    name_statistics(table, f"hdfs://nn:8020{stray}")
    lake.old()
    with pytest.raises(InputError, match=r"hdfs://nn:8020 in tables, file:// in the listing"):
        lake.remove(spark=spark)
    assert paths(lake.remove(spark=spark, prefix_mismatch_mode="delete")) == {stray}
    assert lake.remove(spark=spark, equal_schemes={"hdfs": "file"}) == []


def test_executors_clean_buckets(spark: SparkSession, versitygw: VersityGateway, tmp_path: Path) -> None:
    bucket = Bucket(versitygw, tmp_path, "s3a")
    table = bucket.catalog.create_table("db.t", ROWS.schema)
    table.append(ROWS)
    before = bucket.objects()
    strays = {bucket.put(f"x/{name}") for name in HOSTILE[:-1]}
    assert bucket.remove(spark=spark) == dict.fromkeys(strays, "would delete")
    assert bucket.remove(spark=spark, dry_run=False) == dict.fromkeys(strays, "deleted")
    assert bucket.objects() == before
    bucket.close()
