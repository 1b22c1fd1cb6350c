"""Names of tables and namespaces that must be quoted in SQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.server.servers import Server, options
from tests.spark.catalogs import new_name

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
    "...",
    " leading and trailing ",
    "e\u0301",
    "snapshots",
    "x" * 200,
]
FEW = ("dot.ted", "sla/sh", "back`tick", "percent%2F", "表", "snapshots")
"""Names of the ordinary run."""
SEPARATOR = "\x1f"


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@pytest.fixture(
    params=[
        pytest.param(name, id=ascii(name)[:20], marks=() if name in FEW else pytest.mark.spark)
        for name in HOSTILE
    ]
)
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


@pytest.mark.parametrize(
    "name", ["a" + SEPARATOR + "b", "a\nb", "tab\t", "\u2028", "\u202e", ".."], ids=lambda name: ascii(name)
)
def test_a_name_that_some_clients_cannot_address_is_refused(
    spark: SparkSession, namespace: str, name: str
) -> None:
    for statement in (
        f"CREATE NAMESPACE {namespace}.{quoted(name)}",
        f"CREATE TABLE {namespace}.{quoted(name)} (n INT)",
        f"CREATE TABLE {namespace}.{quoted(name)} AS SELECT 1 AS n",
        f"CREATE VIEW {namespace}.{quoted(name)} AS SELECT 1 AS n",
    ):
        with pytest.raises(Exception, match=r"separate|control character|removed from paths"):
            spark.sql(statement)
    assert spark.sql(f"SHOW TABLES IN {namespace}").count() == 0
    assert spark.sql(f"SHOW NAMESPACES IN {namespace}").count() == 0


@pytest.fixture(scope="module")
def over_http(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A catalog of Iceberg's own REST client, on a server."""
    folder, name = tmp_path_factory.mktemp("over_http"), new_name()
    with Server(f"sqlite://{folder / 'store.db'}", *options(folder / "warehouse")) as server:
        spark.conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
        spark.conf.set(f"spark.sql.catalog.{name}.type", "rest")
        spark.conf.set(f"spark.sql.catalog.{name}.uri", server.uri)
        spark.sql(f"CREATE NAMESPACE {name}.a")
        yield name


def test_icebergs_client_addresses_over_http_every_name_that_it_creates(
    spark: SparkSession, over_http: str, hostile: str
) -> None:
    inner = f"{over_http}.a.{quoted(hostile)}"
    spark.sql(f"CREATE NAMESPACE {inner}")
    assert spark.sql(f"SHOW NAMESPACES IN {over_http}.a").count() == 1
    table = f"{inner}.{quoted(hostile)}"
    spark.sql(f"CREATE TABLE {table} (n INT)")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('a' = '1')")
    assert [row.tableName for row in spark.sql(f"SHOW TABLES IN {inner}").collect()] == [hostile]
    assert spark.table(table).count() == 0
    spark.sql(f"ALTER TABLE {table} RENAME TO a.{quoted(hostile)}.t")
    spark.sql(f"DROP TABLE {inner}.t")
    spark.sql(f"DROP NAMESPACE {inner}")


def test_the_system_views_show_a_name_as_it_is(spark: SparkSession, namespace: str, hostile: str) -> None:
    spark.sql(f"CREATE TABLE {namespace}.{quoted(hostile)} (n INT)")
    catalog, level = namespace.split(".")
    shown = spark.table(f"{catalog}.system.tables").where(f"namespace = '{level}'").select("name").collect()
    spark.sql(f"DROP TABLE {namespace}.{quoted(hostile)}")
    assert [row.name for row in shown] == [hostile]
