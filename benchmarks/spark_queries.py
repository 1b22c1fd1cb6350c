"""`python -m benchmarks.spark_queries MASTER STORE QUERY TIMES`: time a query in one Spark session.

Prints the query's result and the time of each run, in seconds, as JSON.
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
    """The result of a query, and the time of each run in seconds. The first run is the session's first query."""

    row: list[Any]
    seconds: list[float]


def answered(master: str, store: str, query: str, times: int) -> Answered:
    """Run a query several times in a separate process and session.

    Args:
        master: Spark's master, such as `local[2]`.
        store: URI of the store with the catalog `polaris`.
        query: a query that returns one row.
    """
    command = [sys.executable, "-m", __name__, master, store, query, str(times)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{query} failed: {done.stderr[-2_000:]}")
    return Answered(**json.loads(done.stdout.strip().splitlines()[-1]))


def new_session(master: str, store: str) -> SparkSession:
    """Return a new session with the catalog `polaris`."""
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
