"""Which queries of materialized views can be refreshed incrementally, and which never."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.sql import rows, run
from tests.spark.test_incremental_views import INCREMENTAL
from tests.spark.test_materialized_views import home, refreshed

__all__ = ["home"]  # a fixture
pytestmark = pytest.mark.spark

SESSIONS = (
    "SELECT region, session_window(at, '10 minutes').start AS s, count(*) AS c FROM e "
    "GROUP BY region, session_window(at, '10 minutes')"
)
WINDOWS = "SELECT window(at, '10 minutes', '5 minutes').start AS s, count(*) AS c FROM e GROUP BY 1"
ORDERED = {
    "any_value", "approx_percentile", "approx_top_k", "array_agg", "collect_list", "collect_set", "first",
    "first_value", "histogram_numeric", "hll_sketch_agg", "hll_union_agg", "last", "last_value", "listagg", "max_by",
    "min_by", "mode", "percentile_approx", "schema_of_variant_agg", "string_agg", "theta_intersection_agg",
    "theta_sketch_agg", "theta_union_agg",
}  # fmt: skip  # a list of words
CHANGING = {
    "aes_encrypt", "curdate", "current_catalog", "current_database", "current_date", "current_schema",
    "current_time", "current_timestamp", "current_timezone", "current_user", "input_file_block_length",
    "input_file_block_start", "input_file_name", "java_method", "localtimestamp", "monotonically_increasing_id",
    "now", "rand", "randn", "random", "randstr", "reflect", "session_user", "shuffle", "spark_partition_id",
    "try_reflect", "uniform", "user", "uuid", "version",
}  # fmt: skip  # a list of words
CALLS_OTHERS = {"convert_timezone", "hll_sketch_estimate", "hll_union", "unix_timestamp"}
"""Functions whose examples call one of the others."""


def hindrance(spark: SparkSession, query: str) -> str:
    jvm: Any = spark._jvm
    columns = json.dumps([f"c{position}" for position in range(len(spark.sql(query).columns))])
    session: Any = spark._jsparkSession
    return str(jvm.io.polarisspark.incremental.IncrementalRefresh(session, query, columns).hindrance())


def examples(spark: SparkSession) -> Iterator[tuple[str, str]]:
    """Yield each example in Spark's documentation of its functions, after the name of the function."""
    session: Any = spark._jsparkSession
    registry = session.sessionState().functionRegistry()
    names = registry.listFunction().iterator()
    while names.hasNext():
        name = names.next()
        found = registry.lookupFunction(name).get()
        for query in re.findall(r">\s*(SELECT.*?);\s*$", found.getExamples(), re.DOTALL | re.MULTILINE):
            yield name.funcName(), query.replace("_FUNC_", name.funcName())


def test_functions_whose_results_can_differ_for_the_same_rows_are_refused(spark: SparkSession) -> None:
    refused: dict[str, str] = {}
    accepted: set[str] = set()
    for name, query in examples(spark):
        try:
            why = hindrance(spark, query)
        except Exception:  # some examples show errors
            continue
        if why:
            refused[name] = why
        else:
            accepted.add(name)
    sketches = {name for name in refused if name.startswith(("kll_", "theta_", "approx_top_k"))}
    assert refused.keys() - sketches - {"session_window"} == (ORDERED | CHANGING | CALLS_OTHERS) - sketches
    assert "kll_sketch_merge_bigint" in sketches
    assert {"sum", "percentile", "regr_r2", "rank", "ntile", "explode", "window", "transform"} <= accepted
    assert len(accepted) > 400
    ordered = {name for name, why in refused.items() if why.endswith("can depend on the order of rows")}
    assert ordered >= ORDERED


@pytest.mark.parametrize(
    ("expression", "function"),
    [
        ("CAST('now' AS TIMESTAMP)", "now"),
        ("to_timestamp(' Today ')", "Today"),
        ("n > 0 AND DATE '2020-01-01' < 'yesterday'", "yesterday"),
        ("TIMESTAMP 'now'", "now"),
        ("current_date", "current_date"),
        ("base64(aes_encrypt('a', '0000111122223333'))", "aes_encrypt"),
        ("(SELECT max(r) FROM (SELECT rand() AS r FROM t))", "rand"),
    ],
)
def test_a_function_of_the_time_or_of_chance_is_refused(
    spark: SparkSession, home: str, expression: str, function: str
) -> None:
    with pytest.raises(Exception, match=f"the query calls {function}, so it cannot be refreshed"):
        run(spark, f"CREATE MATERIALIZED VIEW mv {INCREMENTAL} AS SELECT {expression} AS c FROM t")
    assert rows(spark, "SHOW MATERIALIZED VIEWS") == []


