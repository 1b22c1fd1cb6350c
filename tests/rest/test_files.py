"""Files that the catalog reads and writes in a warehouse: registered metadata files, and its own."""

from __future__ import annotations

import gzip
import json
import os
import uuid
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from polaris_spark.catalog.tables import metadata_files
from tests.rest.client import (
    Client,
    at_once,
    files_below,
    path,
    rename,
    set_properties,
    table,
    table_request,
    tables,
    view,
    view_request,
)
from tests.rest.conftest import Open
from tests.rest.icebergs import ROWS, elsewhere, open_table
from tests.rest.registered import MODES, metadata_of, register

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
    monkeypatch.setattr(metadata_files, "MAX_METADATA_BYTES", len(text) - 1)
    refused = register(catalog, str(file))
    assert refused.kind == (400, "BadRequestException")
    assert f"more than {len(text) - 1} bytes" in refused.error["message"]
    monkeypatch.setattr(metadata_files, "MAX_METADATA_BYTES", len(text))
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
def test_a_table_dropped_without_purge_can_be_registered_again(
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
    again = register(catalog, made.metadata_location, "again")
    assert again.kind == (403, "ForbiddenException")
    assert "which belongs to table db.r;" in again.error["message"]
    catalog.ok("POST", "v1/tables/rename", rename("r", "renamed"))
    renamed = register(catalog, made.metadata_location, "again").error["message"]
    assert "which belongs to table db.renamed;" in renamed
    assert catalog.names("db") == ["renamed"]


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
def test_a_file_that_cannot_be_read_is_refused(catalog: Client, location: str) -> None:
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
def test_a_value_that_is_not_metadata_is_refused(
    catalog: Client, tmp_path: Path, name: str, content: bytes
) -> None:
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
