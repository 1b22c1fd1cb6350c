"""Importing many tables: the Spark job on one core and on two, and registering very many tables by location only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.measurement import Figure, compare, in_turns

SNAPSHOTS = 50
BAR = 1.6

_FIELDS = [{"id": n + 1, "name": f"column_{n}", "required": False, "type": "string"} for n in range(20)]


def measure(folder: Path, *, rounds: int, tables: int, lazily: int) -> list[Figure]:
    """Measure imports of tables with 50 snapshots, on one core and on two in turns.

    Also measure the registration of `lazily` tables by location only.
    """
    tree = folder / "tree"
    for number in range(tables):
        _write(tree / f"db{number % 10}" / f"table_{number:04d}", number)
    turns = count()

    def job(cores: int) -> float:
        return _run("job", tree, folder / f"job-{next(turns)}", cores)["seconds"]

    one, two = in_turns(rounds, [lambda: job(1), lambda: job(2)])
    lazy = _run("lazy", tree, folder / "lazy", lazily)
    return [
        compare(
            f"import of {tables:,} tables of {SNAPSHOTS} snapshots by Spark on two cores, s",
            two,
            one,
            least=BAR,
            beside="on one core",
            smaller=True,
            digits=2,
        ),
        Figure(
            f"{lazily:,} tables registered by location, s",
            f"{lazy['seconds']:.1f}",
            "",
            f"{lazily / lazy['seconds']:,.0f}/s; {lazy['bytes'] / lazily:,.0f} bytes each",
            "",
            met=True,
        ),
    ]


def _write(folder: Path, number: int) -> None:
    """Write a metadata file of about 35 KB."""
    (folder / "metadata").mkdir(parents=True)
    history = [_snapshot(folder, id) for id in range(1, SNAPSHOTS + 1)]
    value: dict[str, Any] = {
        "format-version": 2,
        "table-uuid": f"9c12d441-03fe-4693-9a96-{number:012x}",
        "location": f"file://{folder}",
        "last-sequence-number": SNAPSHOTS,
        "last-updated-ms": history[-1]["timestamp-ms"],
        "last-column-id": len(_FIELDS),
        "current-schema-id": 0,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": _FIELDS}],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {"owner": "bench"},
        "current-snapshot-id": SNAPSHOTS,
        "refs": {"main": {"snapshot-id": SNAPSHOTS, "type": "branch"}},
        "snapshots": history,
        "snapshot-log": [
            {"timestamp-ms": s["timestamp-ms"], "snapshot-id": s["snapshot-id"]} for s in history
        ],
        "metadata-log": [],
    }
    (folder / "metadata" / f"v{SNAPSHOTS}.metadata.json").write_text(json.dumps(value))


def _snapshot(folder: Path, id: int) -> dict[str, Any]:
    summary = {
        f"total-{what}": str(id * 1_000) for what in ("records", "data-files", "files-size", "delete-files")
    }
    return {
        "snapshot-id": id,
        "sequence-number": id,
        "timestamp-ms": 1_700_000_000_000 + id,
        "manifest-list": f"file://{folder}/metadata/snap-{id}.avro",
        "summary": {"operation": "append", "added-records": "1000", "added-data-files": "10", **summary},
        "schema-id": 0,
        **({"parent-snapshot-id": id - 1} if id > 1 else {}),
    }


def _run(what: str, tree: Path, store: Path, n: int) -> dict[str, float]:
    """Run a measurement in a separate process, because a JVM's number of cores is fixed; return seconds and bytes."""
    command = [sys.executable, "-m", __name__, what, str(tree), str(store), str(n)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"{what} failed: {done.stderr[-2_000:]}")
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _job(tree: Path, store: Path, cores: int) -> float:
    from pyspark.sql import SparkSession

    import polaris_spark
    from polaris_spark.jobs.registry import call

    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    with polaris_spark.connect(store=f"sqlite://{store}.db", warehouse=str(tree)) as session:
        # Start the workers and make them import their modules, as in any session that has run a job.
        warm = call(
            session, "import_catalog", spark=spark, source="directory", location=str(tree), dry_run=True
        )
        begun = time.perf_counter()
        rows = call(session, "import_catalog", spark=spark, source="directory", location=str(tree))
        took = time.perf_counter() - begun
    if {row[3] for row in rows} != {"imported"} or len(rows) != len(warm):
        raise RuntimeError(f"not all were imported: {rows[0]}")
    spark.stop()
    return took


def _lazy(store: Path, n: int) -> float:
    import polaris_spark
    from polaris_spark.catalog.imports.importer import ImportOptions
    from polaris_spark.catalog.imports.jobs import import_source
    from polaris_spark.catalog.imports.sources import SourceEntry
    from polaris_spark.catalog.rows import TABLE

    class Many:
        """Tables of one namespace in an object store."""

        def entries(self) -> Any:
            for number in range(n):
                where = (
                    f"s3://bucket/warehouse/db/table_{number:06d}/metadata/00007-{number:032x}.metadata.json"
                )
                yield SourceEntry(("db",), f"table_{number:06d}", TABLE, where)

    with polaris_spark.connect(store=f"sqlite://{store}.db", warehouse=str(store)) as session:
        begun = time.perf_counter()
        options = ImportOptions(lazy=True)
        rows = import_source(session.catalog, Many(), principal="bench", options=options)
        took = time.perf_counter() - begun
    if {row.status for row in rows} != {"registered"}:
        raise RuntimeError(f"not all were registered: {rows[0]}")
    return took


if __name__ == "__main__":
    _what, _tree, _store, _n = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    _seconds = _job(_tree, _store, _n) if _what == "job" else _lazy(_store, _n)
    _bytes = sum(file.stat().st_size for file in _store.parent.glob(f"{_store.name}.db*"))
    sys.stdout.write(json.dumps({"seconds": _seconds, "bytes": _bytes}) + "\n")
