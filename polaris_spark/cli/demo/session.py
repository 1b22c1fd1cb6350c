"""The demo's Spark session. Spark knows the catalog by two names, so that two principals can work in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from polaris_spark.errors import MissingLibraryError, StateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG = "polaris"
"""Name of the catalog in the store. In Spark, it is the name for the principal `engineer`."""

ANALYST = "analyst"
"""Name of the same catalog in Spark for the principal `analyst`."""

JAVA = 17


SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    # These tables are small: with coalescing, one task would do all the work, on one processor.
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
}


class DemoCatalog(NamedTuple):
    """The locations and options of the demo's catalog."""

    store: str
    """URI of the store, without a password."""
    password: str | None
    """`env:NAME`, where NAME is the environment variable that contains the store's password; None if the store needs no
    password."""
    warehouse: Path
    directory: Path
    metadata_files: str

    @property
    def options(self) -> dict[str, str]:
        """The options of the store that are not in its URI, by name."""
        return {} if self.password is None else {"password": self.password}


def start(place: DemoCatalog) -> SparkSession:
    """Start a local Spark session with the catalog, and return it. The standard error of the JVM goes to `spark.log`
    in the demo's directory.

    Raises:
        MissingLibraryError: Java 17 or newer is not installed.
        StateError: Spark does not start.
    """
    from pyspark.sql import SparkSession

    from polaris_spark.spark.session import configure

    require_java()
    builder = SparkSession.builder.master("local[*]").appName("polaris-spark demo")
    for name, value in {
        **SETTINGS,
        "spark.sql.warehouse.dir": str(place.directory / "spark-warehouse"),
    }.items():
        builder = builder.config(name, value)
    for name, principal in ((CATALOG, "engineer"), (ANALYST, "analyst")):
        properties = {"catalog": CATALOG, "principal": principal, "metadata-files": place.metadata_files}
        options = {f"store.{option}": text for option, text in place.options.items()}
        configure(builder, name, store=place.store, warehouse=str(place.warehouse), **properties, **options)
    log = place.directory / "spark.log"
    with _standard_error_to(log):
        try:
            session = builder.getOrCreate()
        except Exception as error:
            raise StateError(
                f"Spark did not start ({_first_line(error)}); see its output in {log}"
            ) from error
        session.sparkContext.setLogLevel("ERROR")
    return session


def require_java() -> None:
    """Check that Java 17 or newer, which Spark 4 needs, is installed.

    Raises:
        MissingLibraryError: Java is not installed, or is older.
    """
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else "java"
    if shutil.which(program) is None:
        where = (
            f"there is no bin/java in JAVA_HOME, which is {home!r}"
            if home
            else "there is no 'java' on the PATH"
        )
        raise MissingLibraryError(f"Spark needs Java {JAVA}, and {where}; install a JDK {JAVA}")
    answer = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(\d+)', answer.stderr)
    if found is None or int(found.group(1)) < JAVA:
        version = found.group(1) if found else "of an unknown version"
        raise MissingLibraryError(
            f"Spark needs Java {JAVA}, and {program!r} is Java {version}; install a JDK {JAVA}"
        )


@contextmanager
def _standard_error_to(path: Path) -> Iterator[None]:
    """Redirect standard error to a file while the context is open. Processes that are started in this time inherit
    it."""
    saved = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
