"""`purge_dropped` deletes the files of tables that were dropped with PURGE, if the drop left them to maintenance."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.commits.change import Operation
from polaris_spark.commits.log import entries
from polaris_spark.errors import InputError
from polaris_spark.jobs.registry import call
from polaris_spark.maintenance.orphans.purges import PURGED
from tests.maintenance.lakes import ROWS, Lake, folder, paths, refuse_to_delete


@pytest.fixture(params=["every-commit", "never"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    """A catalog with a grace period of 0 s and a second branch, `side`, which was created before the tables."""
    lake = Lake(f"memory:{uuid.uuid4()}", tmp_path / "warehouse", metadata_files=request.param, grace="0s")
    branch(lake, "side")
    yield lake
    lake.close()


def branch(lake: Lake, name: str) -> None:
    catalog = lake.session.catalog
    catalog.references.create(head_name(catalog.row, name), Operation(b"", "somebody"), source=catalog.head())


def drop_branch(lake: Lake, name: str) -> None:
    catalog = lake.session.catalog
    catalog.references.drop(head_name(catalog.row, name), Operation(b"", "somebody"))


def purge(lake: Lake, **arguments: Any) -> list[tuple[Any, ...]]:
    return call(lake.session, "purge_dropped", **arguments)


def recorded(lake: Lake) -> int:
    catalog = lake.session.catalog
    log = entries(catalog.references.store, catalog.head().head)
    return sum(entry.action == PURGED for _, _, _, entry in log)


def test_files_that_a_purge_left_go_and_the_log_says_so(lake: Lake) -> None:
    kept = lake.table("kept")
    table = lake.table()
    files = {file for file in lake.files() if folder(table) in file.parents}
    lake.catalog.purge_table("db.t")
    assert files <= lake.files()
    assert paths(purge(lake, dry_run=True), "would delete") == files
    assert files <= lake.files()
    assert recorded(lake) == 0
    assert paths(purge(lake), "deleted") == files
    assert not files & lake.files()
    assert recorded(lake) == 1
    assert purge(lake) == []
    assert recorded(lake) == 1
    assert kept.scan().to_arrow().num_rows == 6
    assert call(lake.session, "fsck") == []


def test_a_purge_carried_out_at_once_is_only_recorded(tmp_path: Path) -> None:
    lake = Lake(f"memory:{uuid.uuid4()}", tmp_path / "warehouse", grace="0s")
    lake.table()
    lake.catalog.purge_table("db.t")
    assert lake.files() == set()
    assert purge(lake) == []
    assert recorded(lake) == 1
    lake.close()


def test_grace_is_waited_for(tmp_path: Path) -> None:
    lake = Lake(f"memory:{uuid.uuid4()}", tmp_path / "warehouse")
    branch(lake, "side")
    lake.table()
    lake.catalog.purge_table("db.t")
    before = lake.files()
    lake.old()
    assert purge(lake) == []
    assert lake.remove() == [], "nor are they orphans"
    assert lake.files() == before
    lake.close()


def test_a_table_dropped_without_purge_keeps_its_files(lake: Lake) -> None:
    lake.table()
    before = lake.files()
    lake.catalog.drop_table("db.t")
    assert purge(lake) == []
    assert before <= lake.files()


def test_a_table_that_another_branch_still_has_waits(lake: Lake) -> None:
    table = lake.table(appends=1)
    branch(lake, "other")
    table.append(ROWS)
    everything = lake.files()
    lake.catalog.purge_table("db.t")
    assert purge(lake) == []
    assert lake.files() == everything
    assert recorded(lake) == 0
    drop_branch(lake, "other")
    assert paths(purge(lake), "deleted") == everything
    assert recorded(lake) == 1


def test_a_name_that_another_table_has_by_now_stays_as_it_is(lake: Lake) -> None:
    lake.table()
    lake.catalog.purge_table("db.t")
    before = lake.files()
    again = lake.table()
    assert paths(purge(lake), "deleted") == before
    assert again.scan().to_arrow().num_rows == 6
    assert call(lake.session, "fsck") == []


def test_files_that_another_table_needs_stay(tmp_path: Path) -> None:
    lake = Lake(f"memory:{uuid.uuid4()}", tmp_path / "warehouse", grace="0s", shared_locations="allow")
    branch(lake, "side")
    table = lake.table()
    lake.catalog.register_table("db.copy", table.metadata_location)
    before = lake.files()
    lake.catalog.purge_table("db.t")
    assert purge(lake) == []
    assert lake.files() == before
    assert lake.catalog.load_table("db.copy").scan().to_arrow().num_rows == 6
    lake.close()


def test_files_outside_the_warehouse_that_were_not_the_tables_stay(lake: Lake, tmp_path: Path) -> None:
    table = lake.table(appends=1)
    foreign = tmp_path / "foreign.parquet"
    [data] = table.inspect.data_files()["file_path"].to_pylist()
    Path(data.removeprefix("file://")).rename(foreign)
    Path(data.removeprefix("file://")).symlink_to(foreign)
    table.add_files([f"file://{tmp_path}/foreign.parquet"], check_duplicate_files=False)
    lake.catalog.purge_table("db.t")
    purge(lake)
    assert foreign.exists()


def test_a_run_that_may_not_delete_all_is_gone_on_with(lake: Lake) -> None:
    lake.table()
    lake.catalog.purge_table("db.t")
    everything = lake.files()
    gone: set[Path] = set()
    for _ in range(len(everything)):
        gone |= paths(purge(lake, max_files=3), "deleted")
        if recorded(lake):
            break
    assert gone == everything
    assert lake.files() == set()
    with pytest.raises(InputError, match="max_files"):
        purge(lake, max_files=0)


def test_a_file_that_cannot_be_deleted_keeps_what_leads_to_it_and_no_other_table(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = lake.table("a"), lake.table("b")
    files = {file for file in lake.files() if folder(first) in file.parents}
    data = {file for file in files if file.suffix == ".parquet"}
    others = {file for file in lake.files() if folder(second) in file.parents}
    stuck = min(data)
    lake.catalog.purge_table("db.a")
    lake.catalog.purge_table("db.b")
    refuse_to_delete(monkeypatch, stuck)
    outcomes = purge(lake)
    assert paths(outcomes, "failed") == {stuck}
    assert paths(outcomes, "deleted") == others | data - {stuck}
    assert lake.files() == files - data | {stuck}
    assert recorded(lake) == 1
    monkeypatch.undo()
    purge(lake)
    assert lake.files() == set()
    assert recorded(lake) == 2


def test_a_file_in_another_tables_place_that_cannot_be_deleted_keeps_what_leads_to_it(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = lake.table("a"), lake.table("b")
    own = {file for file in lake.files() if folder(first) in file.parents}
    adopted = folder(first) / "data" / "of-b.parquet"
    pq.write_table(ROWS, adopted)
    second.add_files([f"file://{adopted}"])
    lake.catalog.purge_table("db.a")
    lake.catalog.purge_table("db.b")
    refuse_to_delete(monkeypatch, adopted)
    outcomes = purge(lake)
    assert paths(outcomes, "failed") == {adopted}
    assert own <= paths(outcomes, "deleted")
    assert recorded(lake) == 1
    monkeypatch.undo()
    purge(lake)
    assert lake.files() == set()
    assert recorded(lake) == 2


def test_while_a_table_cannot_be_read_nothing_is_purged(lake: Lake) -> None:
    broken = lake.table("broken")
    snapshot = broken.current_snapshot()
    assert snapshot is not None
    Path(snapshot.manifest_list.removeprefix("file://")).write_bytes(b"garbage")
    lake.table()
    lake.catalog.purge_table("db.t")
    before = lake.files()
    [kept] = purge(lake)
    assert kept[3:5] == ("default.lake.db.broken", "kept")
    assert lake.files() == before
    assert recorded(lake) == 0


def test_a_table_with_a_missing_manifest_list_does_not_hold_up_purges(lake: Lake) -> None:
    broken = lake.table("broken")
    snapshot = broken.current_snapshot()
    assert snapshot is not None
    Path(snapshot.manifest_list.removeprefix("file://")).unlink()
    table = lake.table()
    own = {file for file in lake.files() if folder(table) in file.parents}
    others = lake.files() - own
    lake.catalog.purge_table("db.t")
    rows = purge(lake)
    assert own <= paths(rows, "deleted")
    assert [row[3] for row in rows if row[4] == "kept"] == ["default.lake.db.broken"]
    assert lake.files() == others
