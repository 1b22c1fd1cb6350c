"""pyiceberg, in process and over HTTP, and Spark on the same tables at the same time."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.types import DoubleType
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from conftest import CatalogPlace
from polaris_spark.pyiceberg import PolarisCatalog
from tests.pyiceberg_adapter.content import SCHEMA, content, rows, view_version
from tests.server.servers import Server

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def server(spark: SparkSession, place: CatalogPlace) -> Iterator[Server]:
    """A server of the session's catalog."""
    with Server(place.store, "--insecure", "--warehouse", place.warehouse) as started:
        yield started


@pytest.fixture(params=["in process", "over HTTP"])
def catalog(
    request: pytest.FixtureRequest, spark: SparkSession, place: CatalogPlace, server: Server
) -> Iterator[Catalog]:
    """The session's catalog, opened by pyiceberg: with its REST catalog and a server, and with `PolarisCatalog` in this
    process."""
    properties = (
        {"type": "rest", "uri": server.uri}
        if request.param == "over HTTP"
        else {
            "py-catalog-impl": "polaris_spark.pyiceberg.PolarisCatalog",
            "store": place.store,
            "warehouse": place.warehouse,
        }
    )
    with load_catalog("polaris", **properties) as opened:
        yield opened


@pytest.fixture
def db(namespace: str) -> str:
    """The namespace of this test, in pyiceberg's form."""
    return namespace.removeprefix("polaris.")


