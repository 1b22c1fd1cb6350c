"""Runs of `remove_orphans` in one process: where they search, how much they delete, and concurrent changes."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from polaris_spark.errors import InputError
from polaris_spark.jobs.registry import call
from polaris_spark.maintenance.orphans import search as orphan_search
from tests.maintenance.lakes import (
    ROWS,
    Lake,
    folder,
    name_statistics,
    paths,
    recorded_deletions,
    refuse_to_delete,
)


@pytest.fixture(params=["every-commit", "never"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    lake = Lake(f"memory:{uuid.uuid4()}", tmp_path / "warehouse", metadata_files=request.param)
    yield lake
    lake.close()


def test_one_table_or_one_folder_can_be_cleaned(lake: Lake) -> None:
    one, other = lake.table("one"), lake.table("other")
    first, second = (lake.stray(folder(table) / "stray") for table in (one, other))
    assert paths(lake.remove(table="db.one")) == {first}
    assert paths(lake.remove(location=str(folder(other)))) == {second}
    with pytest.raises(InputError, match="no table or view"):
        lake.remove(table="db.none")
    for text in ("", "one", "db.`one"):
        with pytest.raises(InputError, match=r"write it like db\.t"):
            lake.remove(table=text)
    with pytest.raises(InputError, match="not both"):
        lake.remove(table="db.one", location="/tmp")
    with pytest.raises(InputError, match=r"\.\."):
        lake.remove(location="file:///a/../b")


def test_a_run_deletes_as_many_files_as_it_may(lake: Lake) -> None:
    strays = {lake.stray(f"s{number}") for number in range(5)}
    assert len(lake.remove(dry_run=False, max_files=2)) == 2
    assert len(strays & lake.files()) == 3
    with pytest.raises(InputError, match="max_files"):
        lake.remove(max_files=0)


def test_a_folder_that_cannot_be_listed_ends_the_run(lake: Lake) -> None:
    (lake.warehouse / "file").parent.mkdir(parents=True, exist_ok=True)
    (lake.warehouse / "file").write_bytes(b"")
    with pytest.raises(Exception, match="cannot list"):
        lake.remove(location=str(lake.warehouse / "file"))


@pytest.mark.parametrize("mode", ["error", "ignore", "delete"])
def test_prefix_mismatch_mode_decides_about_a_path_with_another_scheme(lake: Lake, mode: str) -> None:
    table = lake.table()
    stray = lake.stray(folder(table) / "metadata" / "stray.stats")
    name_statistics(table, f"hdfs://nn:8020{stray}")
    lake.old()
    if mode == "error":
        with pytest.raises(
            InputError, match=r"hdfs://nn:8020 in tables, file:// in the listing.*equal_schemes"
        ):
            lake.remove()
    else:
        assert paths(lake.remove(prefix_mismatch_mode=mode)) == ({stray} if mode == "delete" else set())
    same = {"equal_schemes": {"hdfs": "file"}}
    assert lake.remove(**same) == []


def watched(lake: Lake, watch: Callable[[str, int, int], None], **arguments: object) -> list[tuple[Any, ...]]:
    """Run `remove_orphans` with the progress function `watch`, and return its rows."""
    return call(lake.session, "remove_orphans", watch=watch, dry_run=False, **arguments)


def test_a_file_that_a_table_adopts_before_it_is_deleted_stays(lake: Lake) -> None:
    table = lake.table()
    adopted = folder(table) / "data" / "adopted.parquet"
    pq.write_table(ROWS, adopted)
    stray = lake.stray(folder(table) / "data" / "stray")
    lake.old()

    def adopt(doing: str, done: int, total: int) -> None:
        if doing == "deleting files" and total:
            table.refresh().add_files([f"file://{adopted}"])

    rows = watched(lake, adopt)
    assert paths(rows, "kept") == {adopted}
    assert paths(rows, "deleted") == {stray}
    assert table.refresh().scan().to_arrow().num_rows == 9


@pytest.mark.parametrize("mode", ["error", "ignore", "delete"])
def test_prefix_mismatch_mode_decides_about_a_file_that_is_adopted_under_another_scheme(
    lake: Lake, mode: str
) -> None:
    table = lake.table()
    stray = lake.stray(folder(table) / "metadata" / "stray.stats")
    lake.old()

    def adopt(doing: str, done: int, total: int) -> None:
        if doing == "deleting files" and total:
            name_statistics(table, f"hdfs://nn:8020{stray}")

    rows = watched(lake, adopt, prefix_mismatch_mode=mode)
    assert paths(rows, "deleted" if mode == "delete" else "kept") == {stray}
    assert stray.exists() is (mode != "delete")


def test_a_file_written_anew_before_it_is_deleted_stays(lake: Lake) -> None:
    again, stray = lake.stray("again"), lake.stray("stray")

    def rewrite(doing: str, done: int, total: int) -> None:
        if doing == "deleting files":
            again.write_bytes(b"new")

    rows = watched(lake, rewrite)
    assert paths(rows, "kept") == {again}
    assert paths(rows, "deleted") == {stray}


def test_a_run_that_was_interrupted_is_run_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphan_search, "WAVE", 2)
    table = lake.table()
    lake.old()
    before = lake.files()
    strays = {lake.stray(f"s{number}") for number in range(7)}

    def interrupt(doing: str, done: int, total: int) -> None:
        if doing == "deleting files" and done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watched(lake, interrupt)
    left = strays & lake.files()
    assert len(left) == 3
    assert paths(lake.remove(dry_run=False), "deleted") == left
    assert lake.files() == before
    assert table.refresh().scan().to_arrow().num_rows == 6


def test_a_file_that_cannot_be_deleted_is_reported_and_other_files_are_deleted(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays, goes = lake.stray("stays"), lake.stray("goes")
    refuse_to_delete(monkeypatch, stays)
    rows = lake.remove(dry_run=False)
    assert paths(rows, "deleted") == {goes}
    [failed] = [row for row in rows if row[4] == "failed"]
    assert "Permission denied" in failed[5]
    assert [row[1] for row in recorded_deletions(lake)] == ["deleted", "deleted", "failed"]


def test_commits_go_on_while_orphans_are_removed(tmp_path: Path) -> None:
    lake = Lake(f"sqlite://{tmp_path}/c.db", tmp_path / "warehouse")
    lake.table("first", appends=1)
    lake.table("second", appends=1)
    lake.old()
    over = threading.Event()
    acknowledged: Counter[str] = Counter()

    def write(name: str) -> None:
        table = lake.catalog.load_table(f"db.{name}")
        while not over.is_set():
            table.append(ROWS)
            acknowledged[name] += 1

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, name) for name in ("first", "second")]
        try:
            for number in range(3):
                stray = lake.stray(f"s{number}")
                assert paths(lake.remove(dry_run=False), "deleted") == {stray}
        finally:
            over.set()
        for writer in writers:
            writer.result()
    for name, appends in acknowledged.items():
        assert lake.catalog.load_table(f"db.{name}").scan().to_arrow().num_rows == 3 * (1 + appends)
    assert call(lake.session, "fsck") == []
    lake.close()


def test_a_location_that_does_not_exist_is_refused(lake: Lake) -> None:
    for dry_run in (True, False):
        with pytest.raises(InputError, match="the location '/nowhere/at/all' does not exist"):
            lake.remove(location="/nowhere/at/all", dry_run=dry_run)


@pytest.mark.parametrize(
    "location", ["", " ", ".", "~", "inner", "file:inner", "a:inner", "/", "file://[x/y"]
)
def test_a_location_that_does_not_say_where_it_is_is_refused(
    lake: Lake, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    strays = {lake.stray("stray"), lake.stray("inner/stray")}
    monkeypatch.chdir(lake.warehouse)
    monkeypatch.setenv("HOME", str(lake.warehouse))
    with pytest.raises(InputError, match=r"absolute|URL"):
        lake.remove(location=location, dry_run=False)
    assert strays <= lake.files()


def test_a_location_without_any_file_is_reported(lake: Lake) -> None:
    empty = lake.warehouse / "empty" / "inner"
    empty.mkdir(parents=True)
    location = str(empty.parent)
    assert lake.remove(location=location) == [(location, None, None, None, "empty", "there is no file in it")]
    young = lake.stray(empty / "young", days=0)
    assert lake.remove(location=location) == []
    assert young.exists()
