"""The child process: one serves all catalogs, a new one replaces a dead one, and it ends with its driver."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from polaris_spark.testing.waiting import PATIENCE_S, wait_until
from tests.spark.catalogs import add_catalog
from tests.spark.processes import bridge_process, bridge_processes, is_running
from tests.spark.two_drivers import Driver

if TYPE_CHECKING:
    from conftest import CatalogPlace

pytestmark = pytest.mark.spark


def test_one_child_serves_all_catalogs_of_a_session(spark: SparkSession, place: CatalogPlace) -> None:
    spark.sql("SHOW NAMESPACES IN polaris").collect()
    before = bridge_process(spark)
    spark.sql(f"SHOW NAMESPACES IN {add_catalog(spark, store=place.store, warehouse='/w')}").collect()
    assert bridge_process(spark) == before


class Killer(threading.Thread):
    """Kills the child at random moments, and lets a whole statement through between two kills.

    A request is sent twice at most, so a child that is killed before the repeated one is answered would make
    its outcome unknown, which is not what is asked here. A child that is killed when the last request of a
    statement was answered is missed by the next statement only, so that one is let through, too.
    """

    def __init__(self, spark: SparkSession, acknowledged: list[int]) -> None:
        super().__init__()
        self.spark = spark
        self.acknowledged = acknowledged
        self.killed: set[int] = set()
        self.done = threading.Event()
        self.random = random.Random(4711)

    def until_killed(self, least: int) -> Iterator[int]:
        """Yield numbers from 0 until the child was killed several times, and at least this number of them."""
        end = time.monotonic() + PATIENCE_S
        for number in count():
            if number >= least and len(self.killed) >= 5:
                return
            assert number < least or (self.is_alive() and time.monotonic() < end), self.killed
            yield number

    def run(self) -> None:
        seen = -2
        while not self.done.wait(self.random.uniform(0.01, 0.1)):
            if len(self.acknowledged) < seen + 2:
                continue
            for child in set(bridge_processes(self.spark)) - self.killed:
                seen = len(self.acknowledged)
                os.kill(child, signal.SIGKILL)
                self.killed.add(child)


def test_every_acknowledged_commit_is_there_exactly_once_though_the_child_is_killed_again_and_again(
    spark: SparkSession, namespace: str
) -> None:
    spark.sql(f"CREATE TABLE {namespace}.stream (n INT)")
    acknowledged: list[int] = []
    killer = Killer(spark, acknowledged)
    killer.start()
    try:
        for n in killer.until_killed(20):
            spark.sql(f"INSERT INTO {namespace}.stream VALUES ({n})")
            acknowledged.append(n)
    finally:
        killer.done.set()
        killer.join()
    assert sorted(row.n for row in spark.table(f"{namespace}.stream").collect()) == acknowledged
    assert spark.table(f"{namespace}.stream.snapshots").count() == len(acknowledged) >= 20


def test_no_namespace_is_lost_or_made_twice_though_the_child_is_killed_again_and_again(
    spark: SparkSession, namespace: str
) -> None:
    acknowledged: list[int] = []
    killer = Killer(spark, acknowledged)
    killer.start()
    try:
        for n in killer.until_killed(60):
            # Without the operation id of the first attempt, the second would say that it already exists.
            spark.sql(f"CREATE NAMESPACE {namespace}.n{n:02}")
            acknowledged.append(n)
    finally:
        killer.done.set()
        killer.join()
    listed = [row.namespace for row in spark.sql(f"SHOW NAMESPACES IN {namespace}").collect()]
    assert len(listed) == len(acknowledged) >= 60


def test_threads_are_answered_side_by_side(spark: SparkSession, namespace: str) -> None:
    def create(n: int) -> None:
        spark.sql(f"CREATE NAMESPACE {namespace}.thread{n}")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(create, range(40)))
    assert spark.sql(f"SHOW NAMESPACES IN {namespace}").count() == 40


def test_threads_that_have_ended_leave_no_connections(spark: SparkSession) -> None:
    def connections() -> int:
        return len(os.listdir(f"/proc/{bridge_process(spark)}/fd"))

    def ask_on_a_thread_of_its_own() -> None:
        thread = threading.Thread(target=spark.sql, args=("SHOW NAMESPACES IN polaris",))
        thread.start()
        thread.join()

    ask_on_a_thread_of_its_own()
    before = connections()
    for _ in range(60):
        ask_on_a_thread_of_its_own()
    wait_until(lambda: connections() < before + 30, "connections are closed", every_s=0.05)


def test_a_driver_that_is_killed_leaves_no_child(place: CatalogPlace) -> None:
    mortal = Driver(place.store, place.warehouse)
    assert is_running(mortal.child)
    os.kill(mortal.jvm, signal.SIGKILL)
    mortal.process.kill()
    wait_until(lambda: not is_running(mortal.child), "the child ended", every_s=0.05)
