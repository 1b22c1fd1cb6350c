"""What the catalog reads, writes and deletes in a warehouse: registration, metadata files, purges."""

from __future__ import annotations

import gzip
import json
import os
import uuid
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from polaris_spark.catalog import reading
from polaris_spark.commits.change import Operation
from tests.rest.client import (
    Client,
    at_once,
    files_below,
    new_key,
    path,
    set_properties,
    table,
    table_request,
    tables,
    view,
    view_request,
)
from tests.rest.conftest import Open
from tests.rest.icebergs import ROWS, elsewhere, open_table

MODES = pytest.mark.parametrize("mode", ["every-commit", "never"])


def register(catalog: Client, location: str, name: str = "r", **rest: object) -> object:
    """Register a metadata file as a table of the namespace `db`."""
    return catalog.send(
        "POST", f"{path('db')}/register", {"name": name, "metadata-location": location, **rest}
    )


def metadata_of(catalog: Client, name: str = "t") -> dict:
    """The metadata that a load gives."""
    return catalog.load(name)["metadata"]


# Registration


def test_a_registered_table_is_what_its_metadata_file_says(catalog: Client, tmp_path: Path) -> None:
    made = elsewhere(tmp_path / "other", appends=3)
    answer = register(catalog, made.metadata_location)
    assert answer.status == 200, answer
    assert answer.body["metadata-location"] == made.metadata_location
    assert answer.body["metadata"] == json.loads(
        Path(made.metadata_location.removeprefix("file://")).read_bytes()
    )
    assert catalog.load("r") == answer.body
    assert open_table(catalog, "r").scan().to_arrow().num_rows == 9


def test_a_registered_table_goes_on_with_the_next_version(catalog: Client, tmp_path: Path) -> None:
    made = elsewhere(tmp_path / "other")
    register(catalog, made.metadata_location)
    open_table(catalog, "r").append(ROWS)
    after = catalog.load("r")
    number = int(made.metadata_location.rsplit("/", 1)[1].split("-")[0])
    assert int(after["metadata-location"].rsplit("/", 1)[1].split("-")[0]) == number + 1
    assert after["metadata"]["metadata-log"][-1]["metadata-file"] == made.metadata_location
    assert open_table(catalog, "r").scan().to_arrow().num_rows == 9


def test_a_compressed_metadata_file_is_registered(catalog: Client, tmp_path: Path) -> None:
    made = elsewhere(tmp_path / "other")
    plain = Path(made.metadata_location.removeprefix("file://"))
    packed = plain.with_name("00007-x.gz.metadata.json")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    answer = register(catalog, str(packed))
    assert answer.status == 200, answer
    assert answer.body["metadata"] == json.loads(plain.read_bytes())


@pytest.mark.parametrize("compressed", [False, True])
def test_a_metadata_file_that_is_too_long_is_refused(
    catalog: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compressed: bool
) -> None:
    made = elsewhere(tmp_path / "other")
    text = Path(made.metadata_location.removeprefix("file://")).read_bytes()
    file = tmp_path / "long.metadata.json"
    file.write_bytes(gzip.compress(text) if compressed else text)
    monkeypatch.setattr(reading, "MAX_METADATA_BYTES", len(text) - 1)
    refused = register(catalog, str(file))
    assert refused.kind == (400, "BadRequestException")
    assert f"more than {len(text) - 1} bytes" in refused.error["message"]
    monkeypatch.setattr(reading, "MAX_METADATA_BYTES", len(text))
    assert register(catalog, str(file)).status == 200


def test_only_an_overwriting_registration_takes_the_place_of_a_table(catalog: Client, tmp_path: Path) -> None:
    catalog.create("r")
    made = elsewhere(tmp_path / "other")
    refused = register(catalog, made.metadata_location)
    assert refused.kind == (409, "AlreadyExistsException")
    assert register(catalog, made.metadata_location, overwrite=False).status == 409
    answer = register(catalog, made.metadata_location, overwrite=True)
    assert answer.status == 200, answer
    assert metadata_of(catalog, "r")["table-uuid"] == str(made.metadata.table_uuid)
    assert catalog.names("db") == ["r"]


@pytest.mark.parametrize("kind", ["table", "view"])
def test_a_registration_says_that_the_name_is_taken_before_it_reads(catalog: Client, kind: str) -> None:
    catalog.create("r")
    where = f"{path('db')}/register" if kind == "table" else f"{path('db')}/register-view"
    answer = catalog.send("POST", where, {"name": "r", "metadata-location": "/nope"})
    assert answer.kind == (409, "AlreadyExistsException")


@MODES
def test_what_was_dropped_but_not_purged_can_be_registered_again(
    opened: Open, store: str, warehouse: Path, mode: str
) -> None:
    catalog = opened(store, warehouse, metadata_files=mode)
    catalog.namespace("db")
    created_view = catalog.ok("POST", f"{path('db')}/views", view_request("v"))
    made = {"register": catalog.create("t"), "register-view": created_view}
    for where, name in (("register", table("t")), ("register-view", view("v"))):
        assert catalog.send("DELETE", name).status == 204
        body = {"name": name[-1], "metadata-location": made[where]["metadata-location"]}
        assert catalog.ok("POST", f"{path('db')}/{where}", body) == made[where]
        assert catalog.ok("GET", name) == made[where]


