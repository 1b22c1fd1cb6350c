"""Two driver programs on one store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from tests.spark.two_drivers import Driver

if TYPE_CHECKING:
    from conftest import CatalogPlace


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
    spark.sql(f"CREATE TABLE {namespace}.race (who STRING, n INT)")
    other = threading.Thread(
        target=lambda: [driver.sql(f"INSERT INTO {namespace}.race VALUES ('b', {n})") for n in range(10)]
    )
    other.start()
    for n in range(10):
        spark.sql(f"INSERT INTO {namespace}.race VALUES ('a', {n})")
    other.join()
    got = sorted((row.who, row.n) for row in spark.table(f"{namespace}.race").collect())
    assert got == [(who, n) for who in "ab" for n in range(10)]
