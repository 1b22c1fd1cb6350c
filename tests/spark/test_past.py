"""Catalogs in Spark that show an earlier state, and branches of a catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.catalogs import add_catalog
from tests.spark.sql import rows, run, snapshots

if TYPE_CHECKING:
    from conftest import CatalogPlace

pytestmark = pytest.mark.spark


def test_tables_stand_as_they_stood_at_a_commit(
    spark: SparkSession, namespace: str, place: CatalogPlace
) -> None:
    space = namespace.partition(".")[2]
    run(
        spark,
        f"CREATE TABLE {namespace}.kept AS SELECT 1 AS id",
        f"CREATE TABLE {namespace}.dropped AS SELECT 7 AS id",
        f"CREATE VIEW {namespace}.v AS SELECT id + 1 AS more FROM {namespace}.kept",
    )
    ((number,),) = rows(spark, "SELECT max(number) FROM polaris.system.changes")
    run(spark, f"INSERT INTO {namespace}.kept VALUES (2)", f"DROP TABLE {namespace}.dropped")
    then = add_catalog(spark, store=place.store, catalog="polaris", as_of=str(number))
    assert rows(spark, f"SELECT id FROM {then}.{space}.kept") == [(1,)]
    assert rows(spark, f"SELECT id FROM {then}.{space}.dropped") == [(7,)]
    assert rows(spark, f"SELECT id FROM {namespace}.kept") == [(1,), (2,)]
    listed = {row[1] for row in rows(spark, f"SHOW TABLES IN {then}.{space}")}
    assert listed == {"kept", "dropped"}
    # The view names the table with its catalog, so it reads the present.
    assert rows(spark, f"SELECT more FROM {then}.{space}.v") == [(2,), (3,)]
    for statement in (
        f"INSERT INTO {then}.{space}.kept VALUES (3)",
        f"DROP TABLE {then}.{space}.kept",
        f"CREATE NAMESPACE {then}.other",
        f"CALL {then}.system.sweep()",
    ):
        with pytest.raises((PySparkException, Py4JJavaError), match="cannot be changed"):
            run(spark, statement)
    assert rows(spark, f"SELECT count(*) FROM {namespace}.kept") == [(2,)]


def test_a_session_works_on_a_branch(spark: SparkSession, namespace: str, place: CatalogPlace) -> None:
    space = namespace.partition(".")[2]
    run(
        spark,
        f"CREATE TABLE {namespace}.t AS SELECT 1 AS id",
        "CALL polaris.system.create_branch(name => 'dev')",
    )
    dev = add_catalog(spark, store=place.store, catalog="polaris", branch="dev")
    run(spark, f"INSERT INTO {dev}.{space}.t VALUES (2)", f"INSERT INTO {namespace}.t VALUES (3)")
    assert rows(spark, f"SELECT id FROM {dev}.{space}.t") == [(1,), (2,)]
    assert rows(spark, f"SELECT id FROM {namespace}.t") == [(1,), (3,)]
    parted = {
        row.branch: (row.ahead, row.behind)
        for row in spark.sql("CALL polaris.system.show_branches()").collect()
    }
    assert parted == {"dev": (1, 1), "main": (0, 0)}
    run(spark, "CALL polaris.system.drop_branch('dev')")
    with pytest.raises((PySparkException, Py4JJavaError), match="no branch 'dev'"):
        run(spark, f"SELECT * FROM {dev}.{space}.t")


def test_a_dropped_table_is_restored_with_its_snapshots(spark: SparkSession, namespace: str) -> None:
    run(
        spark,
        f"CREATE TABLE {namespace}.t AS SELECT 1 AS id",
        f"INSERT INTO {namespace}.t VALUES (2)",
    )
    first, _ = snapshots(spark, f"{namespace}.t")
    run(spark, f"DROP TABLE {namespace}.t", f"CREATE TABLE {namespace}.t (other STRING)")
    name = namespace.partition(".")[2]
    with pytest.raises((PySparkException, Py4JJavaError), match="give another name with 'to'"):
        run(spark, f"CALL polaris.system.undrop('{name}.t')")
    restored = rows(spark, f"CALL polaris.system.undrop(table => '{name}.t', to => '{name}.u')")
    assert restored == [("table", f"{name}.u")]
    assert rows(spark, f"SELECT id FROM {namespace}.u") == [(1,), (2,)]
    assert rows(spark, f"SELECT id FROM {namespace}.u VERSION AS OF {first}") == [(1,)]
