"""The processes of a session: its JVM, and the Python child that answers for the catalog."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from polaris_spark.testing.waiting import PATIENCE_S


def jvm_process(spark: SparkSession) -> int:
    """Return the process id of a session's JVM."""
    return int(_handle(spark).pid())


def bridge_process(spark: SparkSession) -> int:
    """Return the process id of the one child that answers for the catalogs of a session."""
    [found] = bridge_processes(spark)
    return found


def bridge_processes(spark: SparkSession) -> list[int]:
    """Return the process ids of all such children. There is none for a moment after one was killed."""
    children = _handle(spark).children().toArray()
    return [int(child.pid()) for child in children if _is_bridge(child)]


def is_running(process: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # fetched before it was opened, or before it was read
        return False


def commands_below(process: int) -> list[list[str]]:
    """Return the command lines of the children of a process, as lists of arguments."""
    children = Path(f"/proc/{process}/task").glob("*/children")
    return [
        Path(f"/proc/{child}/cmdline").read_text(encoding="utf-8").split("\0")
        for children_of_thread in children
        for child in children_of_thread.read_text(encoding="ascii").split()
    ]


def next_line(process: subprocess.Popen[str]) -> str:
    """Return the next line that a program prints. If it prints none in `PATIENCE_S`, end it and return ""."""
    assert process.stdout is not None
    patience = threading.Timer(PATIENCE_S, process.kill)
    patience.start()
    try:
        return process.stdout.readline()
    finally:
        patience.cancel()


def sockets(process: int) -> int:
    """Return how many sockets a process has open."""
    files = f"/proc/{process}/fd"
    count = 0
    for name in os.listdir(files):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += os.readlink(f"{files}/{name}").startswith("socket:")
    return count


def _handle(spark: SparkSession) -> Any:
    jvm = spark._jvm
    assert jvm is not None
    return jvm.java.lang.ProcessHandle.current()


def _is_bridge(child: Any) -> bool:
    return "polaris_spark.bridge" in child.info().commandLine().orElse("")