def test_a_column_can_have_the_name_of_such_a_function(spark: SparkSession, home: str) -> None:
    query = "SELECT current_date, user, now FROM d WHERE current_date > 1"
    run(spark, "CREATE TABLE d (current_date INT, user STRING, now INT)", "INSERT INTO d VALUES (5, 'a', 1)")
    run(spark, f"CREATE MATERIALIZED VIEW mv {INCREMENTAL} AS {query}")
    refreshed(spark, "mv")
    run(spark, "INSERT INTO d VALUES (6, 'b', 2)")
    assert refreshed(spark, "mv")[0] == "incremental"
    assert rows(spark, "SELECT * FROM mv") == rows(spark, query)


def test_sessions_are_computed_again_and_fixed_windows_are_not(spark: SparkSession, home: str) -> None:
    views = {
        "sessions": SESSIONS,
        "windows": WINDOWS,
        "outer_sessions": f"SELECT max(c) AS m FROM ({SESSIONS})",
    }
    run(
        spark,
        "CREATE TABLE e (region STRING, at TIMESTAMP)",
        "INSERT INTO e VALUES ('a', TIMESTAMP '2026-01-01 00:00:00'), ('a', TIMESTAMP '2026-01-01 00:05:00')",
    )
    for name, query in views.items():
        run(spark, f"CREATE MATERIALIZED VIEW {name} {INCREMENTAL} AS {query}")
        refreshed(spark, name)
    for time in ("00:12:00", "03:00:00", "00:21:59"):
        run(spark, f"INSERT INTO e VALUES ('a', TIMESTAMP '2026-01-01 {time}')")
        done = {name: refreshed(spark, name) for name in views}
        assert done["windows"][0] == "incremental"
        for name in ("sessions", "outer_sessions"):
            assert done[name][0] == "full"
            assert "it contains session_window" in done[name][1]
        for name, query in views.items():
            assert rows(spark, f"SELECT * FROM {name}") == rows(spark, query), name
    assert rows(spark, "SELECT c FROM sessions") == [(1,), (4,)]


def test_a_query_in_pipe_syntax_is_refreshed_incrementally(spark: SparkSession, home: str) -> None:
    query = "FROM t |> WHERE n > 10 |> AGGREGATE count(*) AS c, sum(n) AS s GROUP BY region"
    run(spark, f"CREATE MATERIALIZED VIEW mv {INCREMENTAL} AS {query}")
    refreshed(spark, "mv")
    for statement in ("INSERT INTO t VALUES (200, 'r1', 70)", "DELETE FROM t WHERE id = 30"):
        run(spark, statement)
        assert refreshed(spark, "mv")[0] == "incremental"
        assert rows(spark, "SELECT * FROM mv") == rows(spark, query)


def test_a_view_that_comes_to_read_itself_is_refused(spark: SparkSession, home: str) -> None:
    run(
        spark,
        "CREATE VIEW low AS SELECT id FROM t",
        "CREATE MATERIALIZED VIEW mv AS SELECT id FROM low",
    )
    refreshed(spark, "mv")
    run(spark, "CREATE VIEW high AS SELECT id FROM mv", "CREATE OR REPLACE VIEW low AS SELECT id FROM high")
    space = home.partition(".")[2]
    chain = rf"view {space}\.mv reads itself: {space}\.mv reads {space}\.low reads {space}\.high reads {space}\.mv"
    for statement in ("SELECT * FROM mv", "SELECT * FROM low", "REFRESH MATERIALIZED VIEW mv"):
        with pytest.raises(Exception, match=chain):
            spark.sql(statement).collect()
    spark.conf.set("spark.wap.branch", "aside")
    try:
        with pytest.raises(Exception, match=chain):
            spark.sql("SELECT * FROM high").collect()
    finally:
        spark.conf.unset("spark.wap.branch")
    run(spark, "CREATE OR REPLACE VIEW low AS SELECT id FROM t WHERE id < 2")
    assert rows(spark, "SELECT * FROM mv") == [(0,), (1,)]
