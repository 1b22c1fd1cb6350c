"""References in the text of a view, compared with those of Spark's parser. Queries with replaced references are
executed."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from polaris_spark.catalog.materialized.view_queries import references_of, replaced
from tests.catalog.materialized.test_view_queries import NAMES
from tests.spark.sql import Rows, rows, run

CTE_NAMES = {"a", "b", "c", "t", "u", "A.B", "a.b"}
"""Names of CTEs in `NAMES`. Spark's parser does not tell references to CTEs from references to tables."""

QUERIES = [
    "SELECT * FROM HOME.t",
    "SELECT t.a, t.s.x FROM HOME.t WHERE t.a > 1",
    "SELECT HOME.t.a, HOME.t.* FROM HOME.t",
    "SELECT NS.t.a, HOME.t.s.x, NS.t.s.x AS y FROM HOME.t WHERE NS.t.a IN (SELECT NS.u.a FROM HOME.u)",
    "SELECT x.a, `t`.a FROM HOME.t x NATURAL JOIN HOME.u JOIN HOME.t",
    "SELECT * EXCEPT (t.s) FROM HOME.t LEFT ANTI JOIN HOME.u ON t.a = u.a",
    "SELECT a, s.x FROM HOME.t TABLESAMPLE (100 PERCENT) WHERE t.a = 2",
    "SELECT a FROM HOME.t WHERE EXISTS (SELECT 1 FROM HOME.u WHERE u.a = t.a AND NS.t.a > 1)",
    "SELECT (SELECT max(u.b) FROM HOME.u WHERE u.a = t.a) AS m FROM HOME.t",
    "WITH t AS (SELECT NS.t.a FROM HOME.t), u AS (SELECT * FROM t) SELECT t.a, u.a FROM t, u",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT n FROM r JOIN HOME.t ON n = a",
    "TABLE HOME.t",
    "(TABLE HOME.u EXCEPT TABLE HOME.u) UNION ALL SELECT a, b FROM HOME.u",
    "SELECT * FROM HOME.u PIVOT (max(b) FOR a IN (1, 2))",
    "SELECT * FROM HOME.u UNPIVOT (v FOR n IN (a, b)) AS w",
    "SELECT t.a, e.i FROM HOME.t LATERAL VIEW explode(l) e AS i",
    "SELECT t.a, e.i FROM HOME.t, LATERAL explode(t.l) AS e(i)",
    "SELECT t.a, w.b FROM HOME.t JOIN LATERAL (SELECT b FROM HOME.u WHERE u.a = t.a) w",
    "SELECT transform(l, i -> i + t.a), row_number() OVER (PARTITION BY t.a ORDER BY NS.t.a) FROM HOME.t",
    "SELECT a AS p, p + 1 AS q FROM HOME.t ORDER BY t.a",
    "FROM HOME.t |> WHERE t.a > 1 |> JOIN HOME.u ON t.a = u.a |> SELECT u.b",
    "SELECT * FROM ((HOME.t JOIN HOME.u ON t.a = NS.u.a))",
    "SELECT a /* FROM x */ , 'FROM y' AS c -- FROM z \\\n FROM z\nFROM HOME.`t`WHERE`a`>1",
]


def relations(spark: SparkSession, sql: str) -> set[str]:
    """Names of the relations in the plan that Spark's parser makes of `sql`, their parts separated by dots."""
    session: Any = spark._jsparkSession  # py4j has no types
    plan = session.sessionState().sqlParser().parsePlan(sql)
    lines = plan.toString().splitlines()
    found = [
        line.split("'UnresolvedRelation [", 1)[1].split("]", 1)[0] for line in lines if _RELATION in line
    ]
    return {name.replace(", ", ".") for name in found}


_RELATION = "'UnresolvedRelation ["


def answered(spark: SparkSession, sql: str) -> tuple[list[str], Rows]:
    """Names of the columns, and rows."""
    return spark.sql(sql).columns, rows(spark, sql)


@pytest.mark.spark
def test_spark_finds_the_same_references_and_replaced_texts_have_the_same_rows(
    spark: SparkSession, namespace: str
) -> None:
    for sql, _ in NAMES:
        expected = {".".join(reference.parts) for reference in references_of(sql)}
        found = relations(spark, sql)
        others = found - expected
        assert expected <= found, sql
        assert not others or ("WITH" in sql.upper() and {name.lower() for name in others} <= CTE_NAMES), sql

    last = namespace.rpartition(".")[2]
    run(
        spark,
        f"CREATE TABLE {namespace}.t (a INT, s STRUCT<x: INT>, l ARRAY<INT>)",
        f"INSERT INTO {namespace}.t VALUES (1, named_struct('x', 10), array(1, 2)), "
        "(2, named_struct('x', 20), array(3)), (3, NULL, NULL)",
        f"CREATE TABLE {namespace}.u (a INT, b INT)",
        f"INSERT INTO {namespace}.u VALUES (2, 7), (3, 8)",
    )
    versions = {
        name: spark.sql(f"SELECT snapshot_id FROM {namespace}.{name}.snapshots").collect()[0][0]
        for name in "tu"
    }
    pinned = {name: f"{namespace}.{name} VERSION AS OF {version}" for name, version in versions.items()}
    for query in QUERIES:
        sql = query.replace("HOME", namespace).replace("NS", last)
        original = answered(spark, sql)
        references = references_of(sql)
        for form in ("(SELECT * FROM {})", "{}"):
            replacements = {one.start: form.format(pinned[one.parts[-1]]) for one in references}
            assert answered(spark, replaced(sql, replacements)) == original, sql
    assert original[1] != []
    # The replaced texts read the pinned snapshots.
    run(spark, f"INSERT INTO {namespace}.u VALUES (9, 9)")
    sql = f"SELECT count({last}.u.a) FROM {namespace}.u WITH ('split-size' = '1000')"
    assert rows(spark, sql) == [(3,)]
    assert rows(spark, replaced(sql, {references_of(sql)[0].start: pinned["u"]})) == [(2,)]
