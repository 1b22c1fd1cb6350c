"""`expire` keeps files that a table begins to need between the first read of the store and the deletion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.commits.change import Operation
from polaris_spark.commits.state import CommitReader
from polaris_spark.jobs.expire import PROCEDURE
from polaris_spark.jobs.registry import call
from polaris_spark.maintenance.expiry import deletion
from polaris_spark.pyiceberg import PolarisCatalog
from tests.maintenance.conftest import Open
from tests.maintenance.histories import SCHEMA, ids, make, needed, path, rows, there

PASSES = ("deleting data and delete files", "deleting manifests", "deleting manifest lists and statistics")

SHARED = "files are left that another table, branch or catalog needs"


def expire(
    catalog: PolarisCatalog, during: str, meanwhile: Callable[[], object], **arguments: Any
) -> dict[str, Any]:
    """Expire everything, and call a function once when a given step begins. Return the row of `db.t`."""
    happened: list[str] = []

    def watch(doing: str, done: int, total: int) -> None:
        if doing == during and not happened:
            happened.append(doing)
            meanwhile()

    found = call(catalog._opened, "expire", watch=watch, older_than="0 s", **arguments)
    assert happened
    names = [column.name for column in PROCEDURE.columns]
    [row] = [row for row in (dict(zip(names, row, strict=True)) for row in found) if row["table"] == "db.t"]
    return row


def branch(catalog: PolarisCatalog, name: str, source: CommitReader) -> None:
    """Create a branch of the catalog that begins at an old commit."""
    opened = catalog._opened.catalog
    opened.references.create(head_name(opened.row, name), Operation(b"", "test"), source=source)


@pytest.fixture(params=["store", "locations"])
def check_files(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("during", ["reading manifest lists", PASSES[0]])
def test_a_branch_that_is_made_from_an_old_commit_keeps_its_files(
    opened: Open, during: str, check_files: str
) -> None:
    lake = opened()
    lake.create_namespace("db")
    table = make(lake, "db.t")
    before, commit = there(table), lake._opened.catalog.head()
    row = expire(lake, during, lambda: branch(lake, "dev", commit), check_files=check_files)
    assert row["note"] == SHARED
    assert row["data_files"] == row["manifests"] == row["manifest_lists"] == 0
    assert there(table) == before
    old = opened(branch="dev").load_table("db.t")
    assert needed(old) == before
    assert ids(old) == ids(table.refresh())


@pytest.mark.parametrize("during", ["reading manifest lists", PASSES[0]])
def test_a_table_that_is_registered_from_an_old_metadata_file_keeps_its_files(
    opened: Open, during: str, check_files: str
) -> None:
    lake = opened(shared_locations="allow", grace="0 s")
    lake.create_namespace("db")
    table = make(lake, "db.t")
    made: list[Table] = []

    def register() -> None:
        made.append(lake.register_table("db.old", table.metadata.metadata_log[3].metadata_file))

    row = expire(lake, during, register, check_files=check_files)
    assert row["note"] == SHARED
    assert row["data_files"] > 0
    assert needed(*made, table.refresh()) <= there(table)
    assert ids(made[0]) == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    lake.purge_table("db.old")
    expire(lake, PASSES[0], lambda: None)
    assert there(table) == needed(table)


def test_a_table_of_another_catalog_that_adopts_a_file_keeps_it(opened: Open, tmp_path: Path) -> None:
    lake = opened()
    lake.create_namespace("db")
    table = make(lake, "db.t")
    victim = sorted(data(there(table)) - needed_now(table))[0]
    pond = opened("pond", realm="another")
    pond.create_namespace("db")
    other = pond.create_table("db.u", SCHEMA)
    row = expire(lake, PASSES[0], lambda: other.add_files([victim]))
    assert row["note"] == SHARED
    assert data(there(table)) == data(needed(table.refresh())) | {victim}
    assert ids(other)


@pytest.mark.parametrize("during", PASSES)
def test_before_each_wave_the_store_is_looked_at_again(
    opened: Open, during: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "FILES_OF_A_WAVE", 1)
    lake = opened(shared_locations="allow")
    lake.create_namespace("db")
    table = make(lake, "db.t")
    old = table.metadata.metadata_log[3].metadata_file
    seen: list[set[str]] = []

    def register() -> None:
        seen.append(there(table))
        lake.register_table("db.old", old)

    row = expire(lake, during, register)
    assert row["note"].startswith(SHARED)
    # What was there when it was registered and is needed by it stays, with all that leads to it.
    assert needed_of(old, lake) & seen[0] <= there(table)
    lists = {one for one in seen[0] if Path(one).name.startswith("snap-")}
    assert lists <= there(table)


def test_if_a_new_table_cannot_be_read_all_files_are_kept(opened: Open) -> None:
    lake = opened(shared_locations="allow")
    lake.create_namespace("db")
    table = make(lake, "db.t")
    before = there(table)
    old = table.metadata.snapshots[2]

    def register() -> None:
        lake.register_table("db.old", table.metadata.metadata_log[3].metadata_file)
        Path(path(old.manifest_list)).write_bytes(b"not avro")

    row = expire(lake, PASSES[0], register)
    assert row["note"].startswith("files are left: it is not known whether a table has come to need them: ")
    assert "default.lake.db.old: " in row["note"]
    assert row["data_files"] == row["manifests"] == row["manifest_lists"] == 0
    assert there(table) == before


def test_commits_that_come_between_read_only_what_is_new(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polaris_spark.maintenance import needed_files

    lake = opened()
    lake.create_namespace("db")
    table, other = make(lake, "db.t"), make(lake, "db.u")
    lists: list[str] = []
    real = needed_files.listed_manifests

    def listed(files: Any, location: str) -> Any:
        lists.append(path(location))
        return real(files, location)

    def append() -> None:
        lists.clear()
        other.refresh().append(rows(300))

    monkeypatch.setattr(needed_files, "listed_manifests", listed)
    row = expire(lake, PASSES[0], append)
    assert row["note"] is None
    current = other.current_snapshot()
    assert current is not None
    assert lists == [path(current.manifest_list)]
    assert there(table) == needed(table.refresh())


def data(files: set[str]) -> set[str]:
    return {file for file in files if file.endswith(".parquet")}


def needed_now(table: Table) -> set[str]:
    """Return the data files of the current snapshot."""
    return {path(task.file.file_path) for task in table.scan().plan_files()}


def needed_of(metadata_file: str, lake: PolarisCatalog) -> set[str]:
    """Return the files of the snapshots in a metadata file, as far as they can be read: data files, manifests and
    lists."""
    from pyiceberg.manifest import read_manifest_list
    from pyiceberg.table import StaticTable

    old = StaticTable.from_metadata(metadata_file)
    found: set[str] = set()
    for snapshot in old.metadata.snapshots:
        found.add(path(snapshot.manifest_list))
        if not Path(path(snapshot.manifest_list)).exists():
            continue
        for manifest in read_manifest_list(old.io.new_input(snapshot.manifest_list)):
            found.add(path(manifest.manifest_path))
            if Path(path(manifest.manifest_path)).exists():
                entries = manifest.fetch_manifest_entry(old.io, discard_deleted=True)
                found.update(path(entry.data_file.file_path) for entry in entries)
    return found
