"""No job deletes files of a store, wherever they are and however a table spells their locations."""

from __future__ import annotations

import logging
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from polaris_spark.databases import FILE_SCHEMES
from polaris_spark.rest.opening import connect
from tests.maintenance.hostile import JOBS, name_data_files, prepare, run, tree
from tests.maintenance.lakes import ROWS, Lake, age, name_statistics, paths

CASES = [("sqlite", job) for job in JOBS] + [
    (s, job) for s in FILE_SCHEMES if s != "sqlite" for job in ("purge", "expire")
]


def spellings(file: Path) -> list[str]:
    """Spellings of a file's location; some of them name the file only for other programs."""
    folder, name = str(file.parent), file.name
    return [
        f"file://{file}",
        f"file:{file}",
        str(file),
        f"FILE://localhost{folder}//{name}",
        f"file:///{folder}/./{name}",
        f"file://{folder}/db/../{name}",
        f"file://{folder}/%2E/{name}",
        f"file://{folder}/{name[:-1]}%{ord(name[-1]):02X}",
        f"file://{folder}/{name.upper()}",
    ]


@pytest.mark.parametrize(("scheme", "job"), CASES)
def test_no_table_can_delete_files_of_a_store_below_its_warehouse(
    tmp_path: Path, scheme: str, job: str
) -> None:
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir()
    store = warehouse / "c.db"
    lake = Lake(f"{scheme}://{store}", warehouse, grace="0s")
    prepare(job, lake)
    table = lake.table("hostile", appends=1)
    files = sorted(file for file in tree(warehouse) if str(file).startswith(str(store)))
    assert files
    name_data_files(table, [one for file in files[:3] for one in spellings(file)])
    name_statistics(table, f"file://{files[-1]}")
    own = {file for file in lake.files() if "hostile" in file.parts and file.suffix == ".parquet"}
    for file in tree(warehouse):
        if (
            scheme == "sqlite" or file not in files
        ):  # for RocksDB, a changed modification time of the mark means another store
            age(file, 10)
    run(job, lake, "db.hostile")
    if scheme == "sqlite":
        assert [file for file in files if not file.exists()] == []
    assert [file for file in own if file.exists()] == []
    lake.catalog.create_namespace("later")
    lake.close()
    with connect(store=f"{scheme}://{store}", catalog="lake", create=False) as again:
        assert again.request("GET", "v1/namespaces")[2] == '{"namespaces":[["db"],["later"]]}'


