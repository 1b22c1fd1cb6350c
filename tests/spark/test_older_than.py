"""`older_than` means the same for every job: older than a time, or than a duration before now."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from polaris_spark.errors import InputError
from polaris_spark.jobs.maintenance import time_before_ms
from polaris_spark.jobs.registry import call
from tests.maintenance.lakes import Lake, paths

NOW = 1_767_225_600_000
"""2026-01-01T00:00:00Z"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 s", NOW),
        (" 1.5h ", NOW - 5_400_000),
        ("3 d", NOW - 3 * 86_400_000),
        ("2025-12-31", NOW - 86_400_000),
        ("2025-12-31T23:59:59.5Z", NOW - 500),
        ("2025-12-31 23:59:59.123456", NOW - 877),
        ("2026-01-01T01:00:00+01:00", NOW),
        ("2124-01-01T00:00:00Z", 4_859_740_800_000),
    ],
)
def test_a_time_or_a_duration(text: str, expected: int) -> None:
    assert time_before_ms("older_than", text, NOW) == expected


def test_a_time_without_a_zone_is_in_the_one_that_is_given() -> None:
    zone = timezone(timedelta(hours=2))
    assert time_before_ms("older_than", "2026-01-01 02:00:00", NOW, lambda: zone) == NOW
    assert time_before_ms("older_than", "2026-01-01 00:00:00Z", NOW, lambda: zone) == NOW


@pytest.mark.parametrize(
    "text", ["", "5", "yesterday", "3 weeks", "2026-13-01", "-3 d", "2026-01-01T25:00:00Z", "9" * 400 + " d"]
)
@pytest.mark.parametrize("job", ["expire", "remove_orphans"])
def test_anything_else_is_refused_with_the_parameters_name(lake: Lake, job: str, text: str) -> None:
    with pytest.raises(InputError, match=f"older_than is '{text}'; write a time in ISO 8601"):
        call(lake.session, job, older_than=text)


@pytest.mark.parametrize("text", ["2026-01-01Z", "2026-01-01+02:00", "2026-01-01-05:00", "2026-01-01.05"])
def test_a_date_with_a_zone_is_not_read_as_a_time_of_day_in_another_zone(text: str) -> None:
    with pytest.raises(InputError, match="older_than is '2026-01-01"):
        time_before_ms("older_than", text, NOW, lambda: timezone(timedelta(hours=-8)))


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    lake = Lake(f"sqlite://{tmp_path}/c.db", tmp_path / "warehouse")
    yield lake
    lake.close()


def days_ago(days: float) -> str:
    return (datetime.now(timezone.utc) - timedelta(days=days)).isoformat()


def test_orphans_older_than_a_time(lake: Lake) -> None:
    young, old = lake.stray("young", days=2), lake.stray("old", days=5)
    assert paths(lake.remove(older_than=days_ago(4))) == {old}
    assert paths(lake.remove(older_than=days_ago(1.5))) == {old, young}
    with pytest.raises(InputError, match="24 hours"):
        lake.remove(older_than=days_ago(0.5))
    assert paths(lake.remove(older_than=days_ago(0.5), force=True)) == {old, young}


def test_snapshots_older_than_a_time_or_a_duration(lake: Lake) -> None:
    table = lake.table(appends=3)

    def would_go(**arguments: Any) -> int:
        return sum(row[1] for row in call(lake.session, "expire", dry_run=True, **arguments))

    middle = table.metadata.snapshots[1].timestamp_ms
    between = datetime.fromtimestamp(middle / 1_000, timezone.utc).isoformat()
    assert would_go(older_than=between) == 1
    assert would_go(older_than="1 h") == 0
    assert would_go(older_than="0 s") == 2


@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles", "+05:30"])
def test_a_statement_takes_timestamps_times_and_durations(
    spark: SparkSession, namespace: str, zone: str
) -> None:
    table = f"{namespace}.t"
    spark.sql(f"CREATE TABLE {table} (id BIGINT) USING iceberg")
    spark.sql(f"INSERT INTO {table} VALUES (1)")
    time.sleep(0.002)
    middle = int(time.time() * 1_000)
    time.sleep(0.002)
    for id in (2, 3):
        spark.sql(f"INSERT INTO {table} VALUES ({id})")
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        [literal] = spark.sql(f"SELECT string(timestamp_millis({middle}))").collect()[0]
        for older_than in (
            f"timestamp_millis({middle})",
            f"TIMESTAMP '{literal}'",
            f"'{literal}'",
            f"'{datetime.fromtimestamp(middle / 1_000, timezone.utc).isoformat()}'",
        ):
            rows = spark.sql(
                f"CALL polaris.system.expire(table => '{table}', older_than => {older_than}, dry_run => true)"
            ).collect()
            assert [row.snapshots for row in rows] == [1], older_than
        rows = spark.sql(
            f"CALL polaris.system.expire(table => '{table}', older_than => '0 s', dry_run => true)"
        )
        assert [row.snapshots for row in rows.collect()] == [2]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")
