"""Materialized views that read tables of other catalogs, Iceberg tables at a location, and Delta tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.catalogs import add_catalog, new_name
from tests.spark.sql import rows, run
from tests.spark.test_incremental_views import INCREMENTAL
from tests.spark.test_materialized_views import home, refreshed

__all__ = ["home"]  # a fixture
pytestmark = pytest.mark.spark


@pytest.fixture
def other(spark: SparkSession, tmp_path: Path) -> str:
    """An Iceberg catalog whose tables are in a folder, with the table `db.t`."""
    name = new_name()
    for key, value in {"": "SparkCatalog", ".type": "hadoop", ".warehouse": str(tmp_path / name)}.items():
        spark.conf.set(
            f"spark.sql.catalog.{name}{key}", value if key else f"org.apache.iceberg.spark.{value}"
        )
    run(
        spark,
        f"CREATE TABLE {name}.db.t (id INT, y STRING)",
        f"INSERT INTO {name}.db.t VALUES (1, 'a'), (2, 'b')",
    )
    return name


def record(spark: SparkSession, view: str) -> dict[str, Any]:
    """Return the record of the last refresh."""
    (found,) = rows(
        spark,
        f"SELECT summary['polaris.refresh'] FROM polaris.{view}.storage.snapshots ORDER BY committed_at DESC LIMIT 1",
    )
    document: dict[str, Any] = json.loads(found[0])
    return document


def test_a_table_of_another_catalog_is_pinned_and_refreshed_incrementally(
    spark: SparkSession, home: str, other: str
) -> None:
    space = home.partition(".")[2]
    query = f"SELECT t.id, n, y FROM t JOIN {other}.db.t AS o ON t.id = o.id"
    run(spark, f"CREATE MATERIALIZED VIEW v {INCREMENTAL} AS {query}")
    refreshed(spark, "v")
    assert refreshed(spark, "v")[0] == "none"
    (base,) = [one for one in record(spark, f"{space}.v")["base-tables"] if one["identifier"] != "t"]
    assert (base["type"], base["identifier"]) == ("iceberg-metastore", f"{other}.db.t")
    assert base["properties"]["catalog"] == other
    run(spark, f"INSERT INTO {other}.db.t VALUES (2, 'c')")
    (listed,) = spark.sql(f"SHOW MATERIALIZED VIEWS IN {home}").collect()
    assert (listed.fresh, listed.reason) == (False, f"changed: {other}.db.t")
    known = rows(
        spark,
        f"SELECT fresh, reason FROM polaris.system.materialized_views WHERE name = 'v' AND namespace = '{space}'",
    )
    why = f"only a Spark session can find out whether these have changed: {other}.db.t"
    assert known == [(None, why)]
    explained = spark.sql("EXPLAIN REFRESH MATERIALIZED VIEW v").collect()
    assert {(row.source, row.strategy, row.changed) for row in explained} == {
        (f"{space}.t", "incremental", False),
        (f"{other}.db.t", "incremental", True),
    }
    assert refreshed(spark, "v")[:2] == ("incremental", f"changed: {other}.db.t")
    run(spark, f"DELETE FROM {other}.db.t WHERE y = 'b'")
    assert sorted(rows(spark, "SELECT id, y FROM v")) == [(1, "a"), (2, "c")]  # refreshes
    assert record(spark, f"{space}.v")["strategy"] == "incremental"
    run(spark, f"ALTER TABLE {other}.db.t CREATE BRANCH b", f"INSERT INTO {other}.db.t VALUES (1, 'main')")
    run(spark, f"CREATE MATERIALIZED VIEW w {INCREMENTAL} AS SELECT count(*) AS c FROM {other}.db.t.branch_b")
    refreshed(spark, "w")
    assert rows(spark, "SELECT c FROM w") == [(2,)]
    run(spark, f"DROP TABLE {other}.db.t", f"CREATE TABLE {other}.db.t AS SELECT 1 AS id, 'new' AS y")
    assert "was replaced" in refreshed(spark, "v")[1]
    assert rows(spark, "SELECT id, y FROM v") == [(1, "new")]


def test_a_view_of_another_catalog_is_followed(spark: SparkSession, home: str, tmp_path: Path) -> None:
    other = add_catalog(spark, store=f"sqlite://{tmp_path / 'other.db'}", warehouse=str(tmp_path / "w"))
    run(
        spark,
        f"CREATE NAMESPACE {other}.db",
        f"CREATE TABLE {other}.db.t AS SELECT id FROM range(3)",
        f"CREATE VIEW {other}.db.big AS SELECT id AS number FROM {other}.db.t WHERE id > 0",
        f"CREATE MATERIALIZED VIEW v {INCREMENTAL} AS SELECT number FROM {other}.db.big",
    )
    refreshed(spark, "v")
    run(spark, f"INSERT INTO {other}.db.t VALUES (0), (7)")
    assert refreshed(spark, "v")[:2] == ("incremental", f"changed: {other}.db.t")
    run(spark, f"CREATE OR REPLACE VIEW {other}.db.big AS SELECT id AS number FROM {other}.db.t WHERE id > 1")
    assert sorted(rows(spark, "SELECT number FROM v")) == [(2,), (7,)]
    run(
        spark,
        f"CREATE VIEW {other}.db.small AS SELECT CAST(100 AS TINYINT) AS b FROM {other}.db.t LIMIT 1",
        f"CREATE MATERIALIZED VIEW sums AS SELECT b + b AS s FROM {other}.db.small",
    )
    refreshed(spark, "sums")
    assert rows(spark, "SELECT s FROM sums") == rows(spark, f"SELECT b + b FROM {other}.db.small") == [(200,)]


def test_an_iceberg_table_is_read_by_its_location(
    spark: SparkSession, home: str, other: str, tmp_path: Path
) -> None:
    location = tmp_path / other / "db" / "t"
    run(
        spark,
        f"CREATE MATERIALIZED VIEW v {INCREMENTAL} AS SELECT y, count(*) AS c FROM iceberg.`{location}` GROUP BY y",
    )
    refreshed(spark, "v")
    (base,) = record(spark, f"{home.partition('.')[2]}.v")["base-tables"]
    assert (base["type"], base["location"]) == ("iceberg-filesystem", str(location))
    run(spark, f"INSERT INTO {other}.db.t VALUES (3, 'b')")
    assert refreshed(spark, "v")[0] == "incremental"
    assert sorted(rows(spark, "SELECT * FROM v")) == [("a", 1), ("b", 2)]
    assert rows(spark, f"SELECT count(*) FROM iceberg.`{location}`") == [(3,)]


def test_sources_that_cannot_be_read_are_refused(spark: SparkSession, home: str, other: str) -> None:
    run(spark, "CREATE TABLE spark_catalog.default.plain_table (id INT) USING parquet")
    refused = {
        "iceberg.`/nowhere/t`": "there is no Iceberg table at /nowhere/t",
        "iceberg.`some/t`": "is relative",
        "iceberg.`/nowhere/t#snapshots`": "contains '#'",
        "delta.`/nowhere/t`": "this Spark session cannot read delta.`/nowhere/t`",
        f"{other}.db.missing": "is neither a table nor a view",
        "spark_catalog.default.plain_table": "is not an Iceberg table",
    }
    try:
        for name, why in refused.items():
            with pytest.raises(PySparkException, match=why):
                run(spark, f"CREATE MATERIALIZED VIEW v AS SELECT * FROM {name}")
    finally:
        run(spark, "DROP TABLE spark_catalog.default.plain_table")
    assert rows(spark, f"SHOW VIEWS IN {home}") == []


@pytest.mark.long
def test_a_delta_table_is_read_by_its_location(spark: SparkSession, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.spark.delta_sources", str(tmp_path)]
    environment = {name: text for name, text in os.environ.items() if name != "PYSPARK_SUBMIT_ARGS"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3_000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["first"] == ["full", [[1, "a", "z1"], [2, "b", "z2"]]]
    assert found["base"]["type"] == "deltalake-filesystem"
    assert found["base"]["snapshot-reference"] == 0
    assert found["base"]["location"] == str(tmp_path / "delta")
    assert found["after a change of the other table"] == [
        "incremental",
        [[1, "a", "z1"], [2, "b", "z2"], [2, "c", "z2"]],
    ]
    assert found["fresh"] == [True, False]
    assert found["after an append"][0] == "full"
    assert [1, "a", "z9"] in found["after an append"][1]
    assert "the changes of Delta tables" in found["reason"]
    assert "/delta cannot be read" in found["gone"]
