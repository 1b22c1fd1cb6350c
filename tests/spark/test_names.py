"""Names of tables and namespaces that only quoting makes possible."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

HOSTILE = [
    "with space",
    "dot.ted",
    "sla/sh",
    "back\\slash",
    "quo'te",
    'double"quote',
    "back`tick",
    "percent%2F",
    "plus+and&amp=",
    "question?mark#",
    "grüße",
    "表",
    "\U0001f9ca",
    "..",
    "tab\tnew\nline",
    "snapshots",
    "x" * 200,
]
SEPARATOR = "\x1f"


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@pytest.fixture(params=HOSTILE, ids=[ascii(name)[:20] for name in HOSTILE])
def hostile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_table_may_have_any_name(spark: SparkSession, namespace: str, hostile: str) -> None:
    table = f"{namespace}.{quoted(hostile)}"
    spark.sql(f"CREATE TABLE {table} (n INT)")
    spark.sql(f"INSERT INTO {table} VALUES (1)")
    assert spark.table(table).count() == 1
    assert [row.tableName for row in spark.sql(f"SHOW TABLES IN {namespace}").collect()] == [hostile]
    spark.sql(f"DROP TABLE {table}")
    assert spark.sql(f"SHOW TABLES IN {namespace}").count() == 0


def test_a_namespace_may_have_any_name(spark: SparkSession, namespace: str, hostile: str) -> None:
    inner = f"{namespace}.{quoted(hostile)}"
    spark.sql(f"CREATE NAMESPACE {inner}")
    spark.sql(f"CREATE TABLE {inner}.t AS SELECT 1 AS n")
    assert spark.table(f"{inner}.t").count() == 1
    spark.sql(f"DROP TABLE {inner}.t")
    spark.sql(f"DROP NAMESPACE {inner}")
    assert spark.sql(f"SHOW NAMESPACES IN {namespace}").count() == 0


def test_a_namespace_with_the_separator_of_the_protocol_in_its_name_is_refused(
    spark: SparkSession, namespace: str
) -> None:
    with pytest.raises(Exception, match=r"(?i)separator|0x1f|control|character"):
        spark.sql(f"CREATE NAMESPACE {namespace}.{quoted('a' + SEPARATOR + 'b')}")
