"""Fixtures that tests of several rooms use: one JVM for the whole run, and a catalog ``polaris`` for each module."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
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

LONGEST = ("test_mutants.py", "test_demo.py", "test_iceberg_suites.py", "test_bench.py")
"""Files of tests without `first_session` that each take minutes."""

QUICK_JAVA = " ".join(
    (
        "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
        "-XX:+UseSerialGC -XX:NewRatio=1 -XX:MetaspaceSize=256m",
    )
)
"""Options of all JVMs that tests start. These JVMs run much code only a few times, so they use only the fast compiler,
with the usual size of the code cache. They collect garbage on one thread, because another test process uses the other
processor."""

INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Options of Spark that let it interpret queries. Compiling takes most of the time of a query over a few rows. The
programs that tests start compile queries, as by default."""

MEMORY = Path("/dev/shm")
ENOUGH_MEMORY = 8 * 2**30
"""If less memory than this is free, the tests write their files to a disk, in bytes."""

_numbers = count(1)

# Examples of random tests have no deadline, because their duration depends on the machine.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


def pytest_configure(config: pytest.Config) -> None:
    """Set the options of JVMs. Handle SIGTERM like Ctrl-C, so that fixtures stop servers and remove their files."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    archive = Path(os.environ.get("POLARIS_SPARK_CLASS_ARCHIVE", "none"))  # see `tests/class_archive.py`
    # Without these log options, JVMs with another class path would print a warning to their standard output.
    classes = (
        f" -Xlog:disable -Xlog:all=error:stderr -XX:SharedArchiveFile={archive}" if archive.exists() else ""
    )
    os.environ.setdefault("JAVA_TOOL_OPTIONS", QUICK_JAVA + classes)
    config.option.loadscopereorder = False  # the order is that of `pytest_collection_modifyitems`
    if config.option.numprocesses and not is_of_several(config):
        write_to_memory(config)
        keep_compiled(config)


def write_to_memory(config: pytest.Config) -> None:
    """Let the tests write their files to memory if there is enough: they would wait for a disk most of the time. The
    files are removed at the end of the run. If TMPDIR is set, it is used instead."""
    if "TMPDIR" in os.environ or not MEMORY.exists() or shutil.disk_usage(MEMORY).free < ENOUGH_MEMORY:
        return
    for left in MEMORY.glob("t[0-9]*-*"):
        with suppress(FileNotFoundError):  # another run removes it
            pid = left.name[1:].partition("-")[0]
            if pid.isdecimal() and left.stat().st_uid == os.getuid() and not Path("/proc", pid).exists():
                shutil.rmtree(left, ignore_errors=True)  # of a run that was killed
    # The name is short, because paths of sockets must be short.
    folder = Path(tempfile.mkdtemp(prefix=f"t{os.getpid()}-", dir=MEMORY))
    folder.chmod(0o755)  # servers that refuse to run as root read and write there, too
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def keep_compiled(config: pytest.Config) -> None:
    """Let the processes of the run, and those that tests start, keep the modules that they compile in pytest's cache,
    also if PYTHONDONTWRITEBYTECODE is set: each of them would compile the whole package again, and pytest would rewrite
    the assertions of all tests again. If PYTHONPYCACHEPREFIX is set, they are kept in its folder."""
    cache = getattr(config, "cache", None)  # `-p no:cacheprovider` leaves it out
    if cache is not None:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ.setdefault("PYTHONPYCACHEPREFIX", str(cache.mkdir("compiled")))


class FromBothEnds(LoadFileScheduling):
    """Gives whole files to processes, so that a file's fixtures are made once.

    The first process takes files from the beginning of the order, and others take them from the end. So only one
    process starts a JVM and computes in Spark, while another one waits for servers.
    """

    def _assign_work_unit(self, node: Any) -> None:
        if node is not self.nodes[0]:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """The order in which the processes of `-n 2` take the tests."""
    return FromBothEnds(config, log)


def is_of_several(config: pytest.Config) -> bool:
    """Whether this is one of the processes of `-n` that run tests."""
    return hasattr(config, "workerinput")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Let the processes of `-n` compile different modules first.

    All of them collect all tests in the same order. Where nothing is compiled yet, they would all compile the same
    module at the same time. Every process but the first one imports the last modules before it begins to collect.
    """
    config = session.config
    of_all = [Path(one).absolute() for one in config.args] == [config.rootpath / "tests"]
    if of_all and is_of_several(config) and config.workerinput["workerid"] != "gw0":  # type: ignore[attr-defined]  # set by xdist
        for path in sorted((config.rootpath / "tests").rglob("test_*.py"), reverse=True):
            # What does not import is reported when it is collected.
            with suppress(Exception, pytest.skip.Exception):
                import_module(".".join(path.relative_to(config.rootpath).with_suffix("").parts))
    return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests with a marker of `ASKED_FOR` unless `-m` names it. Put files with Spark first, and long others last.

    With `-n`, the tests that would be skipped are left out, because sending thousands of reports takes long.

    Two processes (`-n 2`) then meet amid short files, and neither waits long for the other at the end.
    """
    skipped = set()
    for item in items:
        if not takes_its_turn(item):
            item.add_marker(pytest.mark.exhaustive)
        marker = next((name for name in ASKED_FOR if item.get_closest_marker(name)), None)
        if marker is not None and marker not in config.option.markexpr:
            item.add_marker(pytest.mark.skip(reason=f"takes minutes: `pytest -m {marker}` runs it"))
            skipped.add(item)
    if is_of_several(config):
        items[:] = [item for item in items if item not in skipped]
    with_spark = {item.path for item in items if "first_session" in getattr(item, "fixturenames", ())}
    longest = {name: place for place, name in enumerate(LONGEST, 1)}
    items.sort(key=lambda item: (item.path not in with_spark, longest.get(item.path.name, 0)))


def pytest_collection_finish() -> None:
    """Exempt all collected tests and modules from garbage collection, which would otherwise traverse them often."""
    gc.collect()
    gc.freeze()


@dataclass(frozen=True)
class CatalogPlace:
    """Location of a catalog ``polaris``."""

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
    """Let only one process at a time start a session. On a new machine, the first session downloads Spark's packages,
    and Ivy does not lock its cache."""
    with open(Path(tempfile.gettempdir()) / "polaris-spark-packages.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def first_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The first Spark session of this process, which starts the process's only JVM."""
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
    builder = configure(builder.config(map=INTERPRETED), store=first.store, warehouse=first.warehouse)
    with resolving():
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> CatalogPlace:
    """A temporary SQLite store and warehouse: the catalog ``polaris`` of one module's tests."""
    return CatalogPlace(tmp_path_factory.mktemp("polaris"))


@pytest.fixture(scope="module")
def spark(first_session: SparkSession, place: CatalogPlace) -> SparkSession:
    """The session of one module's tests. Each test uses its own namespace (`namespace`).

    Each module has its own catalog, because system views read the whole catalog: in a shared catalog they would become
    slower with each module.
    """
    session = first_session.newSession()
    session.conf.set("spark.sql.catalog.polaris.store", place.store)
    session.conf.set("spark.sql.catalog.polaris.warehouse", place.warehouse)
    return session


@pytest.fixture
def namespace(spark: SparkSession) -> str:
    """Name of a new namespace of the catalog, in SQL."""
    name = f"polaris.ns{next(_numbers)}"
    spark.sql(f"CREATE NAMESPACE {name}")
    return name
