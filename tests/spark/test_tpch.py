"""The queries of TPC-H as materialized views that are refreshed incrementally."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.spark.sql import run
from tests.spark.test_incremental_refresh import ALWAYS, contents, home, refreshed
from tests.spark.tpch_queries import CHANGES, QUERIES, TABLES, WITHOUT_LIMIT

__all__ = ["home"]  # a fixture
pytestmark = pytest.mark.spark

HAS_LIMIT = "full: it contains GlobalLimit"
HAS_SUBQUERY = "full: a table that a subquery in an expression reads has changed"
EXPECTED = {
    **dict.fromkeys(QUERIES | WITHOUT_LIMIT, "incremental"),
    "Q2": HAS_LIMIT,
    "Q3": HAS_LIMIT,
    "Q10": HAS_LIMIT,
    "Q11": HAS_SUBQUERY,
    "Q15": HAS_SUBQUERY,
    "Q18": HAS_LIMIT,
    "Q21": HAS_LIMIT,
    "Q22": HAS_SUBQUERY,
}
"""How each query is refreshed after `CHANGES`: `incremental`, or `full` with a part of the reason."""


@pytest.mark.parametrize(
    "queries",
    [QUERIES, pytest.param(WITHOUT_LIMIT, marks=pytest.mark.exhaustive)],
    ids=["of the specification", "without LIMIT"],
)
def test_queries_of_tpch_are_refreshed_incrementally(
    spark: SparkSession, home: str, queries: dict[str, str]
) -> None:
    run(spark, *TABLES)
    views = {name: name.replace(" ", "_") for name in queries}
    for name, view in views.items():
        run(spark, f"CREATE MATERIALIZED VIEW {view} TBLPROPERTIES ({ALWAYS}) AS {queries[name]}")
        assert refreshed(spark, view)[0] == "full", name
    run(spark, *CHANGES)
    for name, view in views.items():
        strategy, reason = refreshed(spark, view)
        expected, _, why = EXPECTED[name].partition(": ")
        assert strategy == expected, (name, reason)
        assert why in reason, name
        found = contents(spark, f"SELECT * FROM {view}")
        assert found, name
        assert found == contents(spark, queries[name]), name