def test_a_drop_is_not_denied_because_its_metadata_cannot_be_written(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    catalog = opened(f"memory:{uuid.uuid4()}", tmp_path / "file" / "warehouse", metadata_files="never")
    catalog.namespace("db")
    catalog.create()
    assert catalog.send("DELETE", table("t")).status == 204
    assert catalog.names("db") == []


def test_a_registration_needs_its_namespace(catalog: Client, tmp_path: Path) -> None:
    made = elsewhere(tmp_path / "other")
    body = {"name": "r", "metadata-location": made.metadata_location}
    answer = catalog.send("POST", f"{path('nope')}/register", body)
    assert answer.kind == (404, "NoSuchNamespaceException")


def test_a_file_cannot_be_registered_twice(catalog: Client, tmp_path: Path) -> None:
    made = elsewhere(tmp_path / "other")
    assert register(catalog, made.metadata_location).status == 200
    assert register(catalog, made.metadata_location, "again").kind == (403, "ForbiddenException")
    assert catalog.names("db") == ["r"]


@pytest.mark.parametrize(
    "location",
    [
        "",
        "foo",
        "/nope",
        "/",
        "/dev/zero",
        "foo://bar/x",
        "http://127.0.0.1:1/x",
        "file://elsewhere/x",
        "/a\0b",
        "\ud800",
        "/tmp/../etc/passwd",
        "~/x",
    ],
)
def test_what_is_no_readable_file_is_refused(catalog: Client, location: str) -> None:
    assert register(catalog, location).kind[0] == 400
    assert catalog.names("db") == []


def test_a_pipe_is_refused_rather_than_waited_for(catalog: Client, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert register(catalog, str(tmp_path / "pipe")).kind[0] == 400


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b"\x1f\x8b\x08" + b"\0" * 7 + b"garbage",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"format-version":99}',
    ],
)
@pytest.mark.parametrize("name", ["x.metadata.json", "x.gz.metadata.json"])
def test_what_is_no_metadata_is_refused(catalog: Client, tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert register(catalog, str(tmp_path / name)).kind[0] == 400
    assert catalog.names("db") == []


# Metadata files


def test_every_version_has_a_file_that_pyiceberg_reads(opened: Open, store: str, warehouse: Path) -> None:
    catalog = opened(store, warehouse, metadata_files="every-commit")
    catalog.namespace("db")
    versions = [catalog.create()]
    made = open_table(catalog)
    for i in range(3):
        made.append(ROWS)
        versions += [catalog.load(), catalog.set("t", x=str(i))]
    for version in versions:
        location = version["metadata-location"]
        assert json.loads(Path(location.removeprefix("file://")).read_bytes()) == version["metadata"]
        StaticTable.from_metadata(location)
    assert StaticTable.from_metadata(versions[-1]["metadata-location"]).scan().to_arrow().num_rows == 9
    assert len({version["metadata-location"] for version in versions}) == 7


def test_compressed_metadata_files_are_readable(catalog: Client) -> None:
    created = catalog.create("t", properties={"write.metadata.compression-codec": "gzip"})
    location = created["metadata-location"]
    assert location.endswith(".gz.metadata.json")
    text = gzip.decompress(Path(location.removeprefix("file://")).read_bytes())
    assert json.loads(text) == created["metadata"]
    assert str(StaticTable.from_metadata(location).metadata.table_uuid) == created["metadata"]["table-uuid"]


def test_metadata_files_go_where_the_table_says(catalog: Client, tmp_path: Path) -> None:
    where = f"file://{tmp_path}/meta"
    created = catalog.create("t", properties={"write.metadata.path": where})
    assert created["metadata-location"].startswith(f"{where}/00000-")
    assert len(files_below(tmp_path / "meta")) == 1


def test_without_metadata_files_nothing_is_written(opened: Open, store: str, warehouse: Path) -> None:
    catalog = opened(store, warehouse, metadata_files="never")
    catalog.namespace("db")
    catalog.create()
    catalog.set("t", x="1")
    assert not warehouse.exists()


def test_a_refused_change_writes_no_file(catalog: Client, warehouse: Path) -> None:
    catalog.create()
    before = files_below(warehouse)
    location = metadata_of(catalog)["location"]
    assert catalog.send("POST", tables("db"), table_request("u", location=location)).status == 403
    assert catalog.send("POST", tables("db"), table_request("t")).status == 409
    requirement = {"type": "assert-current-schema-id", "current-schema-id": 5}
    assert catalog.commit("t", set_properties(a="1"), requirements=(requirement,)).status == 409
    assert files_below(warehouse) == before


@pytest.mark.parametrize(
    "location", ["/proc/x", "/dev/null/x", "foo://bar/x", "file:///tmp/" + "x" * 300, "http://127.0.0.1:1/x"]
)
def test_a_location_that_cannot_be_written_is_refused(catalog: Client, location: str) -> None:
    version = catalog.session.catalog.head().version
    answer = catalog.send("POST", tables("db"), table_request("t", location=location))
    assert answer.kind[0] in (400, 403)
    assert catalog.session.catalog.head().version == version


def test_a_change_whose_file_cannot_be_written_fails_alone(catalog: Client) -> None:
    def create(number: int) -> int:
        rest = {"location": f"/proc/{number}/x"} if number % 2 else {}
        return catalog.send("POST", tables("db"), table_request(f"t{number}", **rest)).status

    statuses = at_once([lambda number=number: create(number) for number in range(16)])
    assert statuses == [400 if number % 2 else 200 for number in range(16)]
    assert catalog.names("db") == sorted(f"t{number}" for number in range(0, 16, 2))


# Purges


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
    assert catalog.send("DELETE", table("t")).status == 204
    assert register(catalog, f"file://{old}").status == 200
    purge(catalog, "r")
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
    other = opened(store, tmp_path / "pond", catalog="pond", realm=realm)
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
    catalog: Client, warehouse: Path
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
