"""Materialized views for readers that may not write or may not read a table, and for Iceberg's own catalog."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from polaris_spark.catalog.rows import TABLE, VIEW
from tests.access.world import World
from tests.server.servers import Server
from tests.spark.catalogs import add_catalog, new_name
from tests.spark.sql import rows, run
from tests.spark.test_materialized_views import home, refreshed
from tests.spark.test_outside_sources import other

if TYPE_CHECKING:
    from conftest import CatalogPlace

__all__ = ["home", "other"]  # fixtures
pytestmark = pytest.mark.spark


def number(spark: SparkSession) -> int:
    """The number of the last commit."""
    return int(rows(spark, "SELECT max(number) FROM polaris.system.changes")[0][0])


def test_an_earlier_state_of_the_catalog_answers_stale_views_by_their_query(
    spark: SparkSession, home: str, place: CatalogPlace
) -> None:
    space = home.partition(".")[2]
    run(spark, "CREATE MATERIALIZED VIEW mv AS SELECT count(*) AS c FROM t", "REFRESH MATERIALIZED VIEW mv")
    fresh = number(spark)
    run(spark, "INSERT INTO t VALUES (100, 'r0', 100)")
    stale = number(spark)
    run(spark, "INSERT INTO t VALUES (101, 'r0', 101)", "REFRESH MATERIALIZED VIEW mv")
    head = number(spark)
    for commit, count in ((fresh, 100), (stale, 101)):
        then = add_catalog(spark, store=place.store, catalog="polaris", as_of=str(commit))
        assert rows(spark, f"SELECT c FROM {then}.{space}.mv") == [(count,)]
        with pytest.raises(Exception, match="cannot be changed"):
            run(spark, f"REFRESH MATERIALIZED VIEW {then}.{space}.mv")
    assert rows(spark, "SELECT c FROM mv") == [(102,)]
    assert number(spark) == head


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "warehouse", f"sqlite://{tmp_path}/catalog.db")
    yield made
    made.close()


def catalog_of(spark: SparkSession, world: World, *, reader: bool) -> str:
    """A catalog in Spark for the administrator, or for the principal `ann`."""
    credentials = world.credentials if reader else world.administrator
    return add_catalog(
        spark, store=world.store, warehouse=world.folder, catalog="polaris", credential=credentials.text()
    )


def test_readers_without_a_privilege_get_the_rows_of_the_query_or_one_clear_error(
    spark: SparkSession, world: World
) -> None:
    root = catalog_of(spark, world, reader=False)
    run(
        spark,
        f"CREATE NAMESPACE {root}.db",
        f"USE {root}.db",
        "CREATE TABLE t (a BIGINT)",
        "CREATE TABLE secret (a BIGINT)",
        "INSERT INTO t VALUES (1)",
        "CREATE MATERIALIZED VIEW mv AS SELECT count(*) AS c FROM t",
        "CREATE MATERIALIZED VIEW hidden AS SELECT count(*) AS c FROM secret",
        "REFRESH MATERIALIZED VIEW mv",
        "REFRESH MATERIALIZED VIEW hidden",
        "INSERT INTO t VALUES (2)",
        "INSERT INTO secret VALUES (3)",
    )
    world.grant(["TABLE_READ_DATA"], world.entity("db", "t", kind=TABLE))
    for view in ("mv", "hidden"):
        world.grant(["VIEW_READ_PROPERTIES"], world.entity("db", view, kind=VIEW))
    ann = catalog_of(spark, world, reader=True)
    commits = rows(spark, f"SELECT max(number) FROM {root}.system.changes")
    assert rows(spark, f"SELECT c FROM {ann}.db.mv") == [(2,)]  # without a refresh
    for statement in (
        f"SELECT c FROM {ann}.db.hidden",
        f"REFRESH MATERIALIZED VIEW {ann}.db.mv",
        f"CREATE MATERIALIZED VIEW {ann}.db.mine AS SELECT a FROM {ann}.db.secret",
        f"CREATE MATERIALIZED VIEW {root}.db.mine AS SELECT a FROM {ann}.db.secret",
    ):
        with pytest.raises(
            Exception, match=r"needs the privilege|cannot be found|neither a table nor a view"
        ) as error:
            spark.sql(statement).collect()
        assert "Traceback" not in str(error.value)
    assert rows(spark, f"SELECT max(number) FROM {root}.system.changes") == commits
    assert rows(spark, f"SELECT c FROM {root}.db.hidden") == [(1,)]
    run(spark, "USE polaris")


def test_a_refresh_whose_table_at_a_location_is_gone_fails_with_one_clear_error(
    spark: SparkSession, home: str, other: str, tmp_path: Path
) -> None:
    location = tmp_path / other / "db" / "t"
    run(spark, f"CREATE MATERIALIZED VIEW v AS SELECT count(*) AS c FROM iceberg.`{location}`")
    refreshed(spark, "v")
    shutil.rmtree(location)
    before = number(spark)
    with pytest.raises(PySparkException, match=f"there is no Iceberg table at {location}") as error:
        run(spark, "REFRESH MATERIALIZED VIEW v")
    assert len(str(error.value).splitlines()) == 1
    assert number(spark) == before
    assert rows(spark, f"SELECT c FROM {home}.v.storage") == [(2,)]


def test_icebergs_own_catalog_sees_an_ordinary_view_that_answers_correctly(
    spark: SparkSession, home: str, place: CatalogPlace
) -> None:
    space, plain = home.partition(".")[2], new_name()
    run(
        spark,
        "CREATE VIEW below AS SELECT id, n FROM t WHERE id < 3",
        "CREATE MATERIALIZED VIEW mv (twice COMMENT 'of n') AS SELECT n * 2 FROM below",
        "CREATE MATERIALIZED VIEW above AS SELECT sum(twice) AS s FROM mv",
        "REFRESH MATERIALIZED VIEW mv",
        "INSERT INTO t VALUES (2, 'r', 50)",  # the stored rows are stale
    )
    before = number(spark)
    with Server(place.store, "--insecure") as server:
        for key, value in {"": "SparkCatalog", ".type": "rest", ".uri": server.uri}.items():
            spark.conf.set(
                f"spark.sql.catalog.{plain}{key}", value if key else f"org.apache.iceberg.spark.{value}"
            )
        assert rows(spark, f"SELECT twice FROM {plain}.{space}.mv") == [(0,), (2,), (4,), (100,)]
        assert rows(spark, f"SELECT s FROM {plain}.{space}.above") == [(106,)]
        assert {row[1] for row in rows(spark, f"SHOW VIEWS IN {plain}.{space}")} == {"below", "mv", "above"}
        assert {row[1] for row in rows(spark, f"SHOW TABLES IN {plain}.{space}")} == {"t"}
        assert rows(spark, f"SELECT twice FROM {plain}.{space}.mv.storage") == [(0,), (2,), (4,)]
    assert number(spark) == before
