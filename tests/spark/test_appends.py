"""Java writers that append to one table at the same time, and do not retry."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from polaris_spark.testing.waiting import PATIENCE_S

if TYPE_CHECKING:
    from conftest import CatalogPlace

pytestmark = pytest.mark.spark

WRITERS = 32
APPENDS = 2
"""Appends of each writer, all made on the table that it loaded before anybody wrote."""
RECORDS = 3
"""Records of each append."""


def data_file(jvm: Any, folder: Path, first: int) -> Any:
    """A data file of the column `id`, with `RECORDS` numbers from `first`."""
    column = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
    path = folder / f"{first}.parquet"
    pq.write_table(pa.table([pa.array(range(first, first + RECORDS))], pa.schema([column])), path)
    spec = jvm.org.apache.iceberg.PartitionSpec.unpartitioned()
    builder = jvm.org.apache.iceberg.DataFiles.builder(spec).withPath(f"file://{path}").withFormat("parquet")
    return builder.withFileSizeInBytes(path.stat().st_size).withRecordCount(RECORDS).build()


@pytest.fixture
def catalog(spark: SparkSession, place: CatalogPlace) -> Any:
    """Iceberg's Java interface of the catalog."""
    jvm: Any = spark._jvm
    made = jvm.io.polarisspark.PolarisRESTCatalog()
    made.setConf(spark._jsc.hadoopConfiguration())
    python = spark.conf.get("spark.pyspark.python", None) or os.environ["PYSPARK_PYTHON"]
    properties = {"store": place.store, "warehouse": place.warehouse, "catalog": "polaris"}
    made.initialize("polaris", {**properties, "python": python})
    return made


