"""Valid and invalid Spark configurations of a catalog, and the error messages."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from tests.spark.catalogs import add_catalog, new_name
from tests.spark.processes import bridge_process

if TYPE_CHECKING:
    from conftest import CatalogPlace


def refusal(spark: SparkSession, catalog: str) -> str:
    """Return the error message of a catalog at its first use."""
    with pytest.raises(IllegalArgumentException) as caught:
        spark.sql(f"SHOW NAMESPACES IN {catalog}")
    return str(caught.value)


def test_a_missing_interpreter_is_named(spark: SparkSession, place: CatalogPlace) -> None:
    message = refusal(spark, add_catalog(spark, store=place.store, python="/no/such/python"))
    assert "/no/such/python" in message
    assert "spark.sql.catalog.<name>.python" in message


def test_the_error_for_an_interpreter_without_the_package_names_it(
    spark: SparkSession, place: CatalogPlace, tmp_path: Path
) -> None:
    bare = tmp_path / "python"
    # Isolated and without site-packages: a real Python that has only its own library.
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    message = refusal(spark, add_catalog(spark, store=place.store, python=str(bare)))
    assert f"{bare} -m pip install polaris-spark" in message


def test_a_program_that_is_not_python_is_named(spark: SparkSession, place: CatalogPlace) -> None:
    catalog = add_catalog(spark, store=place.store, python="/bin/true")
    assert "'/bin/true' did not start polaris_spark" in refusal(spark, catalog)


def test_a_catalog_without_a_store_raises_an_error(spark: SparkSession) -> None:
    assert "'store' is missing" in refusal(spark, add_catalog(spark, warehouse="/w"))


@pytest.mark.parametrize("store", ["nonsense", "sqlite://host/s.db", "gopher://hole/db", "sqlite:///"])
def test_a_store_uri_that_names_no_store_is_refused(spark: SparkSession, store: str) -> None:
    assert "store" in refusal(spark, add_catalog(spark, store=store, warehouse="/w"))


def test_a_misspelt_property_is_refused(spark: SparkSession, place: CatalogPlace) -> None:
    message = refusal(spark, add_catalog(spark, store=place.store, warehous="/w"))
    assert "did you mean 'warehouse'" in message


def test_a_password_in_the_store_uri_is_refused_and_not_repeated(spark: SparkSession) -> None:
    message = refusal(spark, add_catalog(spark, store="postgresql://me:geheim@host/db"))
    assert "store.password" in message
    assert "geheim" not in message


def test_a_password_reaches_no_command_line_and_no_environment(
    spark: SparkSession, place: CatalogPlace
) -> None:
    name = add_catalog(spark, store="postgresql://me@127.0.0.1:1/db", warehouse=place.warehouse)
    spark.conf.set(f"spark.sql.catalog.{name}.store.password", "geheim-4711")
    assert "geheim-4711" not in refusal(spark, name)
    child = Path("/proc", str(bridge_process(spark)))
    assert b"geheim-4711" not in (child / "cmdline").read_bytes() + (child / "environ").read_bytes()


def test_spark_shows_no_password(spark: SparkSession) -> None:
    name = add_catalog(spark, store="postgresql://me@127.0.0.1:1/db")
    spark.conf.set(f"spark.sql.catalog.{name}.store.password", "geheim-4711")
    assert "geheim-4711" not in str(spark.sql("SET").collect())


def test_create_false_refuses_a_catalog_that_does_not_exist(spark: SparkSession, place: CatalogPlace) -> None:
    spark.sql("SHOW NAMESPACES IN polaris")
    catalog = add_catalog(
        spark, store=place.store, warehouse=place.warehouse, catalog="absent", create="false"
    )
    assert "absent" in refusal(spark, catalog)


def test_two_names_for_one_catalog_show_the_same(
    spark: SparkSession, place: CatalogPlace, namespace: str
) -> None:
    alias = add_catalog(spark, store=place.store, warehouse=place.warehouse, catalog="polaris")
    spark.sql(f"CREATE TABLE {namespace}.t AS SELECT 7 AS a")
    assert spark.table(f"{namespace}.t".replace("polaris", alias, 1)).collect()[0].a == 7


def test_any_engine_on_the_jvm_can_use_it_as_catalog_impl(
    spark: SparkSession, place: CatalogPlace, namespace: str
) -> None:
    name = new_name()
    prefix = f"spark.sql.catalog.{name}"
    spark.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
    for key, value in {
        "catalog-impl": "io.polarisspark.PolarisRESTCatalog",
        "catalog": "polaris",
        "store": place.store,
        "warehouse": place.warehouse,
        "python": sys.executable,
    }.items():
        spark.conf.set(f"{prefix}.{key}", value)
    spark.sql(f"CREATE TABLE {namespace}.t AS SELECT 7 AS a")
    assert spark.table(f"{namespace}.t".replace("polaris", name, 1)).collect()[0].a == 7
