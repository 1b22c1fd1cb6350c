"""The first query of a session: system views of the catalog compared with a trivial Python data source.

Each query runs in a separate process and session. `python -m benchmarks.first_query STORE VIEW` prints the time of a
query in seconds; without a view, it measures the trivial source.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.findings import Finding
from benchmarks.measurement import growth, in_turns
from benchmarks.spark_queries import new_session
from benchmarks.system_views import fill

TABLES = 100
MOST = 1.5
"""Maximum ratio of a view's time to the time of the trivial source."""


class Trivial(DataSource):
    """A data source with ten rows of five columns in one partition.

    It is a class of `__main__`, so that workers do not import a module for it.
    """

    @classmethod
    def name(cls) -> str:
        return "trivial"

    def schema(self) -> str:
        return "a long, b string, c long, d string, e long"

    def reader(self, schema: StructType) -> DataSourceReader:
        return TrivialReader()


class TrivialReader(DataSourceReader):
    """Reads the rows of `Trivial`."""

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        return ((n, str(n), n, str(n), n) for n in range(10))


def measure(folder: Path, *, rounds: int, views: Sequence[str]) -> Sequence[Finding]:
    """Measure the first query of new sessions on two processors, in turns: each view, and the trivial source."""
    store = f"sqlite://{folder.absolute()}/tables.db"
    fill(store, TABLES)
    trivial, *samples = in_turns(rounds, [partial(_first, store, *view) for view in [(), *zip(views)]])
    return [
        growth(
            f"first query of a session: all of `{view}` of {TABLES} tables, s",
            sample,
            trivial,
            "trivial Python data source",
            MOST,
            digits=2,
        )
        for view, sample in zip(views, samples, strict=True)
    ]


def _first(store: str, *view: str) -> float:
    command = [sys.executable, "-m", __name__, store, *view]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"the first query of {view or 'the trivial source'} failed: {done.stderr[-2_000:]}"
        )
    return float(done.stdout.strip().splitlines()[-1])


def _run(store: str, *view: str) -> float:
    spark = new_session("local[2]", store)
    spark.dataSource.register(Trivial)
    begun = time.perf_counter()
    source = spark.table(f"polaris.system.{view[0]}") if view else spark.read.format("trivial").load()
    rows = source.collect()
    took = time.perf_counter() - begun
    spark.stop()
    if not rows:
        raise RuntimeError(f"{view or 'the trivial source'} has no rows")
    return took


if __name__ == "__main__":
    sys.stdout.write(f"{_run(*sys.argv[1:])}\n")
