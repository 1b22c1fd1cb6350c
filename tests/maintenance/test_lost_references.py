"""Jobs delete no files while the database has lost a reference, because nobody knows which files it needs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from polaris_spark.backends.base import ReferenceRow
from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.commits.change import Operation
from polaris_spark.errors import CorruptionError
from polaris_spark.jobs.registry import call
from polaris_spark.pyiceberg import PolarisCatalog
from polaris_spark.store.references import new_version
from polaris_spark.system.registry import ROOT
from tests.maintenance.conftest import Open
from tests.maintenance.histories import SCHEMA, path, rows

DELETING: dict[str, dict[str, Any]] = {
    "remove_orphans": {"dry_run": False},
    "purge_dropped": {},
    "expire": {"older_than": "0 s"},
}


def filled(catalog: PolarisCatalog, name: str) -> Table:
    table = catalog.create_table(name, SCHEMA)
    table.append(rows(1))
    table.append(rows(2))
    return table


def branch(catalog: PolarisCatalog, name: str) -> str:
    own = catalog._opened.catalog
    dev = head_name(own.row, name)
    own.references.create(dev, Operation(b"", "somebody"), source=own.head())
    return dev


def forget(catalog: PolarisCatalog, name: str) -> None:
    """Delete the row of a reference from the database."""
    references = catalog._opened.catalog.references
    found = references.lookup(name)
    assert found is not None
    backend, realm = references.store.backend, references.store.realm
    row = backend.read_reference(realm, found.row_name)
    assert row is not None
    backend.delete_reference(realm, found.row_name, row.version)


def lose(opened: Open, lake: PolarisCatalog, what: str) -> None:
    """Create a second catalog with a table in the same warehouse, and delete the row of its branch or its
    registration."""
    references = lake._opened.catalog.references
    backend, realm = references.store.backend, references.store.realm
    before = backend.read_reference(realm, ROOT)
    assert before is not None
    pond = opened("pond")
    pond.create_namespace("db")
    filled(pond, "db.u")
    if what == "row":
        forget(pond, pond._opened.catalog.reference)
    else:
        after = backend.read_reference(realm, ROOT)
        assert after is not None
        backend.swap_reference(realm, ROOT, after.version, ReferenceRow(new_version(), before.value))


def files(folder: Path) -> set[Path]:
    return {file for file in folder.rglob("*") if file.is_file()}


def age(folder: Path) -> None:
    for file in files(folder):
        os.utime(file, (time.time() - 10 * 86_400,) * 2)


@pytest.mark.parametrize("what", ["row", "registration"])
@pytest.mark.parametrize("job", DELETING)
def test_no_job_deletes_files_before_a_recovery(
    opened: Open, lake: PolarisCatalog, job: str, what: str, tmp_path: Path
) -> None:
    filled(lake, "db.t")
    lose(opened, lake, what)
    age(tmp_path)
    before = files(tmp_path)
    with pytest.raises(CorruptionError, match=r"run (polaris-spark )?recover"):
        call(lake._opened, job, **DELETING[job])
    assert before <= files(tmp_path)


@pytest.mark.parametrize("lost", [True, False])
def test_a_purge_at_once_is_left_to_maintenance(opened: Open, lake: PolarisCatalog, lost: bool) -> None:
    folder = Path(path(filled(lake, "db.t").location()))
    if lost:
        lose(opened, lake, "registration")
    before = files(folder)
    lake.purge_table("db.t")
    assert not lake.table_exists("db.t")
    assert files(folder) == (before if lost else set())


def test_a_branch_without_a_row_does_not_block_other_processes(lake: PolarisCatalog, tmp_path: Path) -> None:
    table = filled(lake, "db.t")
    forget(lake, branch(lake, "dev"))
    stray = Path(path(table.location())) / "data" / "stray.parquet"
    stray.write_bytes(b"nobody's")
    age(tmp_path)
    found = call(lake._opened, "remove_orphans", dry_run=False)
    assert [Path(path(row[0])) for row in found if row[4] == "deleted"] == [stray]
