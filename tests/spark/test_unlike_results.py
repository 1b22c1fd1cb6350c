"""Refreshes of queries for which Spark can compute other rows than the stored ones: windows with equal rows, sums of
floating point, types that lose values, and functions of a session."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.spark.sql import rows, run
from tests.spark.test_incremental_changes import INCREMENTAL, Views
from tests.spark.test_incremental_refresh import ALWAYS, contents, home, refreshed
from tests.spark.test_states import another

__all__ = ["home"]  # a fixture
pytestmark = pytest.mark.spark


def test_rows_that_are_equal_in_order_by_are_not_taken_for_the_stored_ones(
    spark: SparkSession, home: str
) -> None:
    """Both possible results of the window are equal in the end, so that they can be compared with the query."""
    run(
        spark,
        "CREATE TABLE w (k INT, n INT, name STRING, x INT)",
        "INSERT INTO w VALUES (1, 1, 'c', 1), (1, 1, 'c', 2), (2, 1, 'a', 1), (3, 1, 'd', 1), (3, 1, 'd', 1)",
    )
    first = "(SELECT name, x, row_number() OVER (PARTITION BY k ORDER BY n) AS r FROM w)"
    queries = {
        "counted": f"SELECT name, x > 0 AS p, count(DISTINCT r) AS c FROM {first} WHERE r = 1 GROUP BY 1, 2",
        "added": f"SELECT name, x > 0 AS p FROM {first} WHERE r = 1 UNION ALL SELECT 'z', true",
    }
    views = Views(spark, home, queries)
    equal = "full: rows that differ are equal in the ORDER BY of a window inside another query"
    elsewhere = "DELETE FROM w WHERE k = 2", "INSERT INTO w VALUES (4, 3, 'c', 1)"
    assert views.after(*elsewhere) == {equal, *INCREMENTAL}  # groups are counted again over all partitions
    assert views.after("DELETE FROM w WHERE k = 1 AND x = 1") == {equal}
    assert views.after("INSERT INTO w VALUES (1, 0, 'b', 1)") == INCREMENTAL


def test_sums_of_floating_point_inside_another_query(spark: SparkSession, home: str) -> None:
    run(spark, "CREATE TABLE f (k INT, x DOUBLE)", "INSERT INTO f VALUES (1, 0.1), (1, 0.2), (1, 0.3)")
    sums = "(SELECT k, sum(x) AS s FROM f GROUP BY k) WHERE s > 0.6D"
    inner = Views(spark, home, {"inside": f"SELECT k FROM {sums} UNION ALL SELECT 0"})
    outer = Views(spark, home, {"outermost": f"SELECT k FROM {sums}"})
    delete = "DELETE FROM f WHERE k = 1"
    assert inner.after(delete) == {
        "full: it contains a sum of floating point, whose last digits can differ from the stored ones"
    }
    assert outer.after() == INCREMENTAL


def test_values_that_differ_and_are_stored_as_equal_ones(spark: SparkSession, home: str) -> None:
    run(
        spark,
        "CREATE TABLE w (id INT, x DOUBLE)",
        "INSERT INTO w VALUES (1, 1.5)",
        "CREATE MATERIALIZED VIEW v TBLPROPERTIES "
        f"({ALWAYS}) AS SELECT x, count(DISTINCT id) AS c FROM w GROUP BY x",
        "REFRESH MATERIALIZED VIEW v",
        "ALTER TABLE w DROP COLUMN x",
        "ALTER TABLE w ADD COLUMN x BIGINT",
        "INSERT INTO w VALUES (2, 9007199254740992), (3, 9007199254740993)",
        "REFRESH MATERIALIZED VIEW v",
        "INSERT INTO w VALUES (4, 9007199254740993)",
    )
    strategy, reason = refreshed(spark, "v")
    assert strategy == "full"
    assert "the stored column x has the type double, and the query now has the type bigint" in reason
    assert contents(spark, f"SELECT x, c FROM {home}.v.storage") == contents(
        spark, "SELECT CAST(x AS DOUBLE), count(DISTINCT id) FROM w GROUP BY x, CAST(x AS DOUBLE)"
    )


def test_a_temporary_function_in_the_place_of_one_of_spark(spark: SparkSession, home: str) -> None:
    query = "SELECT soundex(name) AS s FROM w"
    run(
        spark,
        "CREATE TABLE w (name STRING)",
        "INSERT INTO w VALUES ('a')",
        f"CREATE MATERIALIZED VIEW v AS {query}",
    )
    other = another(spark)
    other.udf.register("soundex", lambda _: "other")
    for statement in (
        f"REFRESH MATERIALIZED VIEW {home}.v",
        f"CREATE MATERIALIZED VIEW {home}.w2 AS SELECT soundex(name) AS s FROM {home}.w",
    ):
        with pytest.raises(Exception, match="soundex is a temporary function of this session"):
            run(other, statement)
    assert refreshed(spark, "v")[0] == "full"
    assert rows(spark, "SELECT * FROM v") == rows(spark, query) != [("other",)]
