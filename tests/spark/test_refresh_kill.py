"""Drivers that are killed at random times while they refresh a materialized view incrementally."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from polaris_spark.testing.waiting import wait_until
from tests.spark.catalogs import add_catalog
from tests.spark.refresh_driver import QUERY
from tests.spark.sql import rows

KILLS = 2


@pytest.mark.long
def test_stored_rows_are_those_of_a_refresh_whenever_the_driver_is_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    seed = os.environ.get("POLARIS_SPARK_SEED", "refresh")
    print("seed", seed)
    draw = random.Random(seed)
    store, warehouse = f"sqlite://{tmp_path}/c.db", tmp_path / "w"
    warehouse.mkdir()
    for number in range(KILLS):
        refreshed = warehouse / f"refreshed-{number}"
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.refresh_driver", store, str(warehouse), str(number)],
            cwd=Path(__file__).parents[2],
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # its JVM is of the same group
        )
        try:
            wait_until(refreshed.exists, "a refresh is done")
            time.sleep(2 * draw.random())  # amid whatever it does then
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    catalog = add_catalog(spark, store=store, warehouse=str(warehouse), catalog="polaris")
    stored = f"{catalog}.db.mv.storage"
    found = rows(spark, f"SELECT g, s, c, m FROM {stored}")
    table = f"{catalog}.db.t"
    states = [
        rows(spark, QUERY.replace("FROM t", f"FROM {table} VERSION AS OF {snapshot}"))
        for (snapshot,) in rows(spark, f"SELECT snapshot_id FROM {table}.snapshots")
    ]
    assert found in states
    [refresh] = spark.sql(f"CALL {catalog}.system.refresh(view => 'db.mv')").collect()
    assert refresh.strategy in ("incremental", "none"), refresh.reason
    assert rows(spark, f"SELECT g, s, c, m FROM {stored}") == rows(
        spark, QUERY.replace("FROM t", f"FROM {table}")
    )
    assert rows(spark, f"CALL {catalog}.system.fsck()") == []
