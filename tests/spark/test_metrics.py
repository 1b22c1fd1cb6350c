"""Metrics reports that Spark's scans and commits send."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from polaris_spark.testing.waiting import wait_until


@pytest.mark.spark
def test_scans_and_commits_are_reported(spark: SparkSession, namespace: str) -> None:
    spark.sql(f"CREATE TABLE {namespace}.t (n INT, s STRING)")
    spark.sql(f"INSERT INTO {namespace}.t VALUES (1, 'a'), (2, 'b')")
    assert spark.sql(f"SELECT s FROM {namespace}.t WHERE n > 1").collect()[0].s == "b"
    space = namespace.rpartition(".")[2]
    reports = f"SELECT * FROM polaris.system.metrics WHERE namespace = '{space}' AND name = 't'"
    wait_until(lambda: spark.sql(reports).count() == 2, "both reports are there", every_s=0.05)
    by_type = {row.report_type: row for row in spark.sql(reports).collect()}
    commit, scan = by_type["commit-report"], by_type["scan-report"]
    assert (commit.operation, commit.metrics["added-records"]) == ("append", 2)
    assert (scan.snapshot_id, scan.metrics["result-data-files"]) == (commit.snapshot_id, 1)
    assert list(scan.projected_columns) == ["n", "s"]
    assert "4.1" in scan.metadata["engine-version"]
