"""Functions for tests of SQL: rows as tuples, names, and queries of a table's metadata tables."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

Rows = list[tuple[Any, ...]]


def rows(spark: SparkSession, query: str) -> Rows:
    """The rows of a query as sorted tuples; nulls come first."""
    return sorted((tuple(row) for row in spark.sql(query).collect()), key=_order)


def run(spark: SparkSession, *statements: str) -> None:
    """Run statements one after another."""
    for statement in statements:
        spark.sql(statement)


def call(spark: SparkSession, table: str, procedure: str, arguments: str = "") -> dict[str, Any]:
    """Call a procedure of Iceberg for a table, and return its one row."""
    catalog, _, rest = table.partition(".")
    more = f", {arguments}" if arguments else ""
    [answer] = spark.sql(f"CALL {catalog}.system.{procedure}(table => '{rest}'{more})").collect()
    return answer.asDict()


def current_snapshot(spark: SparkSession, table: str, ref: str = "main") -> int:
    """Return the snapshot of a branch or tag of a table."""
    [(found,)] = rows(spark, f"SELECT snapshot_id FROM {table}.refs WHERE name = '{ref}'")
    return int(found)


def snapshots(spark: SparkSession, table: str) -> list[int]:
    """Return the ids of a table's snapshots, oldest first."""
    found = rows(spark, f"SELECT committed_at, snapshot_id FROM {table}.snapshots")
    return [snapshot for _, snapshot in found]


def _order(row: tuple[Any, ...]) -> list[tuple[bool, str, Any]]:
    # Dictionaries and lists of nested columns have no order of their own.
    return [
        (
            value is not None,
            "" if isinstance(value, int | float) else type(value).__name__,
            _comparable(value),
        )
        for value in row
    ]


def _comparable(value: Any) -> Any:
    return repr(value) if isinstance(value, dict | list | tuple) else value
