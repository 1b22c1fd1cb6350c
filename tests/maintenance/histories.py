"""Catalogs of small tables with a history, and the files that these need, determined with pyiceberg alone."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import read_manifest_list
from pyiceberg.table import Table

from polaris_spark.catalog.files.files import local_path
from polaris_spark.clock import ManualClock
from polaris_spark.jobs.registry import call
from polaris_spark.pyiceberg import PolarisCatalog

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def rows(*ids: int) -> pa.Table:
    """Return rows with these ids."""
    return pa.table({"id": list(ids), "text": [f"text {id}" for id in ids]}, schema=SCHEMA)


def path(location: str) -> str:
    """Return a location as a local path."""
    found = local_path(location)
    assert found is not None
    return str(found)


def needed(*tables: Table) -> set[str]:
    """Return every file that a snapshot of these tables refers to, except metadata files."""
    found: set[str] = set()
    for table in tables:
        for snapshot in table.metadata.snapshots:
            found.add(path(snapshot.manifest_list))
            for manifest in read_manifest_list(table.io.new_input(snapshot.manifest_list)):
                found.add(path(manifest.manifest_path))
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                found.update(path(entry.data_file.file_path) for entry in entries)
        statistics = [*table.metadata.statistics, *table.metadata.partition_statistics]
        found.update(path(one.statistics_path) for one in statistics)
    return found


def there(*tables: Table) -> set[str]:
    """Return every file in the locations of these tables, except metadata files and checksums."""
    files = [file for table in tables for file in Path(path(table.location())).rglob("*") if file.is_file()]
    return {str(file) for file in files if not file.name.endswith((".metadata.json", ".crc"))}


def expire(catalog: PolarisCatalog, spark: Any = None, **arguments: Any) -> list[dict[str, Any]]:
    """Call `expire`, and return its rows by column."""
    from polaris_spark.jobs.expire import PROCEDURE

    found = call(catalog._opened, "expire", spark=spark, **arguments)
    names = [column.name for column in PROCEDURE.columns]
    return [dict(zip(names, row, strict=True)) for row in found]


def give_up_drops(catalog: PolarisCatalog, clock: ManualClock) -> None:
    """Trim the history so that it no longer contains the drops before the last commit."""
    clock.advance(30 * 24 * 3_600_000)
    call(catalog._opened, "trim")


def make(catalog: PolarisCatalog, name: str, **properties: str) -> Table:
    """Create a table with some history: appends, a delete of whole files, a delete of rows, and an overwrite."""
    table = catalog.create_table(name, SCHEMA, properties=properties)
    for start in range(0, 12, 3):
        table.append(rows(start, start + 1, start + 2))
    table.delete("id = 4")
    table.delete("id <= 2")
    table.overwrite(rows(100, 101), "id >= 9")
    table.append(rows(200))
    return table


def pause() -> None:
    """Wait until the next millisecond, so that snapshots have different times."""
    time.sleep(0.002)


def ids(table: Table) -> Iterable[int]:
    """Return the ids of the table's rows, sorted."""
    return sorted(table.scan().to_arrow()["id"].to_pylist())
