# ruff: noqa: E501
"""Column lineage from Spark's plans, and the system view `lineage` after views were created and refreshed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.sql import rows, run

pytestmark = pytest.mark.spark

Lineage = dict[str, str]
"""Dependencies by column, as text; those of all rows have the key `*`."""

SHAPES: dict[str, Lineage] = {
    "SELECT id, n + k AS m, 1 AS one FROM sale": {
        "id": "sale.id IDENTITY",
        "m": "sale.k TRANSFORMATION, sale.n TRANSFORMATION",
    },
    "SELECT a FROM (SELECT id AS a, n AS m FROM sale WHERE region = 'r') WHERE m > 3": {
        "a": "sale.id IDENTITY",
        "*": "sale.n FILTER, sale.region FILTER",
    },
    "SELECT CASE WHEN k > 3 THEN n ELSE id END AS c, if(n > 1, region, 'x') AS i, nullif(k, id) AS z FROM sale": {
        "c": "sale.id TRANSFORMATION, sale.k CONDITIONAL, sale.n TRANSFORMATION",
        "i": "sale.n CONDITIONAL, sale.region TRANSFORMATION",
        "z": "sale.id CONDITIONAL, sale.k CONDITIONAL, sale.k TRANSFORMATION",
    },
    "SELECT region AS r, sum(n * k) AS s, count(*) AS c, max(day) FILTER (WHERE id > 2) AS m FROM sale GROUP BY region": {
        "r": "sale.region IDENTITY",
        "s": "sale.k AGGREGATION, sale.n AGGREGATION",
        "m": "sale.day AGGREGATION, sale.id FILTER",
        "*": "sale.region GROUP_BY",
    },
    "SELECT upper(region) AS r, sum(n) + 1 AS s FROM sale GROUP BY 1 HAVING count(k) > 2": {
        "r": "sale.region TRANSFORMATION",
        "s": "sale.n AGGREGATION",
        "*": "sale.k FILTER, sale.region GROUP_BY",
    },
    "SELECT region, k, sum(n) AS s FROM sale GROUP BY GROUPING SETS ((region), (k), ())": {
        "region": "sale.region IDENTITY",
        "k": "sale.k IDENTITY",
        "s": "sale.n AGGREGATION",
        "*": "sale.k GROUP_BY, sale.region GROUP_BY",
    },
    "SELECT s.id, i.name FROM sale s LEFT JOIN item i ON s.k = i.k AND i.size > 1": {
        "id": "sale.id IDENTITY",
        "name": "item.name IDENTITY",
        "*": "item.k JOIN, item.size JOIN, sale.k JOIN",
    },
    "SELECT k, name, region FROM sale FULL JOIN item USING (k)": {
        "k": "item.k TRANSFORMATION, sale.k TRANSFORMATION",
        "name": "item.name IDENTITY",
        "region": "sale.region IDENTITY",
        "*": "item.k JOIN, sale.k JOIN",
    },
    "SELECT a.id AS one, b.n AS other FROM sale a JOIN sale b ON a.id < b.k": {
        "one": "sale.id IDENTITY",
        "other": "sale.n IDENTITY",
        "*": "sale.id JOIN, sale.k JOIN",
    },
    "SELECT name FROM item LEFT ANTI JOIN sale USING (k)": {
        "name": "item.name IDENTITY",
        "*": "item.k JOIN, sale.k JOIN",
    },
    "SELECT id FROM sale CROSS JOIN item": {"id": "sale.id IDENTITY", "*": "item"},
    "SELECT count(*) AS c FROM sale": {"*": "sale"},
    "SELECT id FROM sale WHERE k IN (SELECT k FROM item WHERE size > 0)": {
        "id": "sale.id IDENTITY",
        "*": "item.k FILTER, item.size FILTER, sale.k FILTER",
    },
    "SELECT id FROM sale s WHERE NOT EXISTS (SELECT 1 FROM item i WHERE i.k = s.k AND EXISTS (SELECT 1 FROM shop WHERE city = i.name))": {
        "id": "sale.id IDENTITY",
        "*": "item.k FILTER, item.name FILTER, sale.k FILTER, shop.city FILTER",
    },
    "SELECT id, (SELECT max(name) FROM item i WHERE i.k = s.k) AS name, n > (SELECT avg(size) FROM item) AS big FROM sale s": {
        "id": "sale.id IDENTITY",
        "name": "item.k FILTER, item.name AGGREGATION, sale.k FILTER",
        "big": "item.size AGGREGATION, sale.n TRANSFORMATION",
    },
    "SELECT s.id, x.name FROM sale s, LATERAL (SELECT name FROM item i WHERE i.k = s.k ORDER BY size LIMIT 1) x": {
        "id": "sale.id IDENTITY",
        "name": "item.name IDENTITY",
        "*": "item.k FILTER, item.size SORT, sale.k FILTER",
    },
    "SELECT id, x, tags[0] AS t FROM sale LATERAL VIEW explode(tags) AS x": {
        "id": "sale.id IDENTITY",
        "x": "sale.tags TRANSFORMATION",
        "t": "sale.tags TRANSFORMATION",
        "*": "sale.tags JOIN",
    },
    "SELECT transform(tags, t -> concat(t, region)) AS t, named_struct('a', id).a AS a FROM sale": {
        "t": "sale.region TRANSFORMATION, sale.tags TRANSFORMATION",
        "a": "sale.id TRANSFORMATION",
    },
    "SELECT id, rank() OVER (PARTITION BY region ORDER BY n) AS r, sum(k) OVER (PARTITION BY day) AS s, lag(n) OVER (ORDER BY id) AS l FROM sale": {
        "id": "sale.id IDENTITY",
        "r": "sale.n WINDOW, sale.region WINDOW",
        "s": "sale.day WINDOW, sale.k AGGREGATION",
        "l": "sale.id WINDOW, sale.n TRANSFORMATION",
    },
    "SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY region ORDER BY n) AS r FROM sale) WHERE r = 1": {
        "id": "sale.id IDENTITY",
        "*": "sale.n FILTER, sale.region FILTER",
    },
    "SELECT k AS x, region AS y FROM sale UNION ALL SELECT k + 1, name FROM item UNION ALL SELECT 1, 'one'": {
        "x": "item.k TRANSFORMATION, sale.k IDENTITY",
        "y": "item.name IDENTITY, sale.region IDENTITY",
    },
    "SELECT k FROM sale UNION SELECT k FROM item": {
        "k": "item.k IDENTITY, sale.k IDENTITY",
        "*": "item.k GROUP_BY, sale.k GROUP_BY",
    },
    "SELECT k, region FROM sale EXCEPT SELECT k, name FROM item": {
        "k": "sale.k IDENTITY",
        "region": "sale.region IDENTITY",
        "*": "item.k FILTER, item.name FILTER, sale.k FILTER, sale.k GROUP_BY, sale.region FILTER, sale.region GROUP_BY",
    },
    "SELECT k FROM sale INTERSECT ALL SELECT k FROM item WHERE size > 1": {
        "k": "sale.k IDENTITY",
        "*": "item.k FILTER, item.size FILTER, sale.k FILTER",
    },
    "SELECT DISTINCT region FROM sale": {"region": "sale.region IDENTITY", "*": "sale.region GROUP_BY"},
    "WITH a AS (SELECT k, sum(n) AS s FROM sale GROUP BY k), b AS (SELECT * FROM a WHERE s > 3) SELECT b.s, a.s + 1 AS t FROM b JOIN a ON a.k = b.k": {
        "s": "sale.n AGGREGATION",
        "t": "sale.n AGGREGATION",
        "*": "sale.k GROUP_BY, sale.k JOIN, sale.n FILTER",
    },
    "WITH a AS (SELECT k FROM item) SELECT id, k IN (SELECT k FROM a) AS i FROM sale": {
        "id": "sale.id IDENTITY",
        "i": "item.k TRANSFORMATION, sale.k TRANSFORMATION",
    },
    "WITH RECURSIVE r(a, b) AS (SELECT id, n FROM sale UNION ALL SELECT a + 1, i.k FROM r JOIN item i ON i.size = r.b WHERE a < 5) SELECT a, b FROM r": {
        "a": "sale.id IDENTITY, sale.id TRANSFORMATION",
        "b": "item.k TRANSFORMATION, sale.n IDENTITY",
        "*": "item.k JOIN, item.size JOIN, sale.id FILTER, sale.n JOIN",
    },
    "SELECT id, n FROM sale ORDER BY day LIMIT 3": {
        "id": "sale.id IDENTITY",
        "n": "sale.n IDENTITY",
        "*": "sale.day SORT",
    },
    "SELECT * FROM (SELECT region, k, n FROM sale) PIVOT (sum(n) FOR k IN (1, 2))": {
        "region": "sale.region IDENTITY",
        "1": "sale.k AGGREGATION, sale.n AGGREGATION",
        "2": "sale.k AGGREGATION, sale.n AGGREGATION",
        "*": "sale.k GROUP_BY, sale.region GROUP_BY",
    },
    "SELECT id, what, v FROM sale UNPIVOT (v FOR what IN (n, k))": {
        "id": "sale.id IDENTITY",
        "v": "sale.k TRANSFORMATION, sale.n IDENTITY",
        "*": "sale.k FILTER, sale.n FILTER",
    },
    "SELECT region, listagg(tags[0], ',') WITHIN GROUP (ORDER BY day) AS l, max_by(id, n) AS m, count_if(k > 1) AS c FROM sale GROUP BY region": {
        "region": "sale.region IDENTITY",
        "l": "sale.day SORT, sale.tags AGGREGATION",
        "m": "sale.id AGGREGATION, sale.n AGGREGATION",
        "c": "sale.k AGGREGATION",
        "*": "sale.region GROUP_BY",
    },
    "SELECT r, c FROM (SELECT region AS r, n BETWEEN k AND id AS c FROM sale)": {
        "r": "sale.region IDENTITY",
        "c": "sale.id TRANSFORMATION, sale.k TRANSFORMATION, sale.n TRANSFORMATION",
    },
}


@pytest.fixture
def home(spark: SparkSession, namespace: str) -> str:
    """A namespace with the empty tables `sale`, `item` and `shop`. It is the session's current namespace."""
    run(
        spark,
        f"USE {namespace}",
        "CREATE TABLE sale (id INT, k INT, region STRING, n BIGINT, day DATE, tags ARRAY<STRING>)",
        "CREATE TABLE item (k INT, name STRING, size DOUBLE)",
        "CREATE TABLE shop (city STRING)",
    )
    return namespace


