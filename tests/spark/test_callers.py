"""Java threads that call the catalog: interrupted threads, many threads at once, and the data that they send and
receive."""

from __future__ import annotations

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from polaris_spark.testing.waiting import PATIENCE_S, wait_until
from tests.spark.processes import bridge_process, sockets

if TYPE_CHECKING:
    from conftest import CatalogPlace

pytestmark = pytest.mark.spark


FURTHER = {"store.timeout": "20 s", "s3.region": "nowhere-1"}


class Caller:
    """Iceberg's Java interface of the catalog. Each Python thread calls it on a Java thread of its own."""

    def __init__(self, spark: SparkSession, place: CatalogPlace) -> None:
        self._spark = spark
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._catalog = jvm.io.polarisspark.PolarisRESTCatalog()
        self._catalog.setConf(spark._jsc.hadoopConfiguration())
        properties = {"store": place.store, "warehouse": place.warehouse, "catalog": "polaris", **FURTHER}
        python = spark.conf.get("spark.pyspark.python", None) or os.environ["PYSPARK_PYTHON"]
        self._catalog.initialize("polaris", {**properties, "python": python})

    def namespace(self, *levels: str) -> Any:
        gateway: Any = self._spark.sparkContext._gateway
        array = gateway.new_array(self._jvm.java.lang.String, len(levels))
        for position, level in enumerate(levels):
            array[position] = level
        return self._jvm.org.apache.iceberg.catalog.Namespace.of(array)

    def create(self, *levels: str, **properties: str) -> None:
        self._catalog.createNamespace(self.namespace(*levels), properties)

    def properties(self, *levels: str) -> dict[str, str]:
        return dict(self._catalog.loadNamespaceMetadata(self.namespace(*levels)))

    def list(self, *levels: str) -> list[Any]:
        return list(self._catalog.listNamespaces(self.namespace(*levels)))

    def file_properties(self, namespace: str, name: str) -> dict[str, str]:
        """Return the properties that executors receive with a table."""
        table = self._jvm.org.apache.iceberg.catalog.TableIdentifier.of(self.namespace(namespace), name)
        return dict(self._catalog.loadTable(table).io().properties())

    def thread(self) -> Any:
        return self._jvm.java.lang.Thread.currentThread()

    def take_interrupt(self) -> bool:
        """Return whether this thread was interrupted, and clear the flag."""
        return bool(self._jvm.java.lang.Thread.interrupted())


@pytest.fixture
def caller(spark: SparkSession, place: CatalogPlace) -> Caller:
    return Caller(spark, place)


def test_a_caller_that_is_interrupted_again_and_again_gets_its_answers_and_keeps_the_interrupt(
    caller: Caller, namespace: str
) -> None:
    space = namespace.rpartition(".")[2]
    ready, done, thread = threading.Event(), threading.Event(), []

    def work() -> bool:
        thread.append(caller.thread())
        ready.set()
        try:
            for n in range(100):
                # Were it sent again under another operation id, it would be refused: the first one made it.
                caller.create(space, f"n{n}")
        finally:
            done.set()
        return caller.take_interrupt()

    def watch() -> int:
        calls = 0
        while not done.is_set():
            caller.list(space)
            calls += 1
        return calls

    delays, longest = random.Random(4711), 0.004
    with ThreadPoolExecutor(2) as threads:
        working, watching = threads.submit(work), threads.submit(watch)
        assert ready.wait(PATIENCE_S)
        while not done.wait(delays.uniform(0, longest)):
            thread[0].interrupt()
            # However slow the machine, there is a gap in which a request comes through.
            longest *= 1.01
        assert working.result(timeout=PATIENCE_S) is True
        assert watching.result(timeout=PATIENCE_S) > 0
    assert len(caller.list(space)) == 100


def test_a_caller_that_was_interrupted_before_it_calls_is_answered(caller: Caller, namespace: str) -> None:
    space = namespace.rpartition(".")[2]
    caller.thread().interrupt()
    caller.create(space, "interrupted")
    assert caller.take_interrupt()
    assert len(caller.list(space)) == 1


def test_a_body_of_megabytes_comes_through_as_it_is(caller: Caller, namespace: str) -> None:
    space = namespace.rpartition(".")[2]
    text = "ü𝄞\n\\" * 500_000
    caller.create(space, "large", comment=text)
    assert caller.properties(space, "large")["comment"] == text


def test_tables_carry_what_their_files_need_and_nothing_of_how_to_reach_the_store(
    spark: SparkSession, caller: Caller, namespace: str
) -> None:
    spark.sql(f"CREATE TABLE {namespace}.t (n INT)")
    carried = caller.file_properties(namespace.rpartition(".")[2], "t")
    assert carried["s3.region"] == "nowhere-1"
    assert [name for name in carried if name.startswith("store")] == []


@pytest.mark.parametrize("level", ["a\\nb", "\\", '"', "ü𝄞", "a b+c%2F", "\u00a0"])
def test_names_are_escaped_on_the_way(caller: Caller, namespace: str, level: str) -> None:
    space = namespace.rpartition(".")[2]
    caller.create(space, level)
    caller.create(space, level, "below")
    assert [below.level(2) for below in caller.list(space, level)] == ["below"]


def test_64_threads_are_answered_and_few_connections_remain(
    spark: SparkSession, caller: Caller, namespace: str
) -> None:
    space = namespace.rpartition(".")[2]

    def work(thread: int) -> None:
        for n in range(5):
            caller.create(space, f"t{thread}-{n}", owner=str(thread))
            assert caller.properties(space, f"t{thread}-{n}")["owner"] == str(thread)

    before = sockets(bridge_process(spark))
    with ThreadPoolExecutor(64) as threads:
        list(threads.map(work, range(64)))
    assert len(caller.list(space)) == 320
    # Only sockets are counted: the store keeps some connections of its own, each with its files.
    wait_until(lambda: sockets(bridge_process(spark)) <= before + 32, "others are closed", every_s=0.05)
