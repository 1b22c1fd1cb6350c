"""Tables whose metadata refers to files of others, and the jobs that delete files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import fastavro
from pyiceberg.table import Table

from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.catalog.files.files import local_path
from polaris_spark.commits.change import Operation
from polaris_spark.jobs.registry import call
from tests.maintenance.lakes import Lake, age


def name_data_files(table: Table, locations: Iterable[str]) -> None:
    """Add files to the newest manifest of a table, as data files."""
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    file = local_path(snapshot.manifests(table.io)[0].manifest_path)
    assert file is not None
    with file.open("rb") as opened:
        reader = fastavro.reader(opened)
        entries = list(reader)
        schema, metadata = reader.writer_schema, reader.metadata
    kept = {name: text for name, text in metadata.items() if not name.startswith("avro.")}
    first = entries[0]
    entries += [
        {**first, "data_file": {**first["data_file"], "file_path": location}} for location in locations
    ]
    with file.open("wb") as opened:
        fastavro.writer(opened, schema, entries, metadata=kept)


def defer_purges(lake: Lake) -> None:
    """Add a second branch to a catalog, so that `PURGE` leaves the deletion of files to maintenance."""
    catalog = lake.session.catalog
    catalog.references.create(
        head_name(catalog.row, "side"), Operation(b"", "somebody"), source=catalog.head()
    )


def purge(lake: Lake, name: str) -> None:
    """Drop a table with PURGE, which deletes its files at once."""
    lake.catalog.purge_table(name)


def purge_later(lake: Lake, name: str) -> None:
    """Drop a table with PURGE, and let maintenance delete its files."""
    lake.catalog.purge_table(name)
    call(lake.session, "purge_dropped")


def expire(lake: Lake, name: str) -> None:
    """Delete all rows of a table, and expire the snapshots that contain rows."""
    lake.catalog.load_table(name).delete()
    call(lake.session, "expire", table=name, older_than="0 s")


def remove_orphans(lake: Lake, name: str) -> None:
    """Drop a table with PURGE, and delete the orphan files that it leaves."""
    purge_later(lake, name)
    for file in lake.files():
        age(file, 10)
    lake.remove(dry_run=False)


JOBS: dict[str, Callable[[Lake, str], None]] = {
    "purge": purge,
    "purge_dropped": purge_later,
    "expire": expire,
    "remove_orphans": remove_orphans,
}
"""The jobs that delete files, by name. All need a catalog whose grace is over at once."""


def run(job: str, lake: Lake, name: str) -> None:
    """Run a job that deletes the files of a table."""
    JOBS[job](lake, name)


def prepare(job: str, lake: Lake) -> None:
    """Prepare a catalog for a job, before it has tables."""
    if job in ("purge_dropped", "remove_orphans"):
        defer_purges(lake)


def tree(*folders: Path) -> set[Path]:
    """Every file and link below some folders."""
    return {file for folder in folders for file in folder.rglob("*") if file.is_symlink() or file.is_file()}