def lineage(spark: SparkSession, query: str) -> Lineage:
    """The lineage of a query, as Java finds it."""
    frame = spark.sql(query)
    plan: Any = frame._jdf.queryExecution().analyzed()
    jvm: Any = spark._jvm
    found = json.loads(jvm.io.polarisspark.ColumnLineage.of(plan, len(frame.columns)))
    if "edges" not in found:
        return {}
    every: dict[str, list[str]] = {}
    for kind, edges in found["edges"].items():
        for column, number, position in edges:
            source = found["sources"][number]
            name = "*" if column is None else frame.columns[column]
            every.setdefault(name, []).append(f"{source['name'][-1]}.{source['columns'][position]} {kind}")
    for source in found["sources"]:
        if not source["columns"]:
            every.setdefault("*", []).append(source["name"][-1])
    return {name: ", ".join(sorted(some)) for name, some in every.items()}


def shown(spark: SparkSession, view: str) -> Lineage:
    """The lineage of a materialized view, as the system view shows it."""
    found = spark.table("polaris.system.lineage").where(f"name = '{view}'").collect()
    every: dict[str, list[str]] = {}
    for row in found:
        column = "" if row.source_column is None else f".{row.source_column}"
        kind = f" {row.transformation}" if row.transformation else f" ({row.source_type})"
        every.setdefault(row.view_column or "*", []).append(f"{row.source_name}{column}{kind}")
        assert row.source_catalog == "polaris"
    return {name: ", ".join(sorted(some)) for name, some in every.items()}


