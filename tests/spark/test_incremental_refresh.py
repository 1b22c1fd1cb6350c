"""Incremental refreshes: after every change of the tables, the stored rows are those of the query."""

from __future__ import annotations

import ast
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from conftest import INTERPRETED
from tests.spark.iceberg_writer import Writer
from tests.spark.query_shapes import ROUNDS, SHAPES, TABLES
from tests.spark.random_queries import EQUALITY_DELETE, Queries
from tests.spark.sql import run

pytestmark = pytest.mark.spark
ALWAYS = "'refresh-strategy' = 'incremental', 'incremental-limit' = '1000000000'"
"""Properties of views that are refreshed incrementally however large the change is."""
QUICK = {
    **INTERPRETED,
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}


def contents(spark: SparkSession, query: str) -> list[str]:
    """Return the rows of a query as sorted texts. Texts distinguish 0.0 from -0.0, and NaN is equal to NaN."""
    return sorted(repr(tuple(row)) for row in spark.sql(query).collect())


def refreshed(spark: SparkSession, view: str) -> tuple[str, str]:
    """Refresh a view, and return the strategy and the reason."""
    [row] = spark.sql(f"REFRESH MATERIALIZED VIEW {view}").collect()
    return row.strategy, row.reason


@pytest.fixture
def home(spark: SparkSession, namespace: str) -> Iterator[str]:
    """A namespace, which is the session's current one. Each query has one task, and its plan does not change while it
    runs."""
    run(spark, f"USE {namespace}")
    before = {name: spark.conf.get(name) for name in QUICK}
    for name, value in QUICK.items():
        spark.conf.set(name, value)
    yield namespace
    for name, text in before.items():
        spark.conf.set(name, str(text))


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize(
    "rounds",
    [(ROUNDS[0], ROUNDS[1] + ROUNDS[2]), pytest.param(ROUNDS, marks=pytest.mark.exhaustive)],
    ids=["two refreshes", "three refreshes"],
)
def test_queries_of_all_shapes_are_refreshed_incrementally(
    spark: SparkSession, home: str, rounds: tuple[tuple[str, ...], ...], half: int
) -> None:
    run(spark, *TABLES)
    views = {name: name.replace(" ", "_").replace("-", "_") for name in list(SHAPES)[half::2]}
    for name, view in views.items():
        run(spark, f"CREATE MATERIALIZED VIEW {view} TBLPROPERTIES ({ALWAYS}) AS {SHAPES[name]}")
        assert refreshed(spark, view)[0] == "full", name
    for statements in rounds:
        run(spark, *statements)
        for name, view in views.items():
            strategy, reason = refreshed(spark, view)
            assert strategy in ("incremental", "none"), (name, reason)
            assert contents(spark, f"SELECT * FROM {view}") == contents(spark, SHAPES[name]), name


def is_planned(spark: SparkSession, query: str) -> bool:
    """Whether Spark can plan a query. The optimizer of Spark 4.1 fails for some queries with a union below a join."""
    plan: Any = spark.sql(query)._jdf.queryExecution()
    try:
        plan.executedPlan()
    except Py4JJavaError as error:
        if "PushProjectionThroughUnion" not in str(error):
            raise
        return False
    return True


def change(spark: SparkSession, namespace: str, text: str) -> None:
    """Make a change of a table, as `Queries.change` returns it."""
    if not text.startswith(EQUALITY_DELETE):
        path = namespace.partition(".")[2]
        run(spark, *text.replace("table => '", f"table => '{path}.").split("; "))
        return
    table, column, value = text.removeprefix(EQUALITY_DELETE).split()
    writer = Writer(spark, f"{namespace}.{table}")
    writer.row_delta([writer.deletes([{column: ast.literal_eval(value)}])])


@pytest.mark.parametrize(
    ("first", "seeds"),
    [(0, 2), pytest.param(1_000, 250, marks=pytest.mark.exhaustive)],
    ids=["some", "many"],
)
def test_random_queries_after_random_changes(spark: SparkSession, home: str, first: int, seeds: int) -> None:
    strategies: Counter[str] = Counter()
    for seed in range(first, first + seeds):
        queries = Queries(random.Random(seed))
        namespace = f"{home}.s{seed}"
        run(spark, f"CREATE NAMESPACE {namespace}", f"USE {namespace}")
        tables = queries.tables()
        for table in tables:
            run(spark, table.create(), queries.rows(table, 12))
        random_queries = [queries.query(tables, 3).sql for _ in range(4)]
        views = {f"v{number}": one for number, one in enumerate(random_queries) if is_planned(spark, one)}
        for view, query in views.items():
            run(spark, f"CREATE MATERIALIZED VIEW {view} TBLPROPERTIES ({ALWAYS}) AS {query}")
        done: list[str] = []
        for _ in range(4):
            for view, query in views.items():
                strategy, reason = refreshed(spark, view)
                strategies[strategy] += 1
                assert "failed" not in reason, (seed, query, done, reason)
                found, expected = contents(spark, f"SELECT * FROM {view}"), contents(spark, query)
                assert found == expected, (seed, strategy, query, done)
            for _ in range(queries.random.randint(1, 3)):
                done.append(queries.change(queries.random.choice(tables)))
                change(spark, namespace, done[-1])
    assert strategies["incremental"] > strategies["full"], strategies