def test_the_files_of_sqlite_stay_in_whatever_order_they_are_named(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir()
    lake = Lake(f"sqlite://{warehouse / 'c.db'}", warehouse)
    for name in ("c.db-wal", "c.db-shm", "c.db-journal", "c.db"):
        table = lake.table("hostile", appends=1)
        name_statistics(table, f"file://{warehouse / name}")
        lake.catalog.purge_table("db.hostile")
    assert {"c.db", "c.db-wal", "c.db-shm"} <= {file.name for file in warehouse.iterdir()}
    lake.close()


@pytest.mark.parametrize("job", JOBS)
def test_another_store_that_the_process_has_open_stays(tmp_path: Path, job: str) -> None:
    lake = Lake(f"memory:{uuid.uuid4()}", tmp_path / "warehouse", grace="0s")
    other = tmp_path / "warehouse" / "other.db"
    other.parent.mkdir(exist_ok=True)
    with connect(store=f"sqlite://{other}", warehouse=str(tmp_path / "elsewhere")):
        prepare(job, lake)
        table = lake.table("hostile", appends=1)
        name_data_files(table, [f"file://{other}{ending}" for ending in ("", "-wal", "-shm")])
        before = {file for file in lake.files() if file.name.startswith("other.db")}
        run(job, lake, "db.hostile")
        assert {file for file in lake.files() if file.name.startswith("other.db")} == before
    lake.close()


@pytest.mark.parametrize("scheme", FILE_SCHEMES)
@pytest.mark.parametrize("job", ["purge", "expire", "remove_orphans"])
def test_a_store_below_the_warehouse_that_no_process_has_open_stays(
    tmp_path: Path, scheme: str, job: str
) -> None:
    lake = Lake(f"memory:{uuid.uuid4()}", tmp_path / "warehouse", grace="0s")
    store = lake.warehouse / "stores" / "other"
    store.parent.mkdir(parents=True)
    connect(store=f"{scheme}://{store}", warehouse=str(tmp_path / "elsewhere")).close()
    keep_and_delete_the_rest(lake, job, store.parent)


def test_a_store_below_the_warehouse_that_another_process_has_open_stays(tmp_path: Path) -> None:
    lake = Lake(f"memory:{uuid.uuid4()}", tmp_path / "warehouse", grace="0s")
    store = lake.warehouse / "stores" / "other"
    store.parent.mkdir(parents=True)
    arguments = [sys.executable, "-c", OTHER, f"sqlite://{store}", str(tmp_path / "elsewhere")]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        assert {f"{store}-wal", f"{store}-shm"} <= {str(file) for file in tree(store.parent)}
        keep_and_delete_the_rest(lake, "remove_orphans", store.parent)


@pytest.mark.parametrize("name", ["POLARIS_SPARK", "format"])
def test_a_namespace_that_is_named_like_the_mark_of_a_store_keeps_no_file(tmp_path: Path, name: str) -> None:
    lake = Lake(f"memory:{uuid.uuid4()}", tmp_path / "warehouse", grace="0s")
    lake.catalog.create_namespace(name)
    lake.catalog.create_table(f"{name}.t", ROWS.schema).append(ROWS)
    assert (lake.warehouse / name).is_dir()
    lake.catalog.purge_table(f"{name}.t")
    assert lake.files() == set()
    stray = lake.stray("stray")
    lake.remove(dry_run=False)
    assert not stray.exists()
    lake.close()


OTHER = """
import sys
from polaris_spark.databases import FILE_SCHEMES
from polaris_spark.rest.opening import connect
with connect(store=sys.argv[1], warehouse=sys.argv[2]):
    print("open", flush=True)
    sys.stdin.read()
"""


def keep_and_delete_the_rest(lake: Lake, job: str, folder: Path) -> None:
    """Run a job on a table that names all files of a folder. They are kept; other files are deleted as orphans."""
    prepare(job, lake)
    table = lake.table("hostile", appends=1)
    before = tree(folder)
    assert before
    name_data_files(table, [f"file://{file}" for file in before])
    for file in before:
        age(file, 10)
    strays: set[Path] = set()
    if job == "remove_orphans":
        strays = {lake.stray(folder / name) for name in ("stray", "x-wal")}
        strays.add(lake.stray(folder / "pages"))
        (folder / "pages").write_bytes(bytes(4_096))
        age(folder / "pages", 10)
        assert paths(lake.remove(dry_run=True)) == strays
    run(job, lake, "db.hostile")
    assert tree(folder) == before
    assert not any(stray.exists() for stray in strays)
    lake.close()


def test_a_hard_link_to_the_store_stays(tmp_path: Path) -> None:
    lake = Lake(f"sqlite://{tmp_path / 'c.db'}", tmp_path / "warehouse")
    table = lake.table("hostile", appends=1)
    alias = tmp_path / "warehouse" / "alias"
    alias.hardlink_to(tmp_path / "c.db")
    name_statistics(table, f"file://{alias}")
    lake.catalog.purge_table("db.hostile")
    assert alias.exists()
    lake.close()


def test_a_warehouse_inside_of_the_folder_of_its_store_keeps_every_file(tmp_path: Path) -> None:
    store = tmp_path / "store"
    lake = Lake(f"file://{store}", store / "warehouse")
    lake.table("t", appends=1)
    before = tree(store / "warehouse")
    lake.catalog.purge_table("db.t")
    assert tree(store / "warehouse") >= before
    lake.close()


@pytest.mark.parametrize(
    ("store", "warehouse", "warned"),
    [
        ("sqlite://{}/warehouse/c.db", "{}/warehouse", True),
        ("sqlite://{}/warehouse/c.db", "file:{}//warehouse/", True),
        ("file://{}/store", "{}/store/warehouse", True),
        ("file://{}/store", "{}/store", True),
        ("sqlite://{}/c.db", "{}/warehouse", False),
        ("sqlite://{}/c.db", "s3://bucket", False),
    ],
)
def test_a_store_and_a_warehouse_inside_each_other_cause_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, store: str, warehouse: str, warned: bool
) -> None:
    (tmp_path / "warehouse").mkdir()
    given = {"store": store.format(tmp_path), "warehouse": warehouse.format(tmp_path)}
    with caplog.at_level(logging.WARNING, logger="polaris_spark"):
        for _ in range(2):
            connect(**given).close()
    assert ["overlap: no job of a catalog" in record.getMessage() for record in caplog.records] == [
        True
    ] * warned
