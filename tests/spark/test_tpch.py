"""The queries of TPC-H as materialized views that are refreshed incrementally."""

from __future__ import annotations

import time

import pytest
from pyspark.sql import SparkSession

from tests.spark import tpch_queries
from tests.spark.sql import run
from tests.spark.test_incremental_refresh import ALWAYS, contents, home, refreshed

__all__ = ["home"]
pytestmark = pytest.mark.spark


def test_explore(spark: SparkSession, home: str) -> None:
    t=time.time()
    run(spark, *tpch_queries.TABLES)
    print("tables", time.time()-t)
    for t in "region nation supplier part partsupp customer orders lineitem".split():
        print(t, spark.table(t).count())
    queries = {**tpch_queries.QUERIES, **tpch_queries.WITHOUT_LIMIT}
    views = {name: name.replace(" ", "_") for name in queries}
    for name, view in views.items():
        t=time.time()
        run(spark, f"CREATE MATERIALIZED VIEW {view} TBLPROPERTIES ({ALWAYS}) AS {queries[name]}")
        t1=time.time()
        r = refreshed(spark, view)
        t2=time.time()
        rows = contents(spark, queries[name])
        t3=time.time()
        print(name, r, len(rows), rows[:1], f"{t1-t:.2f} {t2-t1:.2f} {t3-t2:.2f}")
    t=time.time()
    run(spark, *tpch_queries.CHANGES)
    print("changes", time.time()-t)
    for name, view in views.items():
        t1=time.time()
        r = refreshed(spark, view)
        t2=time.time()
        rows = contents(spark, queries[name])
        t3=time.time()
        found = contents(spark, f"SELECT * FROM {view}")
        print(name, r, len(rows), rows[:1], f"{t2-t1:.2f} {t3-t2:.2f}", "SAME" if found==rows else "DIFFERENT")
        for b in sorted(set(found) ^ set(rows)): print("   ", b in rows, b)
