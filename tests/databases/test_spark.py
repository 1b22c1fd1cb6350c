"""Spark on every database: SQL statements, system views, and a job whose rows executors read."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.databases.conftest import VISIBLE
from tests.stores import StoreOn, configured, databases


@pytest.mark.parametrize("database", databases(VISIBLE, ordinary=()))
def test_statements_views_and_a_job_work(
    first_session: SparkSession, store_on: StoreOn, tmp_path: Path, database: str
) -> None:
    spark = first_session.newSession()
    given = configured(store_on(database)) | {"warehouse": str(tmp_path / "warehouse")}
    for name, value in given.items():
        spark.conf.set(f"spark.sql.catalog.polaris.{name}", value)
    spark.sql("CREATE NAMESPACE polaris.db")
    spark.sql("CREATE TABLE polaris.db.t (id BIGINT, name STRING)")
    spark.sql("INSERT INTO polaris.db.t VALUES (1, 'a'), (2, 'b')")
    spark.sql("UPDATE polaris.db.t SET name = 'c' WHERE id = 2")
    assert sorted(tuple(row) for row in spark.table("polaris.db.t").collect()) == [(1, "a"), (2, "c")]
    count = "SELECT count(*) FROM polaris.db.t VERSION AS OF {}"
    snapshots = spark.sql("SELECT snapshot_id FROM polaris.db.t.snapshots ORDER BY committed_at").collect()
    assert [spark.sql(count.format(row[0])).first()[0] for row in snapshots] == [2, 2]  # type: ignore[index]  # a row
    seen = spark.sql("SELECT namespace, name FROM polaris.system.tables").collect()
    assert [tuple(row) for row in seen] == [("db", "t")]
    actions = spark.sql("SELECT action FROM polaris.system.changes ORDER BY number, position").collect()
    assert [row.action for row in actions] == [
        "create-namespace",
        "create-table",
        "update-table",
        "update-table",
    ]
    spark.sql("DROP TABLE polaris.db.t PURGE")
    swept = spark.sql("CALL polaris.system.sweep(dry_run => true)").collect()
    assert swept
    (found,) = spark.sql("SELECT count(*) FROM polaris.system.tables").collect()
    assert found[0] == 0