def test_lineage_of_each_shape_of_query(spark: SparkSession, home: str) -> None:
    assert {query: lineage(spark, query) for query in SHAPES} == SHAPES


def test_files_are_sources_and_the_lineage_of_unknown_operators_is_that_of_tables(
    spark: SparkSession, home: str, tmp_path: Path
) -> None:
    spark.range(3).write.parquet(str(tmp_path / "files"))
    assert lineage(spark, f"SELECT id + 1 AS i FROM parquet.`{tmp_path}/files`") == {
        "i": f"file:{tmp_path}/files.id TRANSFORMATION"
    }
    assert lineage(spark, "SELECT TRANSFORM(id) USING 'cat' AS (x) FROM sale") == {}


def test_creations_and_refreshes_record_the_lineage_of_what_they_read(spark: SparkSession, home: str) -> None:
    run(
        spark,
        "CREATE VIEW plain AS SELECT k, n FROM sale",
        "CREATE MATERIALIZED VIEW below AS SELECT k AS key, sum(n) AS s FROM plain GROUP BY k",
        "CREATE MATERIALIZED VIEW above AS SELECT name, s + 1 AS t FROM below JOIN item ON key = k",
    )
    by_query = {
        "name": "item.name IDENTITY",
        "t": "sale.n AGGREGATION",
        "*": "below (materialized view), item.k JOIN, plain (view), sale.k GROUP_BY, sale.k JOIN",
    }
    assert shown(spark, "below") == {
        "key": "sale.k IDENTITY",
        "s": "sale.n AGGREGATION",
        "*": "plain (view), sale.k GROUP_BY",
    }
    assert shown(spark, "above") == by_query
    run(spark, "REFRESH MATERIALIZED VIEW above")
    assert shown(spark, "above") == by_query
    run(spark, "REFRESH MATERIALIZED VIEW below", "REFRESH MATERIALIZED VIEW above FULL")
    assert shown(spark, "above") == {
        "name": "item.name IDENTITY",
        "t": "below.s TRANSFORMATION",
        "*": "below.key JOIN, item.k JOIN",
    }
    records = rows(spark, f"SELECT summary['polaris.refresh'] FROM {home}.above.storage.snapshots")
    assert sorted("lineage" in json.loads(text) for (text,) in records) == [False, True]
    first = spark.sql(f"SELECT snapshot_id FROM {home}.above.storage.snapshots ORDER BY committed_at").first()
    run(
        spark,
        f"CALL polaris.system.rollback_to_snapshot('{home.partition('.')[2]}.above.storage', {first[0]})",
    )
    assert shown(spark, "above") == by_query
    [(past,)] = rows(spark, f"SELECT snapshot_id FROM {home}.below.storage.snapshots")
    run(spark, f"CREATE MATERIALIZED VIEW past AS SELECT max(s) AS m FROM below VERSION AS OF {past}")
    assert shown(spark, "past") == {"m": "below.s AGGREGATION"}
    run(spark, "CREATE OR REPLACE MATERIALIZED VIEW above AS SELECT city FROM shop")
    assert shown(spark, "above") == {"city": "shop.city IDENTITY"}


def test_renamed_columns_and_incremental_refreshes(spark: SparkSession, home: str) -> None:
    run(
        spark,
        "INSERT INTO item VALUES (1, 'tea', 2)",
        "CREATE MATERIALIZED VIEW mv TBLPROPERTIES ('refresh-strategy' = 'incremental') AS "
        "SELECT name, sum(k) AS s FROM item GROUP BY name",
        "REFRESH MATERIALIZED VIEW mv",
        "INSERT INTO item VALUES (2, 'tea', 2)",
    )
    assert spark.sql("REFRESH MATERIALIZED VIEW mv").collect()[0].strategy == "incremental"
    expected = {"name": "item.name IDENTITY", "s": "item.k AGGREGATION", "*": "item.name GROUP_BY"}
    assert shown(spark, "mv") == expected
    run(
        spark,
        "ALTER TABLE item RENAME COLUMN size TO n",
        "CREATE MATERIALIZED VIEW w AS SELECT n AS x FROM item",
    )
    assert shown(spark, "w") == {"x": "item.n IDENTITY"}
