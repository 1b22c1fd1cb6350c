"""Two driver programs on one store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from tests.spark.merging import CONFLICTS, Outcome, merge_repeatedly
from tests.spark.sql import rows, run
from tests.spark.two_drivers import Driver

if TYPE_CHECKING:
    from conftest import CatalogPlace

pytestmark = pytest.mark.spark

MERGES = 4


@pytest.fixture(scope="module")
def driver(spark: SparkSession, place: CatalogPlace) -> Iterator[Driver]:
    """A second driver program on the store of the shared session."""
    started = Driver(place.store, place.warehouse)
    yield started
    started.close()


def test_two_drivers_see_each_others_commits_at_once(
    spark: SparkSession, namespace: str, driver: Driver
) -> None:
    spark.sql(f"CREATE TABLE {namespace}.shared AS SELECT 1 AS n")
    for n in range(2, 6):
        # Each has just read the table, so whatever it keeps of it is fresh, and stale a moment later.
        assert driver.sql(f"SELECT count(*) AS c FROM {namespace}.shared") == [{"c": n - 1}]
        spark.sql(f"INSERT INTO {namespace}.shared VALUES ({n})")
        assert driver.sql(f"SELECT max(n) AS m FROM {namespace}.shared") == [{"m": n}]
        driver.sql(f"UPDATE {namespace}.shared SET n = n WHERE n = {n}")
        assert spark.table(f"{namespace}.shared.snapshots").count() == 1 + 2 * (n - 1)


def test_a_table_dropped_and_made_again_elsewhere_is_the_new_one(
    spark: SparkSession, namespace: str, driver: Driver
) -> None:
    spark.sql(f"CREATE TABLE {namespace}.again AS SELECT 1 AS n")
    assert spark.table(f"{namespace}.again").count() == 1
    driver.sql(f"DROP TABLE {namespace}.again")
    driver.sql(f"CREATE TABLE {namespace}.again AS SELECT 'x' AS other")
    assert spark.table(f"{namespace}.again").columns == ["other"]


def test_a_table_dropped_elsewhere_can_be_made_here(
    spark: SparkSession, namespace: str, driver: Driver
) -> None:
    spark.sql(f"CREATE TABLE {namespace}.anew (n INT)")
    spark.table(f"{namespace}.anew").collect()
    driver.sql(f"DROP TABLE {namespace}.anew")
    spark.sql(f"CREATE TABLE {namespace}.anew (other STRING)")
    assert driver.sql(f"DESCRIBE {namespace}.anew")[0]["col_name"] == "other"


def test_drivers_that_write_at_the_same_time_lose_nothing(
    spark: SparkSession, namespace: str, driver: Driver
) -> None:
    # Iceberg's four retries do not always suffice on a slow machine; this test is not about who wins a race.
    retries = "'commit.retry.num-retries' = '1000', 'commit.retry.max-wait-ms' = '500'"
    spark.sql(f"CREATE TABLE {namespace}.race (who STRING, n INT) TBLPROPERTIES ({retries})")
    other = threading.Thread(
        target=lambda: [driver.sql(f"INSERT INTO {namespace}.race VALUES ('b', {n})") for n in range(10)]
    )
    other.start()
    for n in range(10):
        spark.sql(f"INSERT INTO {namespace}.race VALUES ('a', {n})")
    other.join()
    got = sorted((row.who, row.n) for row in spark.table(f"{namespace}.race").collect())
    assert got == [(who, n) for who in "ab" for n in range(10)]


def at_once(spark: SparkSession, driver: Driver, table: str, overlapping: bool) -> list[Outcome]:
    """Run merges in both drivers, on the same rows or on rows in other partitions, and return the outcomes."""
    outcomes: dict[str, Outcome] = {}
    here, there = ([1, 2], [2, 3]) if overlapping else ([1, 2], [11, 12])
    # What a merge looks at is what its condition says of the table alone.
    within, beyond = ("true", "true") if overlapping else ("t.id < 10", "t.id BETWEEN 10 AND 19")

    def elsewhere() -> None:
        outcomes["there"] = merge_repeatedly(driver.sql, table, [there] * MERGES, 200, beyond)

    other = threading.Thread(target=elsewhere)
    other.start()
    outcomes["here"] = merge_repeatedly(spark.sql, table, [here] * MERGES, 100, within)
    other.join()
    return [outcomes["here"], outcomes["there"]]


@pytest.mark.parametrize(
    ("isolation", "mode", "version", "overlapping"),
    [
        ("serializable", "copy-on-write", 2, True),
        ("serializable", "merge-on-read", 2, False),
        ("snapshot", "merge-on-read", 3, True),
        ("snapshot", "copy-on-write", 3, False),
    ],
)
def test_every_acknowledged_merge_is_there_and_no_refused_one(
    spark: SparkSession,
    namespace: str,
    driver: Driver,
    isolation: str,
    mode: str,
    version: int,
    overlapping: bool,
) -> None:
    table = f"{namespace}.merged"
    run(
        spark,
        f"CREATE TABLE {table} (id INT, n INT) PARTITIONED BY (truncate(10, id)) TBLPROPERTIES"
        f" ('write.merge.isolation-level' = '{isolation}', 'write.merge.mode' = '{mode}',"
        f" 'format-version' = '{version}')",
        f"INSERT INTO {table} SELECT CAST(id AS INT), 0 FROM range(20)",
    )
    outcomes = at_once(spark, driver, table, overlapping)
    expected = dict.fromkeys(range(20), 0)
    for outcome in outcomes:
        for id, times in outcome.added.items():
            expected[id] += times
        expected |= dict.fromkeys(outcome.inserted, 0)
    assert dict(rows(spark, f"SELECT id, n FROM {table}")) == expected
    assert rows(spark, f"SELECT count(*) FROM {table}") == [(len(expected),)]
    for refusal in (text for outcome in outcomes for text in outcome.refused):
        assert any(word in refusal for word in CONFLICTS), refusal
        assert "CommitStateUnknown" not in refusal
    made = rows(spark, f"SELECT count(*) FROM {table}.snapshots")
    assert made == [(1 + sum(len(outcome.inserted) for outcome in outcomes),)]
    done = [len(outcome.inserted) for outcome in outcomes]
    assert max(done) >= 1 if overlapping else done == [MERGES, MERGES], outcomes
