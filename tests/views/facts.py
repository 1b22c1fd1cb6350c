"""A namespace with a long history, and functions that compare views with known facts about it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import MapType, StructType

HOME = "polaris.facts"


TABLES = ("orders", "`a.b`", "empty", "third", "moved")
"""Tables of the namespace, as SQL writes their names."""


STATEMENTS = (
    "CREATE NAMESPACE {h} COMMENT 'what is known' WITH PROPERTIES ('colour' = 'red')",
    "CREATE NAMESPACE {h}.`in.ner`",
    """CREATE TABLE {h}.orders (id BIGINT NOT NULL COMMENT 'the key', at TIMESTAMP, price DECIMAL(9,2),
       who STRUCT<name: STRING NOT NULL COMMENT 'in full', mails: ARRAY<STRING>>, marks MAP<STRING, STRUCT<n: INT>>)
       USING iceberg PARTITIONED BY (days(at), bucket(4, id)) TBLPROPERTIES ('format-version' = '2', 'k' = 'v')""",
    "ALTER TABLE {h}.orders SET IDENTIFIER FIELDS id",
    "ALTER TABLE {h}.orders WRITE ORDERED BY price",
    """INSERT INTO {h}.orders SELECT id, TIMESTAMP '2026-01-01' + make_interval(0, 0, 0, CAST(id % 3 AS INT)), id / 2,
       struct('n', array('m')), map('k', struct(1)) FROM range(40)""",
    "ALTER TABLE {h}.orders CREATE TAG first RETAIN 30 DAYS",
    "ALTER TABLE {h}.orders CREATE BRANCH audit RETAIN 7 DAYS WITH SNAPSHOT RETENTION 3 SNAPSHOTS 2 DAYS",
    "INSERT INTO {h}.orders.branch_audit SELECT 100, TIMESTAMP '2026-01-05', 1, struct('n', array()), map()",
    "DELETE FROM {h}.orders WHERE id = 7",
    "ALTER TABLE {h}.orders ADD COLUMN who.age INT AFTER name",
    "ALTER TABLE {h}.orders RENAME COLUMN price TO cost",
    "ALTER TABLE {h}.orders DROP COLUMN marks",
    "UPDATE {h}.orders SET cost = 1 WHERE id = 9",
    "CREATE TABLE {h}.`a.b` (n INT) USING iceberg TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')",
    "INSERT INTO {h}.`a.b` SELECT CAST(id AS INT) FROM range(10)",
    "INSERT INTO {h}.`a.b` SELECT CAST(id AS INT) FROM range(10, 20)",
    "DELETE FROM {h}.`a.b` WHERE n IN (3, 13)",
    "CREATE TABLE {h}.empty (day DATE, s STRING) USING iceberg PARTITIONED BY (day)",
    "CREATE TABLE {h}.third TBLPROPERTIES ('format-version' = '3') AS SELECT id AS x FROM range(5)",
    "INSERT INTO {h}.third VALUES (6)",
    "CREATE TABLE {h}.before (n INT) USING iceberg",
    "INSERT INTO {h}.before VALUES (1)",
    "ALTER TABLE {h}.before RENAME TO {h}.moved",
    "CREATE TABLE {h}.dropped (n INT) USING iceberg",
    "DROP TABLE {h}.dropped",
    "CREATE VIEW {h}.seen (a COMMENT 'first', b) TBLPROPERTIES ('k' = 'v') AS SELECT id, cost FROM {h}.orders",
    "CREATE OR REPLACE VIEW {h}.seen AS SELECT 1 AS one, 'x' AS two",
)


def same(ours: DataFrame, theirs: DataFrame) -> None:
    """Assert that two frames have the same rows, and at least one."""
    assert ours.columns == theirs.columns
    assert_df_equality(
        _plain(ours), _plain(theirs), ignore_row_order=True, ignore_nullable=True, ignore_metadata=True
    )
    assert theirs.count() > 0


def same_as(spark: SparkSession, ours: DataFrame, facts: list[dict[str, Any]]) -> None:
    """Assert that the rows of a frame agree with these facts. Columns that the facts lack are not compared."""
    chosen = ours.select(*[f"`{name}`" for name in facts[0]])
    rows = [tuple(fact.values()) for fact in facts]
    same(chosen, spark.createDataFrame(rows, _nullable(chosen.schema)))


def _plain(frame: DataFrame) -> DataFrame:
    """Return maps as sorted lists, which can be compared."""
    columns = [
        f"array_sort(map_entries(`{field.name}`)) AS `{field.name}`"
        if isinstance(field.dataType, MapType)
        else f"`{field.name}`"
        for field in frame.schema.fields
    ]
    return frame.selectExpr(*columns)


def _nullable(schema: StructType) -> StructType:
    return StructType.fromJson(schema.jsonValue())


def of(spark: SparkSession, view: str, home: str) -> DataFrame:
    """Return the rows of a view that belong to the namespace."""
    return spark.table(f"polaris.system.{view}").filter(home)


def name_of(table: str) -> str:
    """Return a name without SQL's backquotes."""
    return table.strip("`")


def together(spark: SparkSession, query: str) -> DataFrame:
    """Return the union of a query on each of the tables, with the table's name as first column."""
    queries = [f"SELECT '{name_of(table)}' AS name, {query.format(t=f'{HOME}.{table}')}" for table in TABLES]
    return spark.sql(" UNION ALL ".join(queries))


def moment(milliseconds: int | None) -> datetime | None:
    """Return a time in the form of Spark's rows."""
    if milliseconds is None:
        return None
    return datetime.fromtimestamp(0, timezone.utc).replace(tzinfo=None) + timedelta(milliseconds=milliseconds)
