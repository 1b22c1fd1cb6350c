"""Spark on a store in PostgreSQL. The password is only in `store.password`."""

from __future__ import annotations

from pathlib import Path

import psycopg
from pyspark.sql import SparkSession

from tests.servers.postgresql import GUARDED, PostgreSQL
from tests.spark.catalogs import add_catalog


def test_spark_writes_and_reads_through_a_store_whose_password_stands_in_no_uri(
    spark: SparkSession, postgresql: PostgreSQL, postgresql_uri: str, tmp_path: Path
) -> None:
    with psycopg.connect(postgresql.database, autocommit=True) as owner:
        if owner.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (GUARDED,)).fetchone() is None:
            owner.execute(f"CREATE ROLE {GUARDED}")
        owner.execute(f"CREATE ROLE spark LOGIN PASSWORD 'open sesame' IN ROLE {GUARDED}")
        owner.execute("GRANT CREATE ON DATABASE postgres TO spark")
    catalog = add_catalog(
        spark,
        store=postgresql_uri.replace("postgres@", "spark@"),
        warehouse=str(tmp_path),
        **{"store.password": "open sesame"},
    )
    spark.sql(f"CREATE NAMESPACE {catalog}.shop")
    spark.sql(f"CREATE TABLE {catalog}.shop.orders (id INT, item STRING)")
    spark.sql(f"INSERT INTO {catalog}.shop.orders VALUES (1, 'tea'), (2, 'coffee')")
    assert [tuple(found) for found in spark.table(f"{catalog}.shop.orders").orderBy("id").collect()] == [
        (1, "tea"),
        (2, "coffee"),
    ]
    changes = spark.table(f"{catalog}.system.changes").select("action").collect()
    assert {"create-namespace", "create-table"} <= {found.action for found in changes}
    plan = spark.table(f"{catalog}.system.objects")._jdf.queryExecution().toString()
    assert "open sesame" not in plan
    assert spark.table(f"{catalog}.system.objects").count() > 10
