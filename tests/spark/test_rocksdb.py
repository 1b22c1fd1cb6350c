"""Spark on a store in RocksDB, which the bridge writes and Spark's workers read at the same time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.catalogs import add_catalog


def test_workers_and_the_command_line_read_what_the_session_is_writing(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = f"rocksdb://{tmp_path}/store"
    catalog = add_catalog(spark, store=store, warehouse=str(tmp_path / "warehouse"))
    spark.sql(f"CREATE NAMESPACE {catalog}.shop")
    spark.sql(f"CREATE TABLE {catalog}.shop.orders (id INT, item STRING)")
    for number in range(3):
        spark.sql(f"INSERT INTO {catalog}.shop.orders VALUES ({number}, 'tea')")
        snapshots = spark.table(f"{catalog}.system.snapshots").where("name = 'orders'")
        assert snapshots.count() == number + 1
    counted = spark.table(f"{catalog}.system.objects").count()
    assert counted > 10
    shown = subprocess.run(
        [sys.executable, "-c", "from polaris_spark.cli import main; main()", "log", store],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "create-table" in shown.stdout
    spark.sql(f"INSERT INTO {catalog}.shop.orders VALUES (4, 'coffee')")
    assert spark.table(f"{catalog}.shop.orders").count() == 4
    assert spark.table(f"{catalog}.system.objects").count() > counted
