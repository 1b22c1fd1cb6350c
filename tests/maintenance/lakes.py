"""A catalog with tables and files to delete, in this process."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.table.statistics import StatisticsFile

from polaris_spark.catalog.files.files import local_path
from polaris_spark.catalog.files.folders import Folders
from polaris_spark.catalog.files.permits import Grant
from polaris_spark.errors import ReferenceGoneError
from polaris_spark.jobs.registry import call
from polaris_spark.maintenance.deletion_records import DELETIONS, DeletedFiles, deletions_reference
from polaris_spark.pyiceberg import PolarisCatalog
from polaris_spark.rest.opening import connect

DAY = 86_400

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})


class Lake:
    """A catalog `lake` with a namespace `db`, its warehouse in a directory."""

    def __init__(self, store: str, warehouse: Path, **properties: Any) -> None:
        self.store, self.warehouse = store, warehouse
        given = {"store": store, "warehouse": str(warehouse), "catalog": "lake", **properties}
        self.catalog = PolarisCatalog("lake", **given)
        self.session = connect(**given)
        self.catalog.create_namespace_if_not_exists("db")

    def table(self, name: str = "t", *, appends: int = 2, **properties: str) -> Table:
        """Create a table with some snapshots."""
        table = self.catalog.create_table(f"db.{name}", ROWS.schema, properties=properties)
        for _ in range(appends):
            table.append(ROWS)
        return table

    def old(self, days: float = 10) -> None:
        """Set the modification time of every file to some days ago."""
        for file in self.files():
            age(file, days)

    def stray(self, name: str | Path, days: float = 10) -> Path:
        """Create a file to which nothing refers, by its path below the warehouse."""
        file = self.warehouse / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"stray")
        age(file, days)
        return file

    def files(self) -> set[Path]:
        """Return every file in the warehouse."""
        return {file for file in self.warehouse.rglob("*") if file.is_file()}

    def remove(self, **arguments: Any) -> list[tuple[Any, ...]]:
        """Run `remove_orphans`, and return its rows."""
        return call(self.session, "remove_orphans", **arguments)

    def close(self) -> None:
        """Close the catalog."""
        self.session.close()
        self.catalog.close()


def age(file: Path, days: float) -> None:
    """Set the modification time of a file to some days ago."""
    then = time.time() - days * DAY
    os.utime(file, (then, then))


def make_too_deep(folder: Path) -> None:
    """Create nested folders. The paths of the innermost ones are too long to be opened."""
    deep = os.open(folder, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=deep)
        inner = os.open("d" * 250, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = inner
    os.close(deep)


def folder(table: Table) -> Path:
    """Return the directory of a table."""
    path = local_path(table.location())
    assert path is not None
    return path


def table_elsewhere(lake: Lake) -> Path:
    """Let the catalog have a table in a bucket; the directory that has the same path on this machine.

    Nothing is written: a catalog without metadata files has it in its store only.
    """
    path = lake.warehouse / "elsewhere"
    lake.catalog.create_table("db.elsewhere", ROWS.schema, location=f"s3://bucket{path}")
    return path


def name_statistics(table: Table, location: str) -> None:
    """Add a file to a table as a statistics file."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    statistics = StatisticsFile(
        snapshot_id=snapshot.snapshot_id,
        statistics_path=location,
        file_size_in_bytes=5,
        file_footer_size_in_bytes=1,
        blob_metadata=[],
    )
    table.update_statistics().set_statistics(statistics).commit()


def refuse_to_delete(monkeypatch: pytest.MonkeyPatch, *stuck: str | Path) -> None:
    """Make the deletion of some local files fail."""
    refused, delete = {str(file) for file in stuck}, Folders.delete

    def refusing(folders: Folders, grant: Grant, *others: Any, **options: Any) -> bool:
        if str(local_path(grant.location)) in refused:
            raise PermissionError(errno.EACCES, "Permission denied", grant.location)
        return delete(folders, grant, *others, **options)

    monkeypatch.setattr(Folders, "delete", refusing)


def paths(rows: Iterable[tuple[Any, ...]], outcome: str | None = None) -> set[Path]:
    """Return the files of a result, or only the files with one outcome."""
    found = {local_path(row[0]) for row in rows if outcome in (None, row[4])}
    return {path for path in found if path is not None}


def recorded_deletions(lake: Lake) -> list[tuple[str, str, str, int]]:
    references = lake.session.catalog.references
    try:
        head = references.read(deletions_reference(lake.session.catalog.row))
    except ReferenceGoneError:
        return []
    batches = [head.store.get(entry.pointer, DeletedFiles) for _, entry in head.index(DELETIONS).range()]
    return [(one.job, one.outcome, file.location, file.bytes) for one in batches for file in one.files]
