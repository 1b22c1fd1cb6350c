"""Java programs of the benchmark. They are compiled once, and run with the jars that Spark resolves."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

DRIVERS = ("org.xerial:sqlite-jdbc:3.54.1.0", "org.postgresql:postgresql:42.7.14")
"""JDBC drivers of the peers."""


class JavaPrograms:
    """The compiled programs of the folder `java` next to this module. Needs a JDK."""

    def __init__(self, folder: Path) -> None:
        """
        Args:
            folder: folder for the compiled classes.
        """
        self.classes = folder / "classes"
        """Folder of the compiled classes."""
        self.hadoop = ":".join(str(jar) for jar in _spark_jars().glob("hadoop-client-*.jar"))
        """Class path of Hadoop's jars from Spark's installation."""
        self._class_path = f"{self.classes}:{_jars()}"
        with as_file(files("benchmarks") / "java") as sources:
            programs = [str(source) for source in sorted(sources.glob("*.java"))]
            _run(["javac", "-nowarn", "-cp", self._class_path, "-d", str(self.classes), *programs])

    def run(self, program: str, *arguments: object) -> str:
        """Run a program; return its standard output.

        Raises:
            RuntimeError: the program failed; the message is its standard error.
        """
        return _run(["java", "-cp", self._class_path, program, *map(str, arguments)])


def newest_java() -> tuple[str, int]:
    """Return the newest `java` of this machine and its feature version. Some servers need a newer Java than Spark."""
    found = [
        java for java in (shutil.which("java"), *map(str, Path("/usr/lib/jvm").glob("*/bin/java"))) if java
    ]
    versions = [(java, _feature(java)) for java in found]
    return max(versions, key=lambda one: one[1], default=("", 0))


def _feature(java: str) -> int:
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    stated = re.search(r'version "(\d+)', done.stderr)
    return int(stated[1]) if stated else 0


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


@cache
def _jars() -> str:
    """Return a class path with Spark's jars, the JVM shim, and the Iceberg runtime and drivers that Spark resolves.

    All parts of a run share it, because a session of Spark takes long to start.
    """
    from pyspark.sql import SparkSession

    from polaris_spark.spark.session import configure

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.jars.packages", ",".join(DRIVERS))
    with tempfile.TemporaryDirectory() as folder:
        session = configure(builder, store=f"sqlite:///{folder}/unused.db", warehouse=folder).getOrCreate()
        jars = session.sparkContext.getConf().get("spark.repl.local.jars", "") or ""
        session.stop()
    local = [jar.removeprefix("file://") for jar in jars.split(",")]
    return ":".join([f"{_spark_jars()}/*", *local])


def _spark_jars() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent / "jars"
