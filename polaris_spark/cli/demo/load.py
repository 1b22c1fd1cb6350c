"""First chapter of the demo: loading the tables."""

from __future__ import annotations

from polaris_spark.cli.demo import data
from polaris_spark.cli.demo.data import TABLES
from polaris_spark.cli.demo.model import missing, per_month
from polaris_spark.cli.demo.stage import Stage


def load(stage: Stage) -> None:
    """Create the namespace, create the five tables with CREATE TABLE AS SELECT, insert the flights of December, and
    check the rows of all tables."""
    stage.chapter("Five tables: CREATE NAMESPACE, CREATE TABLE AS SELECT, INSERT")
    for name, table in stage.data.arrow.items():
        folder = data.write(table, stage.place.directory / "source" / name)
        stage.spark.read.parquet(str(folder)).createOrReplaceTempView(f"{name}_source")
    stage.sql("CREATE NAMESPACE polaris.nyc COMMENT 'Flights that left New York City in 2013'")
    for name in TABLES[:-1]:
        stage.sql(f"CREATE TABLE polaris.nyc.{name} USING iceberg AS SELECT * FROM {name}_source")
    stage.sql(
        """
        CREATE TABLE polaris.nyc.flights USING iceberg PARTITIONED BY (month)
        TBLPROPERTIES ('write.update.mode' = 'merge-on-read', 'write.delete.mode' = 'merge-on-read')
        AS SELECT * FROM flights_source WHERE month < 12
        """
    )
    stage.check("flights created", _count(stage), len(stage.flights.created))
    stage.sql("INSERT INTO polaris.nyc.flights SELECT * FROM flights_source WHERE month = 12")
    _check(stage)


def _check(stage: Stage) -> None:
    shown = []
    for name in TABLES:
        frame = stage.data.frames[name]
        (counts,) = stage.quiet(_counting(name, list(frame.columns)))
        rows = counts["rows"]
        nulls = {column: count for column, count in counts.items() if count and column != "rows"}
        stage.check(f"rows of {name}", rows, len(frame))
        stage.check(f"missing values of {name}, by column", nulls, missing(frame))
        shown.append(
            {"table": name, "rows": rows, "columns": len(frame.columns), "NULLs": sum(nulls.values())}
        )
    stage.show(shown)
    found = {row["month"]: row["n"] for row in stage.quiet(PER_MONTH.format(table="polaris.nyc.flights"))}
    stage.check("flights by month, loaded", found, per_month(stage.flights.inserted))


PER_MONTH = "SELECT month, count(*) AS n FROM {table} GROUP BY month"
"""SQL query for the number of flights by month. `{table}` stands for the table, with or without a version clause."""


def _counting(name: str, columns: list[str]) -> str:
    nulls = ", ".join(f"count_if({column} IS NULL) AS {column}" for column in columns)
    return f"SELECT count(*) AS rows, {nulls} FROM polaris.nyc.{name}"


def _count(stage: Stage) -> int:
    return int(stage.one("SELECT count(*) FROM polaris.nyc.flights"))