def create(spark: SparkSession, table: str, version: int, **properties: str) -> None:
    """A table whose writers never retry."""
    given = {"format-version": str(version), "commit.retry.num-retries": "0", **properties}
    written = ", ".join(f"'{name}' = '{value}'" for name, value in given.items())
    spark.sql(f"CREATE TABLE {table} (id BIGINT) USING iceberg TBLPROPERTIES ({written})")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_32_java_writers_that_do_not_retry_see_no_conflict_and_every_row_is_there_once(
    spark: SparkSession, catalog: Any, namespace: str, tmp_path: Path, version: int
) -> None:
    jvm: Any = spark._jvm
    create(spark, f"{namespace}.t", version, **{"polaris.append-rebase": "true"})
    name = jvm.org.apache.iceberg.catalog.TableIdentifier.parse(f"{namespace.partition('.')[2]}.t")
    together = Barrier(WRITERS)

    def write(writer: int) -> None:
        table = catalog.loadTable(name)
        files = [data_file(jvm, tmp_path, (writer * APPENDS + n) * RECORDS) for n in range(APPENDS)]
        together.wait(PATIENCE_S)
        for file in files:
            (table.newFastAppend() if writer % 2 else table.newAppend()).appendFile(file).commit()

    with ThreadPoolExecutor(WRITERS) as threads:
        list(threads.map(write, range(WRITERS)))
    records = WRITERS * APPENDS * RECORDS
    found = spark.table(f"{namespace}.t")
    assert sorted(row.id for row in found.collect()) == list(range(records))
    snapshots = spark.sql(f"SELECT * FROM {namespace}.t.snapshots").collect()
    assert len(snapshots) == WRITERS * APPENDS
    totals = sorted(int(snapshot.summary["total-records"]) for snapshot in snapshots)
    assert totals == list(range(RECORDS, records + 1, RECORDS))
    entries = spark.sql(f"SELECT status, sequence_number FROM {namespace}.t.entries").collect()
    numbers = [0] * len(entries) if version == 1 else list(range(1, len(snapshots) + 1))
    assert sorted(entry.sequence_number for entry in entries) == numbers
    if version == 3:
        ids = found.selectExpr("_row_id", "_last_updated_sequence_number AS number", "id").collect()
        assert sorted(row._row_id for row in ids) == list(range(records))
        assert len({(row.number, row.id // RECORDS) for row in ids}) == len(snapshots)


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("merges", [False, True], ids=["keeps manifests", "merges manifests"])
def test_a_java_append_that_another_came_before_is_rebased_unless_it_merged_manifests(
    spark: SparkSession, catalog: Any, namespace: str, tmp_path: Path, version: int, merges: bool
) -> None:
    jvm: Any = spark._jvm
    count = {"commit.manifest.min-count-to-merge": "1" if merges else "100"}
    create(spark, f"{namespace}.t", version, **{"polaris.append-rebase": "true", **count})
    name = jvm.org.apache.iceberg.catalog.TableIdentifier.parse(f"{namespace.partition('.')[2]}.t")
    first, second, behind = (data_file(jvm, tmp_path, n * RECORDS) for n in range(3))
    catalog.loadTable(name).newFastAppend().appendFile(first).commit()
    table = catalog.loadTable(name)
    snapshot, base = table.newAppend().appendFile(behind).apply(), table.operations().current()
    catalog.loadTable(name).newFastAppend().appendFile(second).commit()
    after = jvm.org.apache.iceberg.TableMetadata.buildFrom(base).setBranchSnapshot(snapshot, "main").build()
    if merges:
        with pytest.raises(
            Py4JJavaError,
            match=r"CommitFailedException.*is missing or changed in the append's manifest list",
        ):
            table.operations().commit(base, after)
    else:
        table.operations().commit(base, after)
        assert table.operations().current().currentSnapshot().snapshotId() == snapshot.snapshotId()
    found = [row.id for row in spark.table(f"{namespace}.t").collect()]
    assert sorted(found) == list(range((2 if merges else 3) * RECORDS))
    space = namespace.partition(".")[2]
    logged = spark.sql(f"SELECT summary FROM polaris.system.changes WHERE namespace = '{space}'").collect()
    rebased = [row.summary["rebased-from"] for row in logged if "rebased-from" in row.summary]
    assert rebased == [] if merges else [str(base.currentSnapshot().snapshotId())]


def test_writers_that_merge_manifests_still_retry(
    spark: SparkSession, catalog: Any, namespace: str, tmp_path: Path
) -> None:
    merging = {"commit.manifest.min-count-to-merge": "2", "commit.retry.num-retries": "100"}
    waits = {"commit.retry.min-wait-ms": "5", "commit.retry.max-wait-ms": "50"}
    create(spark, f"{namespace}.t", 2, **{"polaris.append-rebase": "true", **merging, **waits})
    name = spark._jvm.org.apache.iceberg.catalog.TableIdentifier.parse(f"{namespace.partition('.')[2]}.t")  # type: ignore[union-attr]  # there is a JVM

    def write(writer: int) -> None:
        table = catalog.loadTable(name)
        table.newAppend().appendFile(data_file(spark._jvm, tmp_path, writer * RECORDS)).commit()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(16)))
    assert sorted(row.id for row in spark.table(f"{namespace}.t").collect()) == list(range(16 * RECORDS))
    assert spark.table(f"{namespace}.t.manifests").count() < 16


def test_streams_that_write_to_one_table_do_not_fail_each_other(
    spark: SparkSession, namespace: str, tmp_path: Path
) -> None:
    create(spark, f"{namespace}.t", 2, **{"polaris.append-rebase": "true"})
    batches, streams = 3, 4
    for stream in range(streams):
        (tmp_path / f"in{stream}").mkdir()
        for batch in range(batches):
            number = pa.array([stream * batches + batch], pa.int64())
            pq.write_table(pa.table({"id": number}), tmp_path / f"in{stream}" / f"{batch}.parquet")
    queries = [
        spark.readStream.schema("id BIGINT")
        .option("maxFilesPerTrigger", "1")
        .parquet(str(tmp_path / f"in{stream}"))
        .writeStream.option("checkpointLocation", str(tmp_path / f"state{stream}"))
        .trigger(availableNow=True)
        .toTable(f"{namespace}.t")
        for stream in range(streams)
    ]
    for query in queries:
        assert query.awaitTermination(PATIENCE_S)
        assert query.exception() is None
    assert sorted(row.id for row in spark.table(f"{namespace}.t").collect()) == list(range(streams * batches))
    assert spark.table(f"{namespace}.t.snapshots").count() == streams * batches
