"""`CALL polaris.system.import_catalog` for catalogs made by their own software, and reads of the result through
Spark."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from tests.catalog.imports.support import table_in, table_metadata, write
from tests.maintenance.lakes import age
from tests.spark.catalogs import add_catalog

pytestmark = pytest.mark.spark


def statuses(spark: SparkSession, statement: str) -> dict[str, str]:
    return {row.table: row.status for row in spark.sql(statement).collect()}


@pytest.fixture(scope="module")
def hadoop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse of Iceberg's Hadoop catalog, with two tables in the namespace `sales`."""
    folder = tmp_path_factory.mktemp("hadoop")
    spark.conf.set("spark.sql.catalog.old", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set("spark.sql.catalog.old.type", "hadoop")
    spark.conf.set("spark.sql.catalog.old.warehouse", f"file://{folder}")
    spark.sql("CREATE NAMESPACE old.sales")
    for name in ("orders", "lines"):
        spark.sql(f"CREATE TABLE old.sales.{name} (id BIGINT, item STRING) USING iceberg")
        spark.sql(f"INSERT INTO old.sales.{name} VALUES (1, 'tea')")
    spark.sql("INSERT INTO old.sales.orders VALUES (2, 'coffee')")
    return folder


def test_a_hadoop_catalog_is_imported_and_goes_on_here(spark: SparkSession, hadoop: Path) -> None:
    call = (
        f"CALL polaris.system.import_catalog(source => 'hadoop', location => '{hadoop}', into => 'fromhadoop'"
    )
    assert statuses(spark, f"{call}, dry_run => true)") == {
        "fromhadoop.sales.orders": "would be imported",
        "fromhadoop.sales.lines": "would be imported",
    }
    assert statuses(spark, f"{call})") == {
        "fromhadoop.sales.orders": "imported",
        "fromhadoop.sales.lines": "imported",
    }
    orders = "polaris.fromhadoop.sales.orders"
    assert [row.item for row in spark.table(orders).orderBy("id").collect()] == ["tea", "coffee"]
    spark.sql(f"INSERT INTO {orders} VALUES (3, 'milk')")
    assert spark.table(orders).count() == 3
    assert spark.sql(f"SELECT * FROM {orders} VERSION AS OF {first(spark, orders)}").count() == 1
    # It has moved on, so another import does not put the old state back.
    assert statuses(spark, f"{call})") == {
        "fromhadoop.sales.orders": "conflict",
        "fromhadoop.sales.lines": "exists",
    }


def first(spark: SparkSession, table: str) -> int:
    found = spark.sql(f"SELECT snapshot_id FROM {table}.snapshots ORDER BY committed_at LIMIT 1").first()
    assert found is not None
    return int(found[0])


def test_catalogs_in_sql_databases_are_imported(spark: SparkSession, tmp_path: Path) -> None:
    database = tmp_path / "source.db"
    source = SqlCatalog("prod", uri=f"sqlite:///{database}", warehouse=f"file://{tmp_path}/lake")
    source.create_namespace("fromsql", {"owner": "ann"})
    source.create_table("fromsql.t", pa.schema([("a", pa.int64())])).append(pa.table({"a": [1, 2, 3]}))
    with sqlite3.connect(database) as connection:  # as JdbcCatalog's newer schema has it
        connection.execute("UPDATE iceberg_tables SET iceberg_type = 'TABLE'")
    found = statuses(
        spark,
        f"CALL polaris.system.import_catalog(source => 'jdbc', location => 'jdbc:sqlite:{database}', "
        "options => map('catalog', 'prod'))",
    )
    assert found == {"fromsql.t": "imported"}
    assert spark.table("polaris.fromsql.t").count() == 3
    assert "ann" in str(spark.sql("DESCRIBE NAMESPACE EXTENDED polaris.fromsql").collect())


def test_a_lazy_import_shows_at_once_and_is_read_on_first_use(spark: SparkSession, tmp_path: Path) -> None:
    copy = tmp_path / "lazy"
    for number in range(3):
        table_in(copy, "lazily", f"t{number}", number=number, snapshots=2)
    assert set(
        statuses(spark, f"CALL polaris.system.import_catalog('directory', '{copy}', lazy => true)").values()
    ) == {"registered"}
    assert {row.tableName for row in spark.sql("SHOW TABLES IN polaris.lazily").collect()} == {
        "t0",
        "t1",
        "t2",
    }
    shown = spark.table("polaris.system.tables").where("namespace = 'lazily'")
    assert [(row.uuid, row.location, row.refs) for row in shown.collect()] == [
        (None, f"file://{copy}/lazily/t{number}", None) for number in range(3)
    ]
    snapshots = spark.table("polaris.system.snapshots").where("namespace = 'lazily'")
    assert snapshots.count() == 0
    assert spark.sql("SELECT * FROM polaris.lazily.t1.snapshots").count() == 2
    assert snapshots.count() == 2
    found = statuses(spark, "CALL polaris.system.load_imported(namespaces => array('lazily'))")
    assert found == {"lazily.t0": "loaded", "lazily.t2": "loaded"}
    assert snapshots.count() == 6


def test_failures_to_import_are_reported_without_secrets(spark: SparkSession, tmp_path: Path) -> None:
    table_in(tmp_path, "broken", "good")
    (tmp_path / "broken" / "bad" / "metadata").mkdir(parents=True)
    (tmp_path / "broken" / "bad" / "metadata" / "v1.metadata.json").write_text("{")
    rows = spark.sql(f"CALL polaris.system.import_catalog('directory', '{tmp_path}')").collect()
    assert {row.table: row.status for row in rows} == {"broken.bad": "failed", "broken.good": "imported"}
    assert "v1.metadata.json" in rows[0].message
    spark.sql(
        "DROP TABLE polaris.broken.good"
    )  # others look at the whole catalog, and its files are not there
    with pytest.raises(Exception, match="cannot be opened") as refused:
        spark.sql(
            "CALL polaris.system.import_catalog('rest', 'http://127.0.0.1:9', options => map('token', 'hunter2'))"
        ).collect()
    assert "hunter2" not in str(refused.value).split("== SQL")[0]


def test_no_job_deletes_in_a_folder_that_imported_metadata_names_until_it_is_adopted(
    spark: SparkSession, tmp_path: Path
) -> None:
    name = add_catalog(spark, store=f"sqlite://{tmp_path}/c.db", warehouse=str(tmp_path / "warehouse"))
    precious = tmp_path / "precious" / "a"
    precious.parent.mkdir()
    precious.write_text("x")
    age(precious, 10)
    lake = tmp_path / "lake"
    write(lake / "claims" / "t", table_metadata(precious.parent, snapshots=0), "v1.metadata.json")
    (row,) = spark.sql(f"CALL {name}.system.import_catalog('directory', '{lake}')").collect()
    assert row.status == "imported"
    assert f"file://{precious.parent}" in row.message
    remove = f"CALL {name}.system.remove_orphans(location => '{precious.parent}', dry_run => false)"
    assert spark.sql(remove).collect() == []
    assert precious.exists()
    adopt = f"CALL {name}.system.adopt(table => 'claims.t'"
    assert [row.outcome for row in spark.sql(f"{adopt}, dry_run => true)").collect()] == ["would be adopted"]
    assert [row.outcome for row in spark.sql(f"{adopt})").collect()] == ["adopted"]
    assert [row.outcome for row in spark.sql(remove).collect()] == ["deleted"]
    assert not precious.exists()


@pytest.mark.parametrize(
    "statement",
    [
        "CALL polaris.system.import_catalog('rest', 'http://127.0.0.1:9', options => map('token', 'env:PATH'))",
        "CALL polaris.system.migrate_realm('postgresql://u@127.0.0.1:1/d', "
        "target_options => map('password', 'env:PATH'))",
        "SELECT * FROM polaris.system.files WITH (`files.s3.secret-access-key` = 'env:PATH')",
    ],
)
def test_a_statement_with_an_unlisted_environment_variable_is_refused(
    spark: SparkSession, statement: str
) -> None:
    with pytest.raises(Exception, match=r"'PATH', which .* does not list"):
        spark.sql(statement).collect()
