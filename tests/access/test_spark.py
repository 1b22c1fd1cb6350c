"""Spark as a principal of a realm with access control."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from polaris_spark.access.credentials import Credentials
from polaris_spark.catalog.rows import TABLE
from tests.access.world import World
from tests.spark.catalogs import add_catalog

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("access")
    made = World(folder / "warehouse", f"sqlite://{folder}/catalog.db")
    yield made
    made.close()


def catalog_of(spark: SparkSession, world: World, credentials: Credentials) -> str:
    """A catalog in Spark for a principal."""
    return add_catalog(
        spark,
        store=world.store,
        warehouse=world.folder,
        catalog="polaris",
        credential=credentials.text(),
    )


def test_sql_is_allowed_what_the_principal_is_allowed(spark: SparkSession, world: World) -> None:
    root = catalog_of(spark, world, world.administrator)
    spark.sql(f"CREATE NAMESPACE {root}.db")
    for table in ("t", "u"):
        spark.sql(f"CREATE TABLE {root}.db.{table} (a BIGINT)")
        spark.sql(f"INSERT INTO {root}.db.{table} VALUES (1)")
    world.grant(["TABLE_READ_DATA"], world.entity("db", "t", kind=TABLE))
    ann = catalog_of(spark, world, world.credentials)
    assert [row.tableName for row in spark.sql(f"SHOW TABLES IN {ann}.db").collect()] == ["t"]
    assert spark.table(f"{ann}.db.t").count() == 1
    for refused in (
        f"INSERT INTO {ann}.db.t VALUES (2)",
        f"SELECT * FROM {ann}.db.u",
        f"DROP TABLE {ann}.db.t",
        f"CALL {ann}.system.sweep()",
        f"CREATE NAMESPACE {ann}.mine",
    ):
        with pytest.raises(Exception, match=r"needs the privilege|TABLE_OR_VIEW_NOT_FOUND"):
            spark.sql(refused).collect()
    assert spark.table(f"{root}.db.t").count() == 1
    log = spark.sql(f"SELECT DISTINCT principal FROM {root}.system.changes").collect()
    assert [row.principal for row in log if row.principal not in ("operator",)] == ["root"]


def test_grants_are_managed_in_sql(spark: SparkSession, world: World) -> None:
    root = catalog_of(spark, world, world.administrator)
    spark.sql(f"CALL {root}.system.create_role('sql_readers')")
    rows = spark.sql(f"CALL {root}.system.grant('TABLE_LIST', 'sql_readers')").collect()
    assert [tuple(row) for row in rows] == [("principal role 'sql_readers'", "catalog polaris", "TABLE_LIST")]
    (row,) = spark.sql(f"CALL {root}.system.create_principal('bob')").collect()
    assert len(row.client_secret) == 64


def test_system_views_and_streams_show_only_what_the_principal_may_see(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    root = catalog_of(spark, world, world.administrator)
    spark.sql(f"CREATE NAMESPACE {root}.seen")
    for table in ("a", "b"):
        spark.sql(f"CREATE TABLE {root}.seen.{table} (n BIGINT)")
    world.revoke_all()
    world.grant(["TABLE_READ_DATA"], world.entity("seen", "a", kind=TABLE))
    ann = catalog_of(spark, world, world.credentials)
    for view in ("tables", "changes", "schemas"):
        found = spark.sql(f"SELECT DISTINCT namespace, name FROM {ann}.system.{view}").collect()
        assert [row.namespace for row in found] == ["seen"], view
    assert spark.sql(f"SELECT count(*) FROM {ann}.system.tables").first()[0] == 1
    assert spark.sql(f"SELECT * FROM {ann}.system.objects").collect() == []
    stream = spark.readStream.table(f"{ann}.system.changes").writeStream.format("parquet")
    stream = stream.option("path", str(tmp_path / "rows")).option("checkpointLocation", str(tmp_path / "at"))
    stream.trigger(availableNow=True).start().awaitTermination()
    assert {row.name for row in spark.read.parquet(str(tmp_path / "rows")).collect()} == {"a"}


def test_a_refresh_reads_no_more_than_the_owner_of_the_view(spark: SparkSession, world: World) -> None:
    root = catalog_of(spark, world, world.administrator)
    spark.sql(f"CREATE NAMESPACE {root}.refreshed")
    spark.sql(f"CREATE TABLE {root}.refreshed.t (a BIGINT)")
    spark.sql(
        f"CALL {root}.system.create_materialized_view('refreshed.v', 'SELECT a FROM {root}.refreshed.t')"
    )
    spark.sql(f"CALL {root}.system.set_owner('ann', 'view', 'refreshed.v')")
    spark.sql(f"INSERT INTO {root}.refreshed.t VALUES (1)")
    with pytest.raises(Exception, match=r"'ann' needs the privilege TABLE_READ_DATA on table refreshed\.t"):
        spark.sql(f"CALL {root}.system.refresh('refreshed.v')").collect()
    spark.sql(f"CALL {root}.system.grant('TABLE_READ_DATA', 'one', 'table', 'refreshed.t')")
    spark.sql(f"CALL {root}.system.refresh('refreshed.v')").collect()
    assert [tuple(row) for row in spark.table(f"{root}.refreshed.v").collect()] == [(1,)]
