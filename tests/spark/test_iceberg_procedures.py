"""Iceberg's procedures, its metadata tables, and streams, over tables of the catalog."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.sql import call, current_snapshot, rows, run, snapshots

pytestmark = pytest.mark.spark

METADATA_TABLES = {
    "entries": 3,
    "all_entries": 4,
    "files": 2,
    "data_files": 2,
    "all_data_files": 3,
    "all_files": 3,
    "manifests": 3,
    "all_manifests": 6,
    "delete_files": 0,
    "all_delete_files": 0,
    "position_deletes": 0,
    "history": 3,
    "snapshots": 3,
    "refs": 1,
    "partitions": 2,
    "metadata_log_entries": 4,
}
"""Rows of the table `t` below, counted by hand: its third snapshot has a manifest for the row that came, one for the
row that went, and one of before."""


@pytest.fixture
def table(spark: SparkSession, home: str) -> str:
    """Three rows by three snapshots: 1, then 2, then 3 in place of 1."""
    run(
        spark,
        f"CREATE TABLE {home}.t (n INT) PARTITIONED BY (n)",
        f"INSERT INTO {home}.t VALUES (1)",
        f"INSERT INTO {home}.t VALUES (2)",
        f"MERGE INTO {home}.t t USING (SELECT 1 AS n) s ON t.n = s.n WHEN MATCHED THEN UPDATE SET n = 3",
    )
    return f"{home}.t"


def values(spark: SparkSession, table: str) -> list[int]:
    return [n for (n,) in rows(spark, f"SELECT n FROM {table}")]


def test_snapshots_are_rolled_back_set_cherry_picked_and_listed(spark: SparkSession, table: str) -> None:
    first, second, third = snapshots(spark, table)
    answer = call(spark, table, "rollback_to_snapshot", f"snapshot_id => {first}")
    assert answer == {"previous_snapshot_id": third, "current_snapshot_id": first}
    assert values(spark, table) == [1]
    with pytest.raises(Exception, match="not an ancestor"):
        call(spark, table, "rollback_to_snapshot", f"snapshot_id => {third}")
    call(spark, table, "set_current_snapshot", f"snapshot_id => {third}")
    assert values(spark, table) == [2, 3]
    call(spark, table, "set_current_snapshot", f"snapshot_id => {first}")
    call(spark, table, "cherrypick_snapshot", f"snapshot_id => {second}")
    assert values(spark, table) == [1, 2]
    catalog, _, rest = table.partition(".")
    ancestors = rows(spark, f"CALL {catalog}.system.ancestors_of('{rest}')")
    assert {snapshot for snapshot, _ in ancestors} == {first, current_snapshot(spark, table)}
    history = rows(spark, f"SELECT snapshot_id, is_current_ancestor FROM {table}.history")
    assert (third, False) in history
    assert (first, True) in history
    [(at,)] = rows(spark, f"SELECT min(committed_at) FROM {table}.snapshots WHERE snapshot_id = {second}")
    call(spark, table, "rollback_to_timestamp", f"timestamp => TIMESTAMP'{at}'")
    assert values(spark, table) == [1]


def test_files_and_manifests_are_rewritten_and_statistics_kept(spark: SparkSession, table: str) -> None:
    run(spark, *[f"INSERT INTO {table} VALUES ({n})" for n in (2, 3, 3)])
    assert values(spark, table) == [2, 2, 3, 3, 3]
    answer = call(
        spark, table, "rewrite_data_files", "options => map('min-input-files', '2'), where => 'n = 3'"
    )
    assert (answer["rewritten_data_files_count"], answer["added_data_files_count"]) == (3, 1)
    before = spark.table(f"{table}.manifests").count()
    answer = call(spark, table, "rewrite_manifests")
    assert answer == {"rewritten_manifests_count": before, "added_manifests_count": 1}
    assert spark.table(f"{table}.manifests").count() == 1
    statistics = call(spark, table, "compute_table_stats")["statistics_file"]
    partitions = call(spark, table, "compute_partition_stats")["partition_statistics_file"]
    for written in (statistics, partitions):
        assert Path(str(written).removeprefix("file:")).is_file()
    assert values(spark, table) == [2, 2, 3, 3, 3]
    [before_expiry] = [len(snapshots(spark, table))]
    answer = call(spark, table, "expire_snapshots", "older_than => TIMESTAMP'2124-01-01', retain_last => 1")
    assert answer["deleted_manifest_lists_count"] == before_expiry - 1
    assert answer["deleted_data_files_count"] >= 1
    assert len(snapshots(spark, table)) == 1
    assert values(spark, table) == [2, 2, 3, 3, 3]


def test_only_files_that_nothing_needs_are_orphans(spark: SparkSession, table: str) -> None:
    [(data,)] = rows(spark, f"SELECT min(file_path) FROM {table}.files")
    directory = Path(str(data).removeprefix("file:")).parents[1]
    orphan = directory / "orphan.parquet"
    orphan.write_bytes(b"x")
    os.utime(orphan, (1, 1))
    catalog, _, rest = table.partition(".")
    remove = (
        f"CALL {catalog}.system.remove_orphan_files(table => '{rest}', older_than => TIMESTAMP'2020-01-01'"
    )
    [(found,)] = rows(spark, f"{remove}, dry_run => true)")
    assert Path(found.removeprefix("file:")) == orphan
    assert orphan.exists()
    assert len(rows(spark, f"{remove})")) == 1
    assert not orphan.exists()
    assert values(spark, table) == [2, 3]


def test_changes_between_snapshots_are_a_view(spark: SparkSession, table: str) -> None:
    answer = call(spark, table, "create_changelog_view", f"changelog_view => 'log_{table.split('.')[1]}'")
    changes = rows(spark, f"SELECT n, _change_type, _change_ordinal FROM {answer['changelog_view']}")
    spark.sql(f"DROP VIEW {answer['changelog_view']}")  # other tests list views, temporary ones among them
    assert changes == [(1, "DELETE", 2), (1, "INSERT", 0), (2, "INSERT", 1), (3, "INSERT", 2)]


def test_metadata_tables_count_what_there_is(spark: SparkSession, table: str) -> None:
    got = {name: len(spark.table(f"{table}.{name}").collect()) for name in METADATA_TABLES}
    assert got == METADATA_TABLES


def test_a_metadata_table_shows_the_past(spark: SparkSession, table: str) -> None:
    first, second, _ = snapshots(spark, table)
    for snapshot, count in ((first, 1), (second, 2)):
        assert rows(spark, f"SELECT count(*) FROM {table}.files VERSION AS OF {snapshot}") == [(count,)]
    assert rows(spark, f"SELECT partition.n, record_count FROM {table}.partitions") == [(2, 1), (3, 1)]
    log = rows(spark, f"SELECT latest_snapshot_id, latest_sequence_number FROM {table}.metadata_log_entries")
    assert len(log) == 4
    assert log[0] == (None, None)


def test_files_of_elsewhere_are_added(spark: SparkSession, table: str, tmp_path: Path) -> None:
    spark.createDataFrame([(7,), (8,)], "n INT").coalesce(1).write.parquet(str(tmp_path / "files"))
    run(spark, f"CREATE TABLE {table}2 (n INT)")
    catalog, _, rest = table.partition(".")
    source = f"`parquet`.`{tmp_path / 'files'}`"
    answer = rows(spark, f"CALL {catalog}.system.add_files(table => '{rest}2', source_table => '{source}')")
    assert answer[0][0] == 1
    assert values(spark, f"{table}2") == [7, 8]


def test_a_table_is_registered_from_its_metadata_file(spark: SparkSession, table: str) -> None:
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('kept' = 'yes')")
    catalog, _, rest = table.partition(".")
    [(file,)] = rows(spark, f"SELECT file FROM {table}.metadata_log_entries ORDER BY timestamp DESC LIMIT 1")
    register = f"CALL {catalog}.system.register_table(table => '{rest}2', metadata_file => '{file}')"
    if spark.conf.get(f"spark.sql.catalog.{catalog}.metadata-files") == "never":
        with pytest.raises(Exception, match="there is no file"):
            spark.sql(register)
        return
    before = snapshots(spark, table)
    with pytest.raises(Exception, match=r"(?i)overlap|location"):
        spark.sql(register)
    spark.sql(f"DROP TABLE {table}")
    spark.sql(register)
    assert values(spark, f"{table}2") == [2, 3]
    assert snapshots(spark, f"{table}2") == before


def test_streams_append_complete_and_follow(spark: SparkSession, home: str, tmp_path: Path) -> None:
    run(spark, f"CREATE TABLE {home}.source (n INT)", f"CREATE TABLE {home}.sums (k INT, total BIGINT)")
    run(spark, f"CREATE TABLE {home}.copy (n INT)")

    def follow() -> None:
        source = spark.readStream.table(f"{home}.source")
        copy = source.writeStream.outputMode("append").option("checkpointLocation", str(tmp_path / "copy"))
        copy.trigger(availableNow=True).toTable(f"{home}.copy").awaitTermination()
        sums = source.selectExpr("n % 2 AS k", "n").groupBy("k").agg({"n": "sum"}).toDF("k", "total")
        complete = sums.writeStream.outputMode("complete").option(
            "checkpointLocation", str(tmp_path / "sums")
        )
        complete.trigger(availableNow=True).toTable(f"{home}.sums").awaitTermination()

    spark.sql(f"INSERT INTO {home}.source VALUES (1), (2), (3)")
    follow()
    assert values(spark, f"{home}.copy") == [1, 2, 3]
    assert rows(spark, f"SELECT * FROM {home}.sums") == [(0, 2), (1, 4)]
    run(spark, f"INSERT INTO {home}.source VALUES (4)", f"INSERT INTO {home}.source VALUES (5)")
    follow()
    follow()
    assert values(spark, f"{home}.copy") == [1, 2, 3, 4, 5]
    assert rows(spark, f"SELECT * FROM {home}.sums") == [(0, 6), (1, 9)]
