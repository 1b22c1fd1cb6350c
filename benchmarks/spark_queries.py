"""`python -m benchmarks.spark_queries MASTER STORE QUERY TIMES`: one session of Spark's, timed.

Prints the seconds that the query took each time, as JSON, and what it answered.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Answered(NamedTuple):
    """What a query answered, and the seconds that each run of it took; the first one is the session's first."""

    row: list[Any]
    seconds: list[float]


def answered(master: str, store: str, query: str, times: int) -> Answered:
    """A query in a process and session of its own.

    Args:
        master: Spark's, such as `local[2]`.
        store: whose catalog `polaris` is the session's.
        query: gives one row.
    """
    command = [sys.executable, "-m", __name__, master, store, query, str(times)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{query} failed: {done.stderr[-2_000:]}")
    return Answered(**json.loads(done.stdout.strip().splitlines()[-1]))


def new_session(master: str, store: str) -> SparkSession:
    """A session with the catalog `polaris`."""
    from pyspark.sql import SparkSession

    from polaris_spark.spark.session import configure

    builder = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
    )
    return configure(builder, store=store, warehouse="/warehouse").getOrCreate()


def _run(master: str, store: str, query: str, times: int) -> Answered:
    spark = new_session(master, store)
    seconds, row = [], None
    for _ in range(times):
        begun = time.perf_counter()
        [row] = spark.sql(query).collect()
        seconds.append(time.perf_counter() - begun)
    spark.stop()
    return Answered(list(row or ()), seconds)


if __name__ == "__main__":
    found = _run(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
    sys.stdout.write(json.dumps(found._asdict()) + "\n")
