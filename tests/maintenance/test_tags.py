"""A tag keeps the files and rows of its state."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from polaris_spark.clock import ManualClock
from polaris_spark.jobs.registry import call
from polaris_spark.pyiceberg import PolarisCatalog
from tests.maintenance.conftest import Open
from tests.maintenance.histories import SCHEMA, ids, rows
from tests.maintenance.test_lost_references import DELETING, age

DAY_MS = 86_400_000


def maintain(lake: PolarisCatalog, folder: Path) -> None:
    """Run every job that deletes rows or files, twice."""
    for _ in range(2):
        age(folder)
        for job, arguments in DELETING.items():
            call(lake._opened, job, **arguments)
        call(lake._opened, "sweep")


@pytest.mark.parametrize("purge", [False, True], ids=["drop", "purge"])
def test_a_table_that_only_a_tag_has_keeps_its_files(opened: Open, tmp_path: Path, purge: bool) -> None:
    clock = ManualClock(int(time.time() * 1_000))
    lake = opened(clock=clock)
    lake.create_namespace("db")
    kept = lake.create_table("db.kept", SCHEMA)
    kept.append(rows(1))
    expired = lake.create_table("db.expired", SCHEMA)
    expired.append(rows(2))
    call(lake._opened, "create_tag", name="v1")
    expired.overwrite(rows(3))
    (lake.purge_table if purge else lake.drop_table)("db.kept")
    clock.advance(30 * DAY_MS)
    maintain(lake, tmp_path)
    tag = opened(clock=clock, as_of="v1")
    assert ids(tag.load_table("db.kept")) == [1]
    assert ids(tag.load_table("db.expired")) == [2]
    assert call(lake._opened, "fsck") == []
    there = len(list(tmp_path.rglob("*.parquet")))
    call(lake._opened, "drop_tag", name="v1")
    clock.advance(30 * DAY_MS)
    maintain(lake, tmp_path)
    assert len(list(tmp_path.rglob("*.parquet"))) == there - 2
