"""Adds catalogs to the Spark session of the tests."""

from __future__ import annotations

from itertools import count

from pyspark.sql import SparkSession

_numbers = count(1)


def new_name() -> str:
    """Return a catalog name that is not used in this process."""
    return f"extra{next(_numbers)}"


def add_catalog(spark: SparkSession, **properties: str) -> str:
    """Configure one more catalog in a running session; return its name."""
    name = new_name()
    spark.conf.set(f"spark.sql.catalog.{name}", "io.polarisspark.PolarisCatalog")
    for key, value in properties.items():
        spark.conf.set(f"spark.sql.catalog.{name}.{key.replace('_', '-')}", value)
    return name