def selected(spark: SparkSession, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query, in order."""
    return sorted(tuple(row) for row in spark.sql(sql).collect())


def test_rows_go_both_ways(spark: SparkSession, catalog: Catalog, db: str) -> None:
    table = catalog.create_table(f"{db}.t", SCHEMA)
    table.append(rows((1, "py")))
    assert selected(spark, f"SELECT * FROM polaris.{db}.t") == [(1, "py")]
    spark.sql(f"INSERT INTO polaris.{db}.t VALUES (2, 'spark')")
    assert content(table.refresh()) == [(1, "py"), (2, "spark")]
    table.append(rows((3, "py")))
    spark.sql(f"UPDATE polaris.{db}.t SET name = 'both' WHERE id = 1")
    assert content(table.refresh()) == [(1, "both"), (2, "spark"), (3, "py")]
    table.delete("id = 2")
    assert selected(spark, f"SELECT * FROM polaris.{db}.t") == [(1, "both"), (3, "py")]


def test_a_table_that_spark_made_is_written_by_pyiceberg(
    spark: SparkSession, catalog: Catalog, db: str
) -> None:
    spark.sql(f"CREATE TABLE polaris.{db}.t (id BIGINT, name STRING) PARTITIONED BY (name)")
    table = catalog.load_table(f"{db}.t")
    table.append(rows((1, "a"), (2, "b")))
    table.upsert(rows((2, "b"), (3, "b")), join_cols=["id"])
    assert selected(spark, f"SELECT id FROM polaris.{db}.t WHERE name = 'b'") == [(2,), (3,)]
    assert selected(spark, f"SELECT partition.name, record_count FROM polaris.{db}.t.partitions") == [
        ("a", 1),
        ("b", 2),
    ]


def test_schema_changes_go_both_ways(spark: SparkSession, catalog: Catalog, db: str) -> None:
    table = catalog.create_table(f"{db}.t", SCHEMA)
    with table.update_schema() as update:
        update.add_column("price", DoubleType())
    spark.sql(f"INSERT INTO polaris.{db}.t VALUES (1, 'a', 2.5)")
    spark.sql(f"ALTER TABLE polaris.{db}.t RENAME COLUMN name TO label")
    spark.sql(f"ALTER TABLE polaris.{db}.t ADD COLUMN extra INT")
    table.refresh()
    assert table.schema().column_names == ["id", "label", "price", "extra"]
    table.append(pa.table({"id": [2], "label": ["b"], "price": [3.5], "extra": pa.array([7], pa.int32())}))
    assert selected(spark, f"SELECT * FROM polaris.{db}.t WHERE id = 2") == [(2, "b", 3.5, 7)]


def test_names_go_both_ways(spark: SparkSession, catalog: Catalog, db: str) -> None:
    catalog.create_table(f"{db}.t", SCHEMA).append(rows((1, "a")))
    spark.sql(f"SELECT * FROM polaris.{db}.t").collect()
    catalog.rename_table(f"{db}.t", f"{db}.u")
    assert selected(spark, f"SELECT id FROM polaris.{db}.u") == [(1,)]
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql(f"SELECT * FROM polaris.{db}.t").collect()
    spark.sql(f"ALTER TABLE polaris.{db}.u RENAME TO polaris.{db}.w")
    assert catalog.list_tables(db) == [(db, "w")]
    spark.sql(f"DROP TABLE polaris.{db}.w")
    with pytest.raises(NoSuchTableError):
        catalog.load_table(f"{db}.w")


def test_views_and_branches_go_both_ways(spark: SparkSession, catalog: Catalog, db: str) -> None:
    table = catalog.create_table(f"{db}.t", SCHEMA)
    table.append(rows((1, "a")))
    catalog.create_view(f"{db}.v", SCHEMA, view_version(f"SELECT id, name FROM polaris.{db}.t"))
    assert selected(spark, f"SELECT * FROM polaris.{db}.v") == [(1, "a")]
    spark.sql(f"CREATE VIEW polaris.{db}.w AS SELECT id FROM polaris.{db}.t")
    assert catalog.list_views(db) == [(db, "v"), (db, "w")]
    spark.sql(f"ALTER TABLE polaris.{db}.t CREATE BRANCH work")
    table.refresh().append(rows((2, "b")), branch="work")
    assert selected(spark, f"SELECT id FROM polaris.{db}.t VERSION AS OF 'work'") == [(1,), (2,)]
    assert selected(spark, f"SELECT id FROM polaris.{db}.w") == [(1,)]


def test_version_3_tables_of_spark_are_read(spark: SparkSession, catalog: Catalog, db: str) -> None:
    name = f"polaris.{db}.{'t' + uuid.uuid4().hex[:6]}"
    options = "'format-version' = '3', 'write.delete.mode' = 'merge-on-read'"
    spark.sql(f"CREATE TABLE {name} (id BIGINT, name STRING) TBLPROPERTIES ({options})")
    spark.sql(f"INSERT INTO {name} SELECT id, 'x' FROM range(0, 10, 1, 1)")
    spark.sql(f"DELETE FROM {name} WHERE id = 4")
    table = catalog.load_table(name.removeprefix("polaris."))
    assert table.format_version == 3
    assert [id for id, _ in content(table)] == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_a_type_that_pyiceberg_does_not_know_is_named(spark: SparkSession, catalog: Catalog, db: str) -> None:
    spark.sql(f"CREATE TABLE polaris.{db}.t (v VARIANT) TBLPROPERTIES ('format-version' = '3')")
    with pytest.raises(ValueError, match="Unsupported field type: 'variant'"):
        catalog.load_table(f"{db}.t")


def test_the_log_has_the_principal_of_each_write(spark: SparkSession, place: CatalogPlace, db: str) -> None:
    with PolarisCatalog("polaris", store=place.store, principal="ann") as ann:
        ann.create_table((db, "t"), SCHEMA).append(rows((1, "a"), (2, "b")))  # type: ignore[attr-defined]  # typed as Catalog
    changes = spark.sql(
        f"SELECT action, summary['added-records'] FROM polaris.system.changes "
        f"WHERE principal = 'ann' AND namespace = '{db}' ORDER BY number, position"
    ).collect()
    assert [tuple(row) for row in changes] == [("create-table", None), ("update-table", "2")]


def test_both_append_at_the_same_time(spark: SparkSession, catalog: Catalog, db: str) -> None:
    table = catalog.create_table(f"{db}.t", SCHEMA)

    def append(n: int) -> None:
        for _ in range(20):  # pyiceberg leaves it to its caller to try again
            try:
                return table.refresh().append(rows((n, "py")))
            except CommitFailedException:
                continue
        raise AssertionError("others always came first")

    def insert(n: int) -> None:
        spark.sql(f"INSERT INTO polaris.{db}.t VALUES ({n}, 'spark')")

    def run(work: Callable[[int], None], numbers: range) -> None:
        for n in numbers:
            work(n)

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(run, append, range(8)), threads.submit(run, insert, range(8, 16))]:
            done.result()
    assert [id for id, _ in selected(spark, f"SELECT * FROM polaris.{db}.t")] == list(range(16))
    assert [id for id, _ in content(table.refresh())] == list(range(16))
