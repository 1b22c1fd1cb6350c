"""Several runs of `expire` if some files cannot be deleted. Deleted files are not counted again, and do not block other
files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.backends.memory import MemoryBackend
from polaris_spark.catalog.engine import Reach
from polaris_spark.catalog.files.files import Files
from polaris_spark.maintenance.deletion_records import DELETIONS, DeletedFiles, deletions_reference
from polaris_spark.maintenance.file_deletion import FindAbsent
from polaris_spark.pyiceberg import PolarisCatalog
from polaris_spark.store.cache import process_cache
from polaris_spark.store.objects import ObjectStore
from tests.maintenance.histories import SCHEMA, expire, make, needed, path, there
from tests.maintenance.lakes import refuse_to_delete
from tests.maintenance.test_expiry_sharing import forget, shared_file


def test_files_that_others_share_do_not_use_up_the_limit_of_files(lake: PolarisCatalog) -> None:
    table, other = make(lake, "db.a"), lake.create_table("db.b", SCHEMA)
    third = make(lake, "db.z")
    file = shared_file(table, [table, other])
    forget(table)
    everything = there(table, other, third)
    for _ in range(3):
        before = there(table, other, third)
        assert counted(expire(lake, older_than="0 s", max_files=2)) == len(
            before - there(table, other, third)
        )
    assert there(third) == needed(third.refresh())
    assert {one for one in there(table) if one.endswith(".parquet")} - needed(table.refresh()) == {file}
    assert set(recorded(lake).values()) == {1}
    assert set(recorded(lake)) == {(one, "deleted") for one in everything - there(table, other, third)}
    [row] = expire(lake, older_than="0 s", dry_run=True)
    assert counted([row]) == row["bytes"] == 0
    assert row["note"] == "files are left that another table, branch or catalog needs"


def test_files_deleted_before_a_failed_deletion_are_counted_once(
    lake: PolarisCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(lake, "db.t")
    before = there(table)
    current = {path(task.file.file_path) for task in table.scan().plan_files()}
    stuck = min(one for one in before if one.endswith(".parquet") and one not in current)
    refuse_to_delete(monkeypatch, stuck)
    for _ in range(2):
        was = there(table)
        [row] = expire(lake, older_than="0 s")
        assert counted([row]) == len(was - there(table))
        assert row["failed"] == 1
    monkeypatch.undo()
    was = there(table)
    [said] = expire(lake, older_than="0 s", dry_run=True)
    assert [said] == expire(lake, older_than="0 s")
    assert counted([said]) == len(was - there(table))
    assert there(table) == needed(table.refresh())


def test_files_that_can_never_be_deleted_do_not_use_up_the_limit_of_every_run(
    lake: PolarisCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, others = make(lake, "db.a"), [make(lake, f"db.{name}") for name in "bc"]
    refused = there(stuck)
    refuse_to_delete(monkeypatch, *refused)
    for _ in range(60):
        expire(lake, older_than="0 s", max_files=1)
        if all(there(table) == needed(table.refresh()) for table in others):
            break
    assert [there(table) - needed(table.refresh()) for table in others] == [set(), set()]
    assert there(stuck) == refused


def test_only_files_that_certainly_do_not_exist_count_as_deleted(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    names = ["file", "link", "none", "folder/none", "file/none", "x" * 300]
    locations = [*(f"file://{tmp_path}/{one}" for one in names), "file://[no/uri"]
    no_rows = ObjectStore(MemoryBackend(), "none", process_cache(), store_key="none")
    found = FindAbsent()(Reach(no_rows, Files({})), locations)
    assert [location.removeprefix(f"file://{tmp_path}/") for location in found] == [
        "none",
        "folder/none",
        "file/none",
    ]


def counted(rows: list[dict[str, Any]]) -> int:
    """Return the number of files that were deleted, or would be deleted."""
    kinds = ("data_files", "position_delete_files", "manifests", "manifest_lists", "statistics_files")
    return sum(row[kind] for row in rows for kind in kinds)


def recorded(lake: PolarisCatalog) -> Counter[tuple[str, str]]:
    """Return the number of records of each file, by outcome."""
    catalog = lake._opened.catalog
    head = catalog.references.read(deletions_reference(catalog.row))
    batches = [head.store.get(entry.pointer, DeletedFiles) for _, entry in head.index(DELETIONS).range()]
    return Counter((path(file.location), batch.outcome) for batch in batches for file in batch.files)
