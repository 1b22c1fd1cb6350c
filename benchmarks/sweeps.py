"""Mark and sweep as a Spark job: growth of its time and of the driver's memory with the number of objects.

Each store is built once. Three quarters of its objects belong to tables and are needed. The others are garbage, like
objects that failed commit attempts leave. Each sweep runs on a copy of the store, in a separate process.
"""

from __future__ import annotations

import json
import math
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measurement import Figure, Sample, growth, limited
from benchmarks.population import WAREHOUSE, namespaces_for, populate
from polaris_spark.backends.base import ObjectRow
from polaris_spark.catalog.rows import Unloaded
from polaris_spark.clock import ManualClock, SystemClock
from polaris_spark.objects import encode
from polaris_spark.rest.session import Session

GROWTH = 2.2
"""Maximum ratio of the times for twice as many objects."""
_PER_TABLE = 4
"""Approximate number of objects per table."""
_GARBAGE = 0.25
_TOGETHER = 5_000
_LATER_MS = 30 * 86_400_000
"""Time between filling and sweeping a store, by the injected clock, in milliseconds."""


def measure(folder: Path, *, sizes: Sequence[int], rounds: int) -> list[Figure]:
    """Measure sweeps of stores with these numbers of objects, in turns."""
    for size in sizes:
        if not (folder / f"{size}.built").exists():
            _run("build", folder / f"{size}.db", size)
            (folder / f"{size}.built").touch()
    taken: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            copy = folder / "swept.db"
            shutil.copy(folder / f"{size}.db", copy)
            taken[size].append(_run("sweep", copy, size))
            for left in folder.glob("swept.db*"):
                left.unlink()
    figures = []
    for size in sizes:
        samples = {name: Sample(tuple(one[name] for one in taken[size])) for name in taken[size][0]}
        about = (
            f"of {int(samples['rows'].median):,} objects, {int(samples['deleted'].median):,} of them garbage"
        )
        figures += [
            limited(f"mark and sweep {about}", samples["seconds"], math.inf, "s", digits=1),
            limited(
                f"the same: peak memory of the Python driver {about}", samples["python"], math.inf, "MiB"
            ),
            limited(f"the same: peak heap of the JVM {about}", samples["heap"], math.inf, "MiB"),
        ]
    least = sizes[0]
    for size in sizes[1:]:
        large, small = (Sample(tuple(one["seconds"] for one in taken[n])) for n in (size, least))
        bar = GROWTH * size / (2 * least)
        figures.append(growth(f"mark and sweep of {size:,} objects, s", large, small, f"of {least:,}", bar))
        large, small = (Sample(tuple(one["python"] for one in taken[n])) for n in (size, least))
        figures.append(
            growth(f"driver's Python memory at {size:,} objects, MiB", large, small, f"at {least:,}", 1.25)
        )
    return figures


def _run(what: str, store: Path, size: int) -> dict[str, float]:
    command = [sys.executable, "-m", __name__, what, f"sqlite://{store.absolute()}", str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{what} failed: {done.stderr[-2_000:]}")
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


# Programs that run in the separate processes.


def _opened(store: str, clock: ManualClock) -> Session:
    import polaris_spark

    return polaris_spark.connect(
        store=store,
        warehouse=WAREHOUSE,
        catalog="bench",
        metadata_files="never",
        commit_timeout="1 h",
        clock=clock,
    )


def build(store: str, size: int) -> dict[str, float]:
    """Fill a store with `size` objects."""
    tables = max(1, int(size * (1 - _GARBAGE)) // _PER_TABLE)
    with _opened(store, ManualClock(SystemClock().now_ms())) as session:
        seconds = populate(session, tables=tables, namespaces=namespaces_for(tables))
        rows = session.catalog.references.store
        there = count(session)
        for start in range(0, max(0, size - there), _TOGETHER):
            n = min(_TOGETHER, size - there - start)
            ids = session.connection.ids.next_ids(n)
            left = [ObjectRow(id, 0, encode(Unloaded(id, f"{WAREHOUSE}/{id}/metadata.json"))) for id in ids]
            rows.backend.write_objects(rows.realm, left)
        return {"seconds": seconds, "rows": count(session)}


def count(session: Session) -> int:
    """Return the number of object rows of a realm."""
    store = session.catalog.references.store
    splits = store.backend.splits("objects", [store.realm], 1)
    return sum(batch.num_rows for split in splits for batch in store.backend.scan(split))


def sweep(store: str, _size: int) -> dict[str, float]:
    """Sweep a store by a Spark job on this machine.

    Return the time in seconds, without the start of the session, the numbers of rows, and peaks of memory in MiB.
    """
    from polaris_spark.jobs.registry import call

    spark = _spark()
    with _opened(store, ManualClock(SystemClock().now_ms() + _LATER_MS)) as session:
        spark.range(1_000).repartition(2).mapInArrow(_same, "id bigint").count()  # starts the workers
        begun = time.perf_counter()
        rows = call(session, "sweep", spark=spark, clock_is_right=True)
        seconds = time.perf_counter() - begun
        deleted = sum(row[3] for row in rows)
        left = count(session)
    pools = spark._jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
    heap = sum(pool.getPeakUsage().getUsed() for pool in pools if str(pool.getType()) == "Heap memory")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024
    spark.stop()
    return {
        "seconds": seconds,
        "rows": left + deleted,
        "deleted": deleted,
        "python": peak / 2**20,
        "heap": heap / 2**20,
    }


def _same(batches: Any) -> Any:
    return batches


def _spark() -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("sweep").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    return builder.config("spark.driver.memory", "1g").getOrCreate()


_PROGRAMS: dict[str, Callable[[str, int], dict[str, float]]] = {"build": build, "sweep": sweep}


if __name__ == "__main__":
    _what, _store, _size = sys.argv[1:]
    sys.stdout.write(json.dumps(_PROGRAMS[_what](_store, int(_size))) + "\n")
