"""Expiry of snapshots of many tables in one call, compared with Iceberg's `expire_snapshots` called for each table.

Both sides run in one Spark session on identical tables. pyiceberg writes one table. The other tables are copies of its
files with another location in them, and are registered in the catalog. Each snapshot adds a file, and removes the file
that was added ten snapshots before.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from benchmarks.measurement import Figure, Sample, compare
from polaris_spark.pyiceberg import PolarisCatalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT_FILES = 10
"""Number of live files of a table, once the table has had this many snapshots."""
KEPT_SNAPSHOTS = 5
"""Number of snapshots that each side keeps of a table."""
_WARM = {"ours": 80, "peer": 20}
"""Maximum number of tables that each side expires to warm up. For `ours`, this is enough to start Python workers."""

_SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.int32())])


def measure(folder: Path, *, rounds: int, tables: int, snapshots: int) -> list[Figure]:
    """Measure the time of both sides.

    Args:
        tables: number of tables for each side and round.
        snapshots: number of snapshots of each table.
    Raises:
        AssertionError: different files are left after the two sides.
    """
    warehouse = folder / "warehouse"
    ours: list[float] = []
    theirs: list[float] = []
    with _session(folder, warehouse) as spark:
        with PolarisCatalog("polaris", store=_store(folder), warehouse=str(warehouse)) as catalog:
            template = _Template(catalog, warehouse, snapshots)
            for side in ("ours", "peer"):
                template.clone(f"{side}_w", min(tables, _WARM[side]))
                for turn in range(rounds):
                    template.clone(f"{side}_{turn}", tables)
        older_than = f"TIMESTAMP '{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S.%f}'"
        _ours(spark, "ours_w", older_than)
        _theirs(spark, "peer_w", min(tables, _WARM["peer"]), older_than)
        for turn in range(rounds):
            ours.append(_ours(spark, f"ours_{turn}", older_than))
            theirs.append(_theirs(spark, f"peer_{turn}", tables, older_than))
            left = [_files(warehouse / f"{side}_{turn}") for side in ("ours", "peer")]
            assert left[0] == left[1], f"the sides left other files: {sorted(left[0] ^ left[1])[:5]}"
    what = f"expiring {snapshots - KEPT_SNAPSHOTS} of {snapshots} snapshots of each of {tables} tables, s"
    peer = "expire_snapshots, one call a table"
    return [
        compare(
            what, Sample(tuple(ours)), Sample(tuple(theirs)), least=10, smaller=True, digits=1, beside=peer
        )
    ]


def _store(folder: Path) -> str:
    return f"sqlite://{folder / 'catalog.db'}"


@contextmanager
def _session(folder: Path, warehouse: Path) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    from polaris_spark.spark.session import configure

    builder = (
        SparkSession.builder.master("local[2]")
        .appName("expiry")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "spark-warehouse"))
    )
    session = configure(builder, store=_store(folder), warehouse=str(warehouse)).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


def _ours(spark: SparkSession, namespace: str, older_than: str) -> float:
    begun = time.perf_counter()
    spark.sql(
        f"CALL polaris.system.expire(namespace => '{namespace}', older_than => {older_than}, "
        f"retain_last => {KEPT_SNAPSHOTS})"
    ).collect()
    return time.perf_counter() - begun


def _theirs(spark: SparkSession, namespace: str, tables: int, older_than: str) -> float:
    begun = time.perf_counter()
    for number in range(tables):
        spark.sql(
            f"CALL polaris.system.expire_snapshots(table => '{namespace}.{_name(number)}', "
            f"older_than => {older_than}, retain_last => {KEPT_SNAPSHOTS})"
        ).collect()
    return time.perf_counter() - begun


def _files(folder: Path) -> set[str]:
    """Return the relative paths of all files below a folder, except metadata files and checksums."""
    files = [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()]
    return {file for file in files if not file.endswith((".metadata.json", ".crc"))}


def _name(number: int) -> str:
    return f"t{number:05d}"


class _Template:
    """A table whose files are copied."""

    def __init__(self, catalog: Catalog, warehouse: Path, snapshots: int) -> None:
        self._catalog = catalog
        self._warehouse = warehouse
        self._folder = warehouse / "made_0" / "t_made"
        catalog.create_namespace("made_0")
        location = f"file://{self._folder}"
        table = catalog.create_table("made_0.t_made", _SCHEMA, location=location)
        for number in range(snapshots):
            _add(table, number)
        self._metadata = table.metadata_location.removeprefix("file://")
        self._contents = {
            file.relative_to(self._folder): _plain(file)
            for file in self._folder.rglob("*")
            if file.is_file() and (not file.name.endswith(".json") or str(file) == self._metadata)
        }

    def clone(self, namespace: str, tables: int) -> None:
        """Create tables that differ from the template only in their location. All locations have the same length."""
        self._catalog.create_namespace(namespace)
        metadata = Path(self._metadata).relative_to(self._folder)
        for number in range(tables):
            folder = self._warehouse / namespace / _name(number)
            before, after = str(self._folder).encode(), str(folder).encode()
            assert len(before) == len(after)
            for name, content in self._contents.items():
                file = folder / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content.replace(before, after))
            self._catalog.register_table(f"{namespace}.{_name(number)}", f"file://{folder / metadata}")


def _add(table: Table, number: int) -> None:
    """Commit a snapshot that adds a file, and removes the file that was added ten snapshots before."""
    rows = pa.table({"id": [number], "day": [number]}, schema=_SCHEMA)
    if number < KEPT_FILES:
        table.append(rows)
        return
    old = next(task.file for task in table.scan(row_filter=f"day = {number - KEPT_FILES}").plan_files())
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
        overwrite.delete_data_file(old)
        for file in _written(table, rows):
            overwrite.append_data_file(file)


def _written(table: Table, rows: pa.Table) -> Sequence[Any]:
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    return list(_dataframe_to_data_files(table_metadata=table.metadata, df=rows, io=table.io))


def _plain(file: Path) -> bytes:
    """Return the content of a file. Avro files are decompressed, so that their locations are plain text."""
    content = file.read_bytes()
    if file.suffix != ".avro":
        return content
    reader: Any = fastavro.reader(io.BytesIO(content))
    metadata = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
    out = io.BytesIO()
    fastavro.writer(out, reader.writer_schema, list(reader), codec="null", metadata=metadata)
    return out.getvalue()
