"""A driver program, ``cluster_driver.py MASTER FOLDER``: answers what files `request-1`, `request-2`, ... ask it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession

import polaris_spark
from polaris_spark.backends import open_backend
from polaris_spark.system.stores import SYSTEM_REALM
from polaris_spark.testing.processes import rows as scanned
from tests.spark.catalogs import add_catalog
from tests.spark.cluster import SETTINGS, put

TABLES = 6
JOBS = {
    "expire": "older_than => '0 s', retain_last => 1",
    "remove_orphans": "older_than => '0 s', force => true",
    "trim": "",
    "compact_index": "",
    "sweep": "",
    "fsck": "",
}
"""Maintenance jobs with their arguments, in the order in which they run."""


def main(master: str, folder: str) -> None:
    builder = SparkSession.builder.master(master).appName("polaris_spark cluster")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    # Its own catalog is not used: each request adds one.
    spark = polaris_spark.configure(builder, store="memory:", warehouse=f"{folder}/warehouse").getOrCreate()
    for number in count(1):
        path = Path(folder) / f"request-{number}"
        while not path.exists():
            time.sleep(0.05)
        request = json.loads(path.read_text())
        if request is None:
            break
        put(Path(folder) / f"answer-{number}", answer(spark, folder, **request))
    spark.stop()


def answer(
    spark: SparkSession, folder: str, what: str, uri: str, properties: dict[str, str]
) -> dict[str, Any]:
    """Call a function for a store, in a new catalog. Return the result or the error."""
    try:
        catalog = add_catalog(
            spark,
            warehouse=str(Path(folder) / "warehouse"),
            python=sys.executable,
            metrics_reports="0",
            **properties,
        )
        return {"answer": {"fill": fill, "read": read, "maintain": maintain}[what](spark, catalog, uri)}
    except Exception as error:
        return {"error": str(error)}


def fill(spark: SparkSession, catalog: str, uri: str) -> list[list[Any]]:
    """Create tables by SQL, insert rows into one of them, and return its rows."""
    spark.sql(f"CREATE NAMESPACE {catalog}.db")
    for number in range(TABLES):
        spark.sql(f"CREATE TABLE {catalog}.db.t{number} (id BIGINT, item STRING)")
    spark.sql(f"INSERT INTO {catalog}.db.t0 VALUES (1, 'tea'), (2, 'coffee')")
    return [list(row) for row in spark.table(f"{catalog}.db.t0").orderBy("id").collect()]


def read(spark: SparkSession, catalog: str, uri: str) -> dict[str, Any]:
    """Read `system.objects`: how many rows in all by SQL, how many by each executor, and how many there are."""
    spark.sql(f"SHOW NAMESPACES IN {catalog}").collect()
    by_executor: Counter[str] = Counter()
    partitions = spark.table(f"{catalog}.system.objects").rdd.mapPartitions(_counted).collect()
    for where, rows in partitions:
        by_executor[where] += rows
    backend = open_backend(uri)
    try:
        here = [row for row in scanned(backend, backend.splits("objects", None, 4)) if row[2] == 0]
    finally:
        backend.close()
    return {
        "sql": spark.sql(f"SELECT count(*) AS n FROM {catalog}.system.objects").first()[0],  # type: ignore[index]  # there is a row
        "partitions": len(partitions),
        "by executor": by_executor,
        "stored": sum(row[0] != SYSTEM_REALM for row in here),
    }


def maintain(spark: SparkSession, catalog: str, uri: str) -> dict[str, Any]:
    """Change a table, run every job, and return the result of each job and the rows of the table at the end."""
    spark.sql(f"INSERT OVERWRITE {catalog}.db.t0 VALUES (3, 'milk')")
    spark.sql(f"INSERT INTO {catalog}.db.t0 VALUES (4, 'salt')")
    done = {
        job: [row.asDict() for row in spark.sql(f"CALL {catalog}.system.{job}({arguments})").collect()]
        for job, arguments in JOBS.items()
    }
    done["rows"] = [list(row) for row in spark.table(f"{catalog}.db.t0").orderBy("id").collect()]
    return json.loads(json.dumps(done, default=str))  # type: ignore[no-any-return]  # times as text


def _counted(rows: Iterable[Row]) -> Iterator[tuple[str, int]]:
    """The working directory, which is the executor's, and the number of rows that it read."""
    yield os.getcwd(), sum(1 for _ in rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
