"""Drivers that are killed while they refresh a materialized view: at random times, and at each step."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from polaris_spark.jobs.registry import call
from polaris_spark.testing.waiting import PATIENCE_S, wait_until
from tests.maintenance.lakes import Lake
from tests.maintenance.test_materialized_views import below, needed
from tests.sizes import TIMES
from tests.spark.catalogs import add_catalog
from tests.spark.refresh_driver import QUERY
from tests.spark.sql import rows

KILLS = TIMES


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


STEPS = [(step, full) for full in ("", "FULL") for step in ("plan", "rows", "commit", "answer")]
"""Steps of `killing_bridge.py`, and whether the refresh is full."""


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([("commit", ""), ("answer", "FULL")], marks=pytest.mark.long, id="some"),
        pytest.param(STEPS, marks=pytest.mark.exhaustive, id="all"),
    ],
)
def test_a_refresh_may_be_killed_at_each_step_and_leaves_only_orphan_files(
    tmp_path: Path, steps: list[tuple[str, str]]
) -> None:
    store, warehouse = f"sqlite://{tmp_path}/c.db", tmp_path / "w"
    warehouse.mkdir()
    for number, (step, full) in enumerate(steps):
        armed, python = warehouse / f"refreshed-{number}", tmp_path / f"python-{number}"
        program = Path(__file__).with_name("killing_bridge.py")
        python.write_text(
            f'#!/bin/sh\nKILL_AT={step} KILL_ARMED="{armed}" exec "{sys.executable}" "{program}"\n'
        )
        python.chmod(0o755)
        arguments = [store, str(warehouse), str(number), str(python), full]
        command = [sys.executable, "-m", "tests.spark.refresh_driver", *filter(None, arguments)]
        done = subprocess.run(
            command,
            cwd=Path(__file__).parents[2],
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        # The refresh after the last kill has succeeded, and another one was killed.
        assert armed.exists(), done.stderr[-3_000:]
        lake = Lake(store, warehouse, catalog="polaris", grace="0s")
        stored, kept = lake.catalog.load_table("db.mv.storage"), needed(lake, "db.mv")
        assert (result(lake) == stored_rows(stored)) == (step == "answer"), (step, full)
        summary: dict[str, str] = stored.snapshots()[-1].summary.additional_properties  # type: ignore[union-attr]
        assert json.loads(summary["polaris.refresh"])["strategy"] == ("full" if full else "incremental")
        folder = below(lake, "db.mv")
        lake.old()
        written = files(folder)
        data = [file for file in written - kept if file.suffix == ".parquet"]
        assert bool(data) == (step == "commit"), (step, full, data)
        call(lake.session, "remove_orphans", table="db.mv", dry_run=False)
        assert files(folder) == kept
        assert call(lake.session, "fsck") == []
        lake.close()


def files(folder: Path) -> set[Path]:
    """The files in a folder, without the checksums that Hadoop writes beside each."""
    return {file for file in folder.rglob("*") if file.is_file() and file.suffix != ".crc"}


def stored_rows(table: Table) -> list[tuple[int, ...]]:
    """The rows of the view, sorted."""
    found = table.scan(selected_fields=("g", "s", "c", "m")).to_arrow().to_pylist()
    return sorted((row["g"], row["s"], row["c"], row["m"]) for row in found)


def result(lake: Lake) -> list[tuple[int, ...]]:
    """The rows of `QUERY`, sorted."""
    groups: dict[int, list[int]] = {}
    for row in lake.catalog.load_table("db.t").scan().to_arrow().to_pylist():
        groups.setdefault(row["k"] % 5, []).append(row["n"])
    return sorted((key, sum(found), len(found), max(found)) for key, found in groups.items())
