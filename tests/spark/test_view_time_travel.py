"""Time travel of materialized views in Spark: the rows of earlier refreshes."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.spark.sql import call, rows, run
from tests.spark.test_materialized_views import home, plan, refreshed

__all__ = ["home"]  # a fixture
pytestmark = pytest.mark.spark

INCREMENTAL = "TBLPROPERTIES ('refresh-strategy' = 'incremental', 'incremental-limit' = '100')"
FIRST = [("r0", 1683, 49.5), ("r1", 1617, 49.0), ("r2", 1650, 50.0)]
SECOND = [("r0", 1683, 49.5), ("r1", 1617, 49.0), ("r2", 1650, 50.0), ("r9", 7, 7.0)]


def refreshes(spark: SparkSession, view: str) -> list[tuple[int, int, str]]:
    """Id, snapshot and time of each refresh of a view, the oldest first."""
    query = (
        "SELECT committed_at, refresh_id, snapshot_id, CAST(committed_at AS STRING)"
        f" FROM polaris.system.refreshes WHERE `view` = '{view.partition('.')[2]}'"
    )
    return [(refresh, snapshot, time) for _, refresh, snapshot, time in rows(spark, query)]


def history(spark: SparkSession, view: str) -> list[str]:
    """Times at which snapshots of the storage table became current, the oldest first."""
    query = f"SELECT CAST(made_current_at AS STRING) FROM {view}.storage.history ORDER BY made_current_at"
    return [one[0] for one in spark.sql(query).collect()]


def test_versions_and_times_are_read_without_hidden_columns_and_with_pruned_partitions(
    spark: SparkSession, home: str
) -> None:
    run(
        spark,
        f"CREATE MATERIALIZED VIEW mv PARTITIONED BY (region) {INCREMENTAL}"
        " AS SELECT region, sum(n) AS total, avg(n) AS mean FROM t GROUP BY region",
    )
    refreshed(spark, "mv")
    run(spark, "INSERT INTO t VALUES (200, 'r9', 7)")
    assert refreshed(spark, "mv")[0] == "incremental"
    assert "polaris_state_0" in spark.table(f"{home}.mv.storage").columns
    (first, snapshot, time), (second, *_) = refreshes(spark, f"{home}.mv")
    assert rows(spark, f"SELECT * FROM mv VERSION AS OF {snapshot}") == FIRST
    assert rows(spark, f"SELECT * FROM mv VERSION AS OF {second}") == SECOND
    assert rows(spark, f"SELECT * FROM mv TIMESTAMP AS OF '{time}'") == FIRST
    assert rows(spark, "SELECT * FROM mv TIMESTAMP AS OF now() + INTERVAL 1 DAY") == SECOND
    of_version = spark.read.option("versionAsOf", first).table("mv")
    assert sorted(of_version.collect()) == FIRST
    of_time = spark.read.format("iceberg").option("timestampAsOf", time).load(f"{home}.mv")
    assert sorted(of_time.collect()) == FIRST

    text = plan(spark, f"SELECT total FROM mv VERSION AS OF {first} WHERE region = 'r1'")
    assert f"snapshotId={snapshot}" in text
    assert "filters=region IS NOT NULL, region = 'r1'" in text
    assert "Filter (" not in text
    assert "mean" not in text
    assert "LocalTableScan" in plan(spark, f"SELECT count(*) FROM mv VERSION AS OF {first}")
    for column in ("polaris_state_0", "_file"):
        with pytest.raises(Exception, match="UNRESOLVED_COLUMN"):
            spark.sql(f"SELECT {column} FROM mv VERSION AS OF {first}")
    cached = spark.sql(f"SELECT * FROM mv VERSION AS OF {first}").cache()
    assert "InMemory" in plan(spark, f"SELECT mean FROM mv VERSION AS OF {first}")
    assert "InMemory" not in plan(spark, f"SELECT mean FROM mv VERSION AS OF {second}")
    cached.unpersist()

    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        with pytest.raises(Exception, match=r"has no refresh at or before .*; the system view"):
            spark.sql(f"SELECT * FROM mv TIMESTAMP AS OF '{time}'")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_replaced_queries_compactions_rollbacks_and_expired_snapshots(spark: SparkSession, home: str) -> None:
    storage = f"{home}.mv.storage"
    run(spark, "CREATE MATERIALIZED VIEW mv AS SELECT id, n FROM t WHERE id < 2")
    refreshed(spark, "mv")
    call(spark, storage, "rewrite_data_files", "options => map('rewrite-all', 'true')")
    run(
        spark,
        "CREATE OR REPLACE MATERIALIZED VIEW mv AS SELECT CAST(n AS STRING) AS n, region FROM t WHERE n = 7",
    )
    compacted = spark.sql("SELECT * FROM mv TIMESTAMP AS OF now()")
    assert (compacted.columns, sorted(compacted.collect())) == (["id", "n"], [(0, 0), (1, 1)])
    with pytest.raises(Exception, match=r"mv has no version 'main': .*system\.refreshes"):
        spark.sql("SELECT * FROM mv VERSION AS OF 'main'")
    refreshed(spark, "mv")
    (old, old_snapshot, _), (new, _, _) = refreshes(spark, f"{home}.mv")
    run(spark, f"ALTER TABLE {storage} CREATE TAG audit AS OF VERSION {old_snapshot}")
    call(spark, storage, "set_current_snapshot", f"snapshot_id => {old_snapshot}")
    before, at_compaction, at_replaced, after = history(spark, f"{home}.mv")
    states = {
        f"VERSION AS OF {old}": [(0, 0), (1, 1)],
        f"VERSION AS OF {new}": [("7", "r1")],
        f"TIMESTAMP AS OF '{before}'": [(0, 0), (1, 1)],
        f"TIMESTAMP AS OF '{at_compaction}'": [(0, 0), (1, 1)],
        f"TIMESTAMP AS OF '{at_replaced}'": [("7", "r1")],
        f"TIMESTAMP AS OF '{after}'": [(0, 0), (1, 1)],
    }
    assert {state: rows(spark, f"SELECT * FROM mv {state}") for state in states} == states

    call(spark, storage, "expire_snapshots", "older_than => now(), retain_last => 1")
    assert rows(spark, "SELECT * FROM mv VERSION AS OF 'audit'") == [(0, 0), (1, 1)]
    for state, words in (
        (f"VERSION AS OF {new}", f"mv has no version '{new}': .* still exists"),
        (f"TIMESTAMP AS OF '{at_replaced}'", "mv has no refresh at or before .*: the first was at"),
    ):
        with pytest.raises(Exception, match=words):
            spark.sql(f"SELECT * FROM mv {state}")


def test_views_can_read_earlier_rows_of_a_materialized_view(spark: SparkSession, home: str) -> None:
    run(
        spark,
        f"CREATE MATERIALIZED VIEW mv {INCREMENTAL} AS SELECT region, avg(n) AS mean FROM t GROUP BY region",
        "REFRESH MATERIALIZED VIEW mv",
        "CREATE VIEW ordinary AS SELECT 1 AS a",
    )
    [(first, snapshot, time)] = refreshes(spark, f"{home}.mv")
    run(spark, f"CREATE VIEW earlier AS SELECT * FROM mv VERSION AS OF {first}")
    query = (
        "SELECT t.region, count(*) AS c, max(mean) AS mean FROM t JOIN {} USING (region) GROUP BY t.region"
    )
    run(spark, f"CREATE MATERIALIZED VIEW above {INCREMENTAL} AS {query.format('earlier')}")
    refreshed(spark, "above")
    run(spark, "INSERT INTO t VALUES (200, 'r1', 1000)", "REFRESH MATERIALIZED VIEW mv")
    assert refreshed(spark, "above")[:2] == ("incremental", f"changed: {home.partition('.')[2]}.t")
    assert rows(spark, "SELECT * FROM above") == [("r0", 34, 49.5), ("r1", 34, 49.0), ("r2", 33, 50.0)]
    assert rows(spark, "SELECT * FROM earlier WHERE region = 'r1'") == [("r1", 49.0)]
    for source, words in (
        (f"mv TIMESTAMP AS OF '{time}'", "not as of a time"),
        ("mv VERSION AS OF 5", "mv has no version '5'"),
        (f"ordinary VERSION AS OF {snapshot}", "only tables, and materialized views of this catalog, have"),
    ):
        with pytest.raises(Exception, match=words):
            spark.sql(f"CREATE MATERIALIZED VIEW more AS SELECT * FROM {source}")
    with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql(f"SELECT * FROM ordinary VERSION AS OF {snapshot}")
