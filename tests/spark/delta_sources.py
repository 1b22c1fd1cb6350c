"""`python -m tests.spark.delta_sources FOLDER`: a materialized view that reads a Delta table, in a session with Delta
Lake. Prints what was found as JSON."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import deltalake
import pyarrow
from pyspark.sql import SparkSession

from polaris_spark.spark.session import configure

DELTA = "io.delta:delta-spark_4.1_2.13:4.3.0"


def write(folder: Path, mode: str, ids: list[int], texts: list[str]) -> None:
    """Write to the Delta table in a folder without Spark."""
    table = pyarrow.table({"id": pyarrow.array(ids, pyarrow.int32()), "z": texts})
    deltalake.write_deltalake(str(folder), table, mode=mode)  # type: ignore[call-overload]


def main(folder: Path) -> None:
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .config("spark.jars.packages", DELTA)
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    )
    store = f"sqlite://{folder / 'catalog.db'}"
    spark = configure(builder, store=store, warehouse=str(folder / "warehouse")).getOrCreate()
    delta = folder / "delta"
    write(delta, "append", [1, 2], ["z1", "z2"])
    for statement in (
        "CREATE NAMESPACE polaris.db",
        "USE polaris.db",
        "CREATE TABLE b AS SELECT * FROM VALUES (1, 'a'), (2, 'b') AS q(id, x)",
        "CREATE MATERIALIZED VIEW v TBLPROPERTIES ('refresh-strategy' = 'incremental', 'incremental-limit' = '100') AS "
        f"SELECT b.id, x, z FROM b JOIN delta.`{delta}` AS d ON b.id = d.id",
    ):
        spark.sql(statement)

    results: dict[str, Any] = {}

    def refreshed() -> list[Any]:
        found = spark.sql("REFRESH MATERIALIZED VIEW v").first()
        assert found is not None
        results["reason"] = found.reason
        return [found.strategy, sorted(map(list, spark.sql("SELECT * FROM v").collect()))]

    def fresh() -> bool:
        found = spark.sql("SHOW MATERIALIZED VIEWS").first()
        assert found is not None
        return bool(found.fresh)

    results["first"] = refreshed()
    summary = spark.sql(
        "SELECT summary['polaris.refresh'] AS text FROM polaris.db.v.storage.snapshots"
    ).first()
    assert summary is not None
    bases = json.loads(summary.text)["base-tables"]
    results["base"] = next(one for one in bases if one["type"] != "iceberg-metastore")
    spark.sql("INSERT INTO b VALUES (2, 'c')")
    results["after a change of the other table"] = refreshed()
    results["fresh"] = [fresh()]
    write(delta, "append", [1], ["z9"])
    results["fresh"] += [fresh()]
    results["after an append"] = refreshed()
    shutil.rmtree(delta)
    try:
        spark.sql("REFRESH MATERIALIZED VIEW v")
    except Exception as error:  # Spark's class depends on the kind of session
        results["gone"] = str(error)
    spark.stop()
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
