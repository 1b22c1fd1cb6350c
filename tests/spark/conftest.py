"""Catalogs with each mode of metadata files, for tests that need both."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from tests.spark.catalogs import add_catalog

if TYPE_CHECKING:
    from conftest import CatalogPlace

_numbers = count(1)

MODES = ("every-commit", "never")


def catalog_of_mode(spark: SparkSession, place: CatalogPlace, mode: str) -> str:
    """Configure a catalog with this mode of metadata files in the shared store, under a new name in Spark."""
    return add_catalog(
        spark,
        store=place.store,
        warehouse=f"{place.warehouse}-{mode}",
        catalog=f"sql-{mode}",
        metadata_files=mode,
    )


def new_home(spark: SparkSession, catalog: str) -> str:
    """A new namespace, as SQL names it."""
    name = f"{catalog}.home{next(_numbers)}"
    spark.sql(f"CREATE NAMESPACE {name}")
    return name


@pytest.fixture(scope="module", params=MODES)
def catalog(request: pytest.FixtureRequest, spark: SparkSession, place: CatalogPlace) -> str:
    """A catalog for this test, in each mode of metadata files."""
    return catalog_of_mode(spark, place, str(request.param))


@pytest.fixture
def home(spark: SparkSession, catalog: str) -> str:
    """A new namespace of the catalog."""
    return new_home(spark, catalog)
