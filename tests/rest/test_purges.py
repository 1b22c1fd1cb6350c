"""DROP with purge over the protocol: which files are deleted with the table, and which are not."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from polaris_spark.catalog.files.memory import Claim, MemoryBound
from polaris_spark.commits.change import Operation
from tests.rest.client import (
    Client,
    files_below,
    new_key,
    table,
)
from tests.rest.conftest import Open
from tests.rest.icebergs import ROWS, elsewhere, open_table
from tests.rest.registered import MODES, metadata_of, register


def purge(catalog: Client, name: str = "t") -> None:
    """Drop a table and its files."""
    answer = catalog.send("DELETE", table(name), query={"purgeRequested": "true"})
    assert answer.status == 204, answer


@MODES
def test_a_purge_leaves_no_file_of_the_table(opened: Open, warehouse: Path, store: str, mode: str) -> None:
    catalog = opened(store, warehouse, metadata_files=mode)
    catalog.namespace("db")
    catalog.create("t")
    catalog.create("other")
    open_table(catalog, "other").append(ROWS)
    others = files_below(warehouse)
    made = open_table(catalog)
    for _ in range(3):
        made.append(ROWS)
    made.delete("a = 2")
    made.overwrite(ROWS)
    assert len(files_below(warehouse)) > len(others) + 10
    own = metadata_of(catalog)["location"].removeprefix("file://")
    purge(catalog)
    left = {file for file in files_below(warehouse) if str(warehouse / file).startswith(own)}
    assert left == set()
    assert not Path(own).exists()
    assert others >= files_below(warehouse)
    assert open_table(catalog, "other").scan().to_arrow().num_rows == 3


@MODES
def test_a_purge_deletes_what_was_registered(opened: Open, tmp_path: Path, store: str, mode: str) -> None:
    catalog = opened(store, tmp_path / "warehouse", metadata_files=mode)
    catalog.namespace("db")
    made = elsewhere(tmp_path / "other")
    assert register(catalog, made.metadata_location).status == 200
    open_table(catalog, "r").append(ROWS)
    purge(catalog, "r")
    assert files_below(tmp_path / "other") == {"other.db"}


def test_the_memory_of_a_purge_grows_with_the_manifests_and_not_with_the_lists_that_share_them(
    catalog: Client, warehouse: Path
) -> None:
    appends = 20
    catalog.create()
    made = open_table(catalog)
    for _ in range(appends):
        made.append(ROWS)
    # Each list has the manifests of all appends before. A manifest counts as 1,000 bytes and its path, so if each list
    # counted its own, they would exceed the bound, and the files would be kept.
    listed = appends * (appends + 1) // 2
    with Claim(MemoryBound(900 * listed)) as claim, claim.charged():
        purge(catalog)
    assert files_below(warehouse) == set()


def test_a_purge_can_be_repeated_under_its_key(catalog: Client, warehouse: Path) -> None:
    catalog.create()
    open_table(catalog).append(ROWS)
    key = new_key()
    for _ in range(2):
        answer = catalog.send("DELETE", table("t"), query={"purgeRequested": "true"}, key=key)
        assert answer.status == 204
    assert files_below(warehouse) == set()


def test_a_table_without_garbage_collection_cannot_be_purged(catalog: Client, warehouse: Path) -> None:
    catalog.create("t", properties={"gc.enabled": "false"})
    open_table(catalog).append(ROWS)
    before = files_below(warehouse)
    answer = catalog.send("DELETE", table("t"), query={"purgeRequested": "true"})
    assert answer.kind[0] == 400
    assert catalog.names("db") == ["t"]
    assert files_below(warehouse) == before


def test_a_purge_spares_what_another_table_owns(opened: Open, store: str, tmp_path: Path) -> None:
    catalog = opened(store, tmp_path / "warehouse", shared_locations="allow")
    catalog.namespace("db")
    made = elsewhere(tmp_path / "other")
    for name in ("one", "two"):
        assert register(catalog, made.metadata_location, name).status == 200
    before = files_below(tmp_path / "other")
    purge(catalog, "one")
    assert files_below(tmp_path / "other") == before
    assert open_table(catalog, "two").scan().to_arrow().num_rows == 6
    purge(catalog, "two")
    assert files_below(tmp_path / "other") == {"other.db"}


def test_a_purge_deletes_no_file_that_only_metadata_claims(catalog: Client, tmp_path: Path) -> None:
    made = elsewhere(tmp_path / "other")
    (tmp_path / "precious").write_text("keep")
    catalog.create("victim")
    open_table(catalog, "victim").append(ROWS)
    plain = Path(made.metadata_location.removeprefix("file://"))
    metadata = json.loads(plain.read_bytes())
    stolen = [
        f"file://{tmp_path}/precious",
        f"{metadata['location']}/../../precious",
        catalog.load("victim")["metadata-location"],
        metadata_of(catalog, "victim")["snapshots"][0]["manifest-list"],
    ]
    metadata["metadata-log"] = [{"timestamp-ms": 1, "metadata-file": file} for file in stolen]
    forged = plain.with_name("00009-forged.metadata.json")
    forged.write_text(json.dumps(metadata))
    assert register(catalog, str(forged)).status == 200
    purge(catalog, "r")
    assert not forged.exists()
    assert (tmp_path / "precious").read_text() == "keep"
    assert open_table(catalog, "victim").scan().to_arrow().num_rows == 3


def test_a_purge_removes_only_folders_that_it_emptied(catalog: Client, tmp_path: Path) -> None:
    (tmp_path / "home" / "empty" / "mine").mkdir(parents=True)
    catalog.create("t", location=f"file://{tmp_path}/home")
    open_table(catalog).append(ROWS)
    purge(catalog)
    assert files_below(tmp_path / "home") == set()
    assert (tmp_path / "home" / "empty" / "mine").is_dir()


@pytest.mark.parametrize("damage", ["missing", "garbage"])
def test_a_purge_of_damaged_metadata_drops_the_table_all_the_same(
    catalog: Client, warehouse: Path, damage: str
) -> None:
    catalog.create()
    open_table(catalog).append(ROWS)
    listed = Path(metadata_of(catalog)["snapshots"][0]["manifest-list"].removeprefix("file://"))
    if damage == "missing":
        listed.unlink()
    else:
        listed.write_bytes(b"garbage")
    purge(catalog)
    assert catalog.names("db") == []
    assert listed.exists() == (damage == "garbage")
    kept = any(file.endswith(".metadata.json") for file in files_below(warehouse))
    assert kept == (damage == "garbage")  # maintenance finds the rest by it


def test_a_purge_that_cannot_delete_data_keeps_what_leads_to_it(catalog: Client, warehouse: Path) -> None:
    catalog.create()
    open_table(catalog).append(ROWS)
    [data] = warehouse.rglob("*.parquet")
    before = files_below(warehouse)
    data.unlink()
    (data / "inner").mkdir(parents=True)
    purge(catalog)
    assert catalog.names("db") == []
    assert files_below(warehouse) == before - {str(data.relative_to(warehouse))}


def test_a_purge_deletes_manifests_that_no_list_names(catalog: Client, warehouse: Path) -> None:
    made = catalog.create("t", properties={"format-version": "1"})
    open_table(catalog).append(ROWS)
    [manifest] = warehouse.rglob("*-m0.avro")
    metadata = metadata_of(catalog)
    [snapshot] = metadata["snapshots"]
    Path(snapshot.pop("manifest-list").removeprefix("file://")).unlink()
    snapshot["manifests"] = [f"file://{manifest}"]
    old = Path(made["metadata-location"].removeprefix("file://")).with_name("00007-old.metadata.json")
    old.write_text(json.dumps(metadata))
    assert register(catalog, f"file://{old}", "t", overwrite=True).status == 200
    purge(catalog)
    assert not manifest.exists()
    assert list(warehouse.rglob("*.parquet")) == []


@pytest.mark.parametrize("realm", ["default", "another"])
def test_a_purge_spares_what_a_table_of_another_catalog_or_realm_needs(
    opened: Open, tmp_path: Path, realm: str
) -> None:
    store = f"memory:{uuid.uuid4()}"
    catalog = opened(store, tmp_path / "warehouse")
    catalog.namespace("db")
    catalog.create()
    open_table(catalog).append(ROWS)
    other = opened(store, tmp_path / "pond", catalog="pond", realm=realm, shared_locations="allow")
    other.namespace("db")
    assert register(other, catalog.load("t")["metadata-location"]).status == 200
    purge(catalog)
    assert catalog.names("db") == []
    assert open_table(other, "r").scan().to_arrow().num_rows == 3


def test_a_drop_is_not_denied_because_its_purge_failed(opened: Open, warehouse: Path) -> None:
    where = f"memory:{uuid.uuid4()}"
    catalog = opened(where, warehouse, metadata_files="never", **{"py-io-impl": "no.such.FileIO"})
    catalog.namespace("db")
    catalog.create()
    purge(catalog)
    assert catalog.names("db") == []


def test_a_purge_waits_for_maintenance_while_a_branch_may_need_the_files(
    catalog: Client, warehouse: Path, caplog: pytest.LogCaptureFixture
) -> None:
    catalog.create()
    open_table(catalog).append(ROWS)
    inner = catalog.session.catalog
    branch = inner.reference.replace("/main", "/branch")
    inner.references.create(branch, Operation(b"", "me"), source=inner.head())
    before = files_below(warehouse)
    purge(catalog)
    assert catalog.names("db") == []
    assert files_below(warehouse) == before
    [warning] = [record.getMessage() for record in caplog.records if "purge of" in record.getMessage()]
    assert warning == (
        "purge of db.t is left to maintenance, and no file was deleted: the catalog has other branches, which may "
        "contain the table"
    )
