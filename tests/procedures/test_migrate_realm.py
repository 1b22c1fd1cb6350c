"""A Spark job moves a realm, and the tests compare both stores as DataFrames."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from polaris_spark.backends.base import ObjectKey, ObjectRow
from polaris_spark.catalog.engine import LocalEngine, Reach
from polaris_spark.errors import InputError, RealmMovedError
from polaris_spark.jobs.registry import call
from polaris_spark.maintenance.migration.check import RowDifference, compare
from polaris_spark.maintenance.migration.copy import RealmRows, copy_all
from polaris_spark.maintenance.migration.marks import SourceRealm
from polaris_spark.rest.session import Session
from polaris_spark.spark.engine import SparkEngine
from polaris_spark.spark.options import location_of
from polaris_spark.system.connections import connect_store
from tests.cli.catalogs import fill
from tests.maintenance.movers import Writers, namespaces, opened
from tests.spark.catalogs import add_catalog
from tests.stores import StoreOn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def filled(store_on: StoreOn, tmp_path: Path) -> Session:
    """A catalog with tables, views and history, on SQLite."""
    session = opened(store_on("sqlite"), warehouse=str(tmp_path))
    fill(session)
    return session


def test_it_moves_by_executors_while_others_write(
    spark: SparkSession, filled: Session, store_on: StoreOn
) -> None:
    source, target = str(filled.connection.uri), store_on("postgresql")
    before = namespaces(filled)
    with Writers(source, target, name="thread", threads=1, enough=3) as writers:
        rows = call(filled, "migrate_realm", spark=spark, target=target, max_pause="60s")
        acknowledged = writers.join()
    filled.close()
    steps = {row[0]: row for row in rows}
    assert list(steps)[:2] == ["copy", "catch up 1"]
    assert steps["verify"][2] > steps["copy"][2] > 20
    assert "difference" not in steps
    with opened(target) as moved:
        assert namespaces(moved) == before | set(acknowledged)
        assert moved.request("GET", "v1/namespaces/db/tables")[0] == 200


def test_differences_are_found_on_executors(spark: SparkSession, filled: Session, store_on: StoreOn) -> None:
    target = opened(store_on("sqlite"), warehouse="/nowhere", realm="other")
    references = filled.catalog.references
    local = LocalEngine(Reach(references.store, filled.catalog.files))
    engine = SparkEngine(lambda: spark, location_of(filled.properties), {}, local, realm="default")
    source = RealmRows(references.store.backend, references.store.realm, references.clock)
    copy = RealmRows(target.connection.backend, "copy", references.clock)
    opened_there = engine.opener(target.properties, target.connection.backend)
    copied = copy_all(source, copy, engine, opened_there)
    heads = SourceRealm(filled.connection.realms, "default", references).heads()
    same = compare(engine, opened_there, source, copy, heads)
    assert (same.rows, same.different) == (copied.rows, 0)

    garbage = filled.connection.ids.next_id()
    source.backend.write_objects(source.realm, [ObjectRow(garbage, 0, b"left by an attempt")])
    assert compare(engine, opened_there, source, copy, heads).different == 0

    head = filled.catalog.head()
    altered, missing = head.head.commit, head.commit.entries
    copy.backend.delete_objects(copy.realm, [ObjectKey(altered), ObjectKey(missing)])
    copy.backend.write_objects(copy.realm, [ObjectRow(altered, 0, b"something else")])
    found = compare(engine, opened_there, source, copy, heads)
    assert found.different == 2
    assert set(found.differences) == {
        RowDifference("object", f"{altered}/0", "altered"),
        RowDifference("object", f"{missing}/0", "missing"),
    }
    for session in (filled, target):
        session.close()


def test_by_sql(spark: SparkSession, store_on: StoreOn, tmp_path: Path) -> None:
    source, target = store_on("sqlite"), store_on("sqlite")
    old = add_catalog(spark, store=source, warehouse=str(tmp_path), catalog="mine")
    spark.sql(f"CREATE NAMESPACE {old}.db")
    spark.sql(f"CREATE TABLE {old}.db.t (id BIGINT)")
    spark.sql(f"INSERT INTO {old}.db.t VALUES (1), (2)")
    rows = spark.sql(f"CALL {old}.system.migrate_realm(target => '{target}', max_pause => '60s')").collect()
    assert [row["step"] for row in rows if row["message"] is not None] == []
    switch = next(row for row in rows if row["step"] == "switch")
    assert 0 < switch["milliseconds"] < 60_000
    with pytest.raises(Exception, match=r"realm( 'default')? was moved to sqlite"):
        spark.sql(f"INSERT INTO {old}.db.t VALUES (3)")
    new = add_catalog(spark, store=target, warehouse=str(tmp_path), catalog="mine")
    spark.sql(f"INSERT INTO {new}.db.t VALUES (3)")
    assert [row["id"] for row in spark.sql(f"SELECT id FROM {new}.db.t ORDER BY id").collect()] == [1, 2, 3]


def test_after_a_move_the_source_purges_nothing_and_says_where_the_realm_is(
    store_on: StoreOn, tmp_path: Path
) -> None:
    session = opened(store_on("sqlite"), warehouse=str(tmp_path))
    call(session, "migrate_realm", target=store_on("sqlite"), max_pause="60s")
    for arguments in ({}, {"dry_run": True}):
        with pytest.raises(RealmMovedError, match="this realm was moved to sqlite"):
            call(session, "purge_dropped", **arguments)
    session.close()


def test_nothing_is_moved_from_a_database_into_memory(store_on: StoreOn, tmp_path: Path) -> None:
    session = opened(store_on("sqlite"), warehouse=str(tmp_path))
    with pytest.raises(InputError, match="exists only in the process that created it"):
        call(session, "migrate_realm", target="memory:lost")
    fill(session)
    session.close()


def test_stores_of_one_process_are_moved_in_this_process(spark: SparkSession, tmp_path: Path) -> None:
    session = opened("memory:moving-by-procedure", warehouse=str(tmp_path))
    fill(session)
    before = namespaces(session)
    kept = connect_store(session.properties.store.parse("memory:moved-by-procedure"))
    rows = call(session, "migrate_realm", spark=spark, target="memory:moved-by-procedure", max_pause="60s")
    assert rows[-1][0] == "verify"
    assert namespaces(opened("memory:moved-by-procedure")) == before
    kept.close()
