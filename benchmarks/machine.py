"""Description of the machine on which the figures were measured."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from polaris_spark.errors import StateError
from tests.servers import postgresql

_FLUSHES = 200
_PACKAGES = ("pyiceberg", "pyspark", "psycopg", "SQLAlchemy")


def describe(folder: Path) -> dict[str, str]:
    """Return descriptions of hardware, system and versions, by name.

    Args:
        folder: a folder on the disk that is measured.
    """
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores ({platform.machine()})",
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release()}",
        "disk": f"{flushes_per_second(folder):,.0f} writes of 4 KiB with fsync per second, one after another",
        "Python": f"{platform.python_version()} ({platform.python_implementation()})",
        "Java": _first_line("java", "-version"),
        "SQLite": _sqlite(),
        "PostgreSQL": _postgresql(),
        "packages": ", ".join(_versions()),
    }


def flushes_per_second(folder: Path) -> float:
    """Return the number of 4 KiB appends with fsync per second, one write after another."""
    path = folder / "flushes"
    with open(path, "wb", buffering=0) as file:
        begun = time.perf_counter()
        for _ in range(_FLUSHES):
            file.write(bytes(4_096))
            os.fsync(file.fileno())
        took = time.perf_counter() - begun
    path.unlink()
    return _FLUSHES / took


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB"
    except (ValueError, OSError):  # a system without these names
        return "unknown"


def _first_line(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return "none"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip().partition("\n")[0] or "unknown"


def _sqlite() -> str:
    import sqlite3

    return sqlite3.sqlite_version


def _postgresql() -> str:
    try:
        return _first_line(str(postgresql.programs() / "postgres"), "--version")
    except StateError:
        return "none"


def _versions() -> list[str]:
    found = []
    for package in _PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return [*found, f"switch interval {sys.getswitchinterval() * 1_000:g} ms"]
