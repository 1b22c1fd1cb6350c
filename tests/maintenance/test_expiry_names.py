"""Each file has one key, independent of the spelling of its location."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from polaris_spark.catalog.engine import LocalEngine
from polaris_spark.maintenance.expiry.files import Examine
from polaris_spark.maintenance.expiry.manifests import FindNeeded
from polaris_spark.maintenance.expiry.names import file_key, forget_folders
from polaris_spark.pyiceberg import PolarisCatalog
from tests.maintenance.histories import SCHEMA, expire, make, path, rows
from tests.maintenance.lakes import name_statistics


@pytest.mark.parametrize(
    "spellings",
    [
        (
            "/lake/t/x.parquet",
            "file:///lake/t/x.parquet",
            "file:/lake//t/./x.parquet",
            "/lake/u/../t/x.parquet",
        ),
        ("s3://bucket/t/x.parquet", "s3a://Bucket/t/x.parquet", "s3n://bucket/t//x.parquet"),
        ("s3://bucket/a b/c d", "s3://bucket/a%20b/c%20d", "s3://bucket/a b/c%2520d"),
        ("s3://bucket/\u00e9/\u00e9", "s3://bucket/e\u0301/e\u0301"),
        ("hdfs://name/t/x", "hdfs:///t/x", "/t/x"),
        ("s3://bucket/x", "s3a://bucket/x", "s3://bucket//x"),
    ],
)
def test_spellings_of_one_file_have_one_key(spellings: tuple[str, ...]) -> None:
    assert len({file_key(one) for one in spellings}) == 1


def test_other_files_have_other_keys() -> None:
    names = ["s3://a/t/x", "s3://b/t/x", "s3://a/t/y", "s3://a/u/x", "gs://a/t/x", "/t/x", "/u/x", "/t/X"]
    assert len({file_key(one) for one in names}) == len(names)


def test_a_file_behind_a_link_to_its_folder_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    assert file_key(f"file://{tmp_path}/link/x") == file_key(str(tmp_path / "folder" / "x"))


@pytest.mark.parametrize("work", [FindNeeded({1: [7]}), Examine()])
def test_work_that_comes_to_an_executor_finds_links_as_they_are(work: object, tmp_path: Path) -> None:
    link = tmp_path / "link"
    (tmp_path / "folder").mkdir()
    link.symlink_to(tmp_path)
    assert file_key(f"{link}/x") == f"{tmp_path}/x"
    link.unlink()
    link.symlink_to(tmp_path / "folder")
    assert vars(pickle.loads(pickle.dumps(work))) == vars(work)
    assert file_key(f"{link}/x") == f"{tmp_path}/folder/x"


def test_a_run_finds_links_as_they_are(lake: PolarisCatalog, tmp_path: Path) -> None:
    table = make(lake, "db.t")
    file, link = Path(path(table.location())) / "metadata" / "some.stats", tmp_path / "link"
    file.write_bytes(b"12345")
    link.symlink_to(tmp_path)
    name_statistics(table, str(file))
    table.append(rows(300))
    name_statistics(table, str(link / file.name))
    assert file_key(str(link / file.name)) != file_key(str(file))
    link.unlink()
    link.symlink_to(file.parent)
    expire(lake, older_than="0 s", check_files="locations")
    assert file.exists()


@pytest.mark.parametrize(("who", "check_files"), [("it", "store"), ("it", "locations"), ("another", "store")])
def test_executors_without_the_drivers_links_keep_what_is_needed(
    lake: PolarisCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str, check_files: str
) -> None:
    """The driver reaches a folder through a link, and executors and tables use the folder itself."""
    linked, real = tmp_path / "lake", tmp_path / "mount"
    real.mkdir()
    linked.symlink_to(real)
    table = lake.create_table("db.t", SCHEMA, location=f"file://{linked}/t")
    files = [linked / "t" / "data" / f"{n}.parquet" for n in (1, 2)]
    files[0].parent.mkdir(parents=True, exist_ok=True)
    for n, file in enumerate(files, start=1):
        pq.write_table(rows(n), file)
    table.add_files([f"file://{file}" for file in files])
    if who == "another":
        other = lake.create_table("db.u", SCHEMA)
        other.add_files([f"file://{files[0]}"])
        table.delete("id = 1")
    table.delete("id = 2")
    here = LocalEngine._results

    def elsewhere(self: LocalEngine, function: Any, items: Any) -> Iterator[Any]:
        linked.unlink()
        real.rename(linked)
        try:
            found = list(here(self, pickle.loads(pickle.dumps(function)), items))
        finally:
            linked.rename(real)
            linked.symlink_to(real)
            forget_folders()
        return iter(found)

    monkeypatch.setattr(LocalEngine, "_results", elsewhere)
    [row] = expire(lake, table="db.t", older_than="0 s", check_files=check_files)
    assert row["data_files"] == 1
    assert [file.exists() for file in files] == [True, False]
