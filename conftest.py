"""Fixtures of several rooms' tests: one JVM for the whole run, and a catalog ``polaris`` for each module."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from tests.stores import takes_its_turn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["tests.stores"]

ASKED_FOR = ("exhaustive", "long", "databases", "programs", "suites", "spark")
"""Markers of tests that run only if `-m` names them; of several markers of a test, the first one counts."""

LONGEST = ("test_bench.py", "test_iceberg_suites.py")
"""Files of tests that take minutes at a stretch."""

QUICK_JAVA = " ".join(
    (
        "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
        "-XX:+UseSerialGC -XX:NewRatio=1 -XX:MetaspaceSize=256m",
    )
)
"""Options of all JVMs that tests start. They run much code a few times: they compile it quickly instead of well, with
as much room as ever, and collect garbage on one thread, because tests of another process use the other processor."""

_numbers = count(1)

# No example of a random test fails for the time that it takes, which is another on each machine.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


def pytest_configure(config: pytest.Config) -> None:
    """Have JVMs start quickly, and end by SIGTERM as by Ctrl-C: servers are ended, and what they kept is removed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    archive = Path(os.environ.get("POLARIS_SPARK_CLASS_ARCHIVE", "none"))  # see `tests/class_archive.py`
    # JVMs with another class path would print a warning about it where programs read their output.
    classes = (
        f" -Xlog:disable -Xlog:all=error:stderr -XX:SharedArchiveFile={archive}" if archive.exists() else ""
    )
    os.environ.setdefault("JAVA_TOOL_OPTIONS", QUICK_JAVA + classes)
    config.option.loadscopereorder = False  # the order is that of `pytest_collection_modifyitems`


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """With `-n 2`, give a whole file to one process, so that the file's fixtures are made once."""
    return LoadFileScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what takes minutes, unless it is asked for. Begin with the longest files, then with those that need Spark.

    With `-n 2`, one process would wait for the other one if they came last.
    """
    for item in items:
        if not takes_its_turn(item):
            item.add_marker(pytest.mark.exhaustive)
        marker = next((name for name in ASKED_FOR if item.get_closest_marker(name)), None)
        if marker is not None and marker not in config.option.markexpr:
            item.add_marker(pytest.mark.skip(reason=f"takes minutes: `pytest -m {marker}` runs it"))
    with_spark = {item.path for item in items if "first_session" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: (item.path.name not in LONGEST, item.path not in with_spark))


def pytest_collection_finish() -> None:
    """Exempt all tests and modules from garbage collection, which would otherwise look at them again and again."""
    gc.collect()
    gc.freeze()


@dataclass(frozen=True)
class CatalogPlace:
    """Where a catalog ``polaris`` lives."""

    directory: Path

    @property
    def store(self) -> str:
        """The store's URI."""
        return f"sqlite://{self.directory / 'catalog.db'}"

    @property
    def warehouse(self) -> str:
        """The directory of the tables' files."""
        return str(self.directory / "warehouse")


@contextmanager
def resolving() -> Iterator[None]:
    """One process after the other starts a session: on a new machine, the first one downloads Spark's packages, and Ivy
    locks nothing."""
    with open(Path(tempfile.gettempdir()) / "polaris-spark-packages.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def first_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one JVM of this process, by the session that started it."""
    # Imported here, so that tests without Spark do not wait for it.
    from pyspark.sql import SparkSession

    from polaris_spark.spark.session import configure

    directory = tmp_path_factory.mktemp("spark")
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("polaris_spark tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(directory / "spark-warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
    )
    first = CatalogPlace(directory)
    builder = configure(builder, store=first.store, warehouse=first.warehouse)
    with resolving():
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> CatalogPlace:
    """A temporary SQLite store and warehouse, the catalog ``polaris`` of one module's tests."""
    return CatalogPlace(tmp_path_factory.mktemp("polaris"))


@pytest.fixture(scope="module")
def spark(first_session: SparkSession, place: CatalogPlace) -> SparkSession:
    """The session of one module's tests, which keep apart by namespaces (`namespace`).

    Views show the whole catalog, so that they would take the longer, the more modules share one.
    """
    session = first_session.newSession()
    session.conf.set("spark.sql.catalog.polaris.store", place.store)
    session.conf.set("spark.sql.catalog.polaris.warehouse", place.warehouse)
    return session


@pytest.fixture
def namespace(spark: SparkSession) -> str:
    """A new namespace of the catalog, as SQL names it."""
    name = f"polaris.ns{next(_numbers)}"
    spark.sql(f"CREATE NAMESPACE {name}")
    return name
