"""`python -m tests.spark.refresh_shapes FOLDER JAR SHAPE...`: refresh queries of some shapes after changes.

The jar replaces that of the package. Prints `right`, or `wrong: ` and the first shape with wrong rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.query_shapes import ROUNDS, SHAPES, TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def wrong(spark: SparkSession, shapes: list[str]) -> str:
    """The first shape whose stored rows are wrong, or whose refresh was not incremental; empty if there is none."""
    from tests.spark.iceberg_writer import Writer
    from tests.spark.test_incremental_refresh import ALWAYS, contents, refreshed

    for statement in ("CREATE NAMESPACE polaris.db", "USE polaris.db", *TABLES):
        spark.sql(statement)
    for number, shape in enumerate(shapes):
        spark.sql(f"CREATE MATERIALIZED VIEW v{number} TBLPROPERTIES ({ALWAYS}) AS {SHAPES[shape]}")
        refreshed(spark, f"v{number}")
    for statements in (*ROUNDS, ()):
        for statement in statements:
            spark.sql(statement)
        if not statements:  # Spark writes no equality deletes
            writer = Writer(spark, "polaris.db.sale")
            writer.row_delta([writer.deletes([{"n": n} for n in (7, 40, 50)])])
        for number, shape in enumerate(shapes):
            if refreshed(spark, f"v{number}")[0] == "full":
                return shape
            if contents(spark, f"SELECT * FROM v{number}") != contents(spark, SHAPES[shape]):
                return shape
    return ""


def main(folder: Path, jar: str, shapes: list[str]) -> None:
    from pyspark.sql import SparkSession

    from polaris_spark.spark import session
    from tests.spark.test_incremental_refresh import QUICK

    session.jar = lambda: jar

    builder = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
    )
    for name, value in QUICK.items():
        builder = builder.config(name, value)
    store = f"sqlite://{(folder / 'catalog.db').absolute()}"
    spark = session.configure(builder, store=store, warehouse=str(folder / "warehouse")).getOrCreate()
    found = wrong(spark, shapes)
    spark.stop()
    sys.stdout.write(f"wrong: {found}\n" if found else "right\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
