"""Streaming drivers that are killed at random times, while other processes commit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from polaris_spark.testing.waiting import PATIENCE_S, wait_until
from tests.sizes import TIMES
from tests.views.catalogs import Catalog

KILLS = TIMES


@pytest.mark.long
def test_every_change_is_there_once_however_often_the_driver_is_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    catalog = Catalog(tmp_path / "c.db")
    catalog.namespace("db")
    catalog.table("db", "t")
    seed = os.environ.get("POLARIS_SPARK_SEED", "feed")
    print("seed", seed)
    draw, done = random.Random(seed), threading.Event()

    def write() -> None:
        while not done.wait(0.1):
            catalog.set_property("db", "t", "at", str(time.monotonic()))

    writer = threading.Thread(target=write)
    writer.start()
    sink, checkpoint = tmp_path / "sink", tmp_path / "checkpoint"
    command = [sys.executable, "-m", "tests.spark.feed_driver", catalog.store, str(sink), str(checkpoint)]
    try:
        for _ in range(KILLS):
            enough = partial(reached, checkpoint, batches(checkpoint) + draw.randrange(1, 4))
            # Its JVM is of the same group.
            driver = subprocess.Popen(
                command,
                cwd=Path(__file__).parents[2],
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                wait_until(enough, "some batches are committed")
                time.sleep(draw.random())  # amid whatever it does then
            finally:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()
    finally:
        done.set()
        writer.join()
    options = {"store": catalog.store, "view": "changes", "catalog": "polaris"}
    before, rows = -1, 0
    while rows > before:
        changes = spark.readStream.format("polaris-objects").options(**options).load()
        last = changes.writeStream.format("parquet").option("path", str(sink)).trigger(availableNow=True)
        query = last.option("checkpointLocation", str(checkpoint)).start()
        assert query.awaitTermination(PATIENCE_S)
        before, rows = rows, spark.read.parquet(str(sink)).count()
    found = spark.read.parquet(str(sink)).collect()
    expected = catalog.read("changes")
    catalog.session.close()
    assert sorted((row.number, row.position) for row in found) == sorted(
        (row["number"], row["position"]) for row in expected
    )
    assert batches(checkpoint) > KILLS


def reached(checkpoint: Path, count: int) -> bool:
    return batches(checkpoint) >= count


def batches(checkpoint: Path) -> int:
    """Return the number of committed batches."""
    return sum(path.name.isdigit() for path in (checkpoint / "commits").glob("*"))
