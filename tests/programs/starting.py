"""Starts programs with the configuration of the README, and checks that they leave nothing behind."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pyspark

from polaris_spark.spark.session import jar
from polaris_spark.testing.waiting import PATIENCE_S, wait_until
from tests.cli.catalogs import run as polaris_spark

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
MARK = "POLARIS_SPARK_TESTS_PROGRAM"
"""An environment variable by which all processes of a program are found, whatever their parent is by then."""

SETTINGS = """
spark.ui.enabled false
spark.driver.bindAddress 127.0.0.1
spark.driver.host 127.0.0.1
spark.master local[2]
spark.sql.catalogImplementation in-memory
spark.sql.shuffle.partitions 2
"""
"""What suits a small machine; the catalog's configuration comes from the README."""

_numbers = count(1)


@dataclass(frozen=True)
class Place:
    """A directory for a store, tables and the output of programs."""

    directory: Path

    @property
    def store(self) -> str:
        """The store's URI."""
        return f"sqlite://{self.directory}/shop.db"

    @property
    def arguments(self) -> list[str]:
        """The arguments with which the README starts spark-sql, for this place."""
        readme = (ROOT / "README.md").read_text()
        [block] = re.findall(r"```sh\nspark-sql (.*?)```", readme, re.DOTALL)
        text = re.sub(r'"\$\(python3 [^\n]*\)"', jar(), block.replace("\\\n", " "))
        return shlex.split(text.replace("/tmp/shop", f"{self.directory}/shop"))

    @property
    def settings(self) -> dict[str, str]:
        """The Spark settings among these arguments."""
        words = self.arguments
        pairs = [words[at + 1] for at, word in enumerate(words) if word == "--conf"]
        return dict(pair.split("=", 1) for pair in pairs)

    def unreleased(self) -> list[str]:
        """Return the holders of leases of this store that were not released."""
        leases = polaris_spark("info", self.store, "--no-sizes", "--json").json["node-leases"]
        assert leases, "nobody ever wrote to the store"
        return [lease["holder"] for lease in leases if not lease["released"]]


@dataclass(frozen=True)
class Program:
    """A running program. Its output goes to a file."""

    process: subprocess.Popen[bytes]
    output: Path
    mark: str

    def text(self) -> str:
        """What it has printed."""
        return self.output.read_text(errors="replace")

    def wait_for(self, pattern: str) -> str:
        """Wait until it has printed a line that matches; return the pattern's group.

        Raises `AssertionError` if it ends before, or takes too long.
        """

        def found() -> bool:
            return bool(re.search(pattern, self.text())) or self.process.poll() is not None

        wait_until(found, f"'{pattern}' is printed", every_s=0.05)
        match = re.search(pattern, self.text())
        assert match is not None, f"'{pattern}' was not printed:\n{self.text()[-6_000:]}"
        return match[1]

    def finish(self) -> str:
        """Wait for its own end, which must be a good one; return what it printed."""
        code = self.process.wait(3 * PATIENCE_S)  # it does many things
        assert code == 0, self.text()[-6_000:]
        return self.text()

    def others(self) -> list[int]:
        """Return the running processes that the program started."""
        return [process for process in _marked(self.mark) if process != self.process.pid]


@contextmanager
def started(place: Place, *command: str | Path) -> Iterator[Program]:
    """Start a program; at the end of the block, end it by its id if it has not ended by itself.

    Raises `AssertionError` if processes that it started outlive it.
    """
    settings = place.directory / "conf"
    settings.mkdir(exist_ok=True)
    (settings / "spark-defaults.conf").write_text(SETTINGS)
    mark = f"{place.directory}#{next(_numbers)}"
    output = place.directory / f"output-{next(_numbers)}.txt"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SPARK_")},
        "SPARK_CONF_DIR": str(settings),
        "SPARK_HOME": str(SPARK_HOME),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "PYSPARK_PYTHON": sys.executable,
        MARK: mark,
    }
    environment.pop("PYSPARK_GATEWAY_PORT", None)  # of a session in this process
    with output.open("wb") as printed:
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=place.directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
        )
    program = Program(process, output, mark)
    try:
        yield program
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()
    wait_until(lambda: not program.others(), "no process that it started is left", every_s=0.05)


def _marked(mark: str) -> list[int]:
    wanted = f"{MARK}={mark}".encode()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        # Processes of others cannot be looked into, and some end meanwhile.
        with suppress(OSError):
            if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
    return found
