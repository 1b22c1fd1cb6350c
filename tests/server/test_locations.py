"""Over HTTP, clients may only name locations in the warehouse and in allowed folders. In process, they may name any."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.imports.directory import DirectoryTree
from polaris_spark.rest.access import Caller
from polaris_spark.rest.handler import handle
from tests.catalog.imports.support import run, table_in
from tests.rest.client import (
    Client,
    connect,
    path,
    set_properties,
    table,
    table_request,
    tables,
    view_request,
)
from tests.rest.icebergs import elsewhere

FORBIDDEN = (403, "ForbiddenException")


def outside(folder: Path) -> list[str]:
    """Locations that no client may name; those that are not well-formed are refused with 400."""
    return [
        "/etc/x",
        "file:///etc/x",
        "FILE:/etc/x",
        "file://localhost/etc/x",
        f"{folder}/warehouse-2/x",
        f"{folder}/warehouse%2F../x",
        f"{folder}/warehous",
        f"{folder}",
        f"file:{folder}/allowedx",
        f"{folder}//allowed2//x",
        "s3://bucket/x",
        "http://169.254.169.254/latest/meta-data",
        f"hdfs://{folder}/allowed",
    ]


def unsound(folder: Path) -> list[str]:
    """Locations that are invalid in process, too."""
    return [
        f"{folder}/warehouse/../x",
        f"file://{folder}/allowed/a/../../../etc",
        f"file://evil.example{folder}/allowed/x",
        f"//localhost{folder}/warehouse/x",
        f"s3://{folder}/warehouse/x",
        "warehouse/x",
        "file:x",
        f"{folder}/allowed/\n/../x",
        "\0",
    ]


def test_tables_are_created_and_moved_within_what_is_allowed(
    ann: Client, namespace: str, folder: Path
) -> None:
    ann.create("t", (namespace,))
    ann.create("allowed", (namespace,), location=f"file:{folder}//allowed//{namespace}/t")
    ann.create("inside", (namespace,), location=f"{folder}/warehouse/{namespace}/inside")
    for place in outside(folder):
        for request in (
            table_request("x", location=place),
            table_request("x", location=place, stage_create=True),
            table_request("x", properties={"write.data.path": place}),
            table_request("x", properties={"write.metadata.path": place}),
            table_request("x", properties={"write.object-storage.path": place}),
        ):
            assert ann.send("POST", tables(namespace), request).kind == FORBIDDEN, request
        for update in (
            {"action": "set-location", "location": place},
            set_properties(**{"write.data.path": place}),
            set_properties(**{"write.metadata.path": place}),
        ):
            body = {"requirements": [], "updates": [update]}
            assert ann.send("POST", table("t", (namespace,)), body).kind == FORBIDDEN, update
            change = {**body, "identifier": {"namespace": [namespace], "name": "t"}}
            assert ann.send("POST", "v1/transactions/commit", {"table-changes": [change]}).kind == FORBIDDEN
        views = f"{path(namespace)}/views"
        assert ann.send("POST", views, view_request("v", location=place)).kind == FORBIDDEN
    for place in unsound(folder):
        answer = ann.send("POST", tables(namespace), table_request("x", location=place))
        assert answer.status in (400, 403), place
    assert ann.names(namespace) == ["allowed", "inside", "t"]


def test_a_namespace_does_not_lead_outside(ann: Client, folder: Path, namespace: str) -> None:
    for number, place in enumerate(outside(folder)):
        ann.namespace(namespace, f"n{number}", properties={"location": place})
        answer = ann.send("POST", tables(namespace, f"n{number}"), table_request("x"))
        assert answer.kind == FORBIDDEN, place


def test_files_outside_are_neither_read_nor_reported(ann: Client, namespace: str, folder: Path) -> None:
    made = elsewhere(folder / f"elsewhere-{namespace}")
    refusals = set()
    for place in (made.metadata_location, "/etc/passwd", "/none/such.metadata.json", *outside(folder)):
        for kind in ("register", "register-view"):
            answer = ann.send("POST", f"{path(namespace)}/{kind}", {"name": "r", "metadata-location": place})
            assert answer.kind == FORBIDDEN, place
            refusals.add(answer.error["message"].replace(place.removeprefix("file://"), "PLACE"))
    assert not any("root:" in text or "No such file" in text for text in refusals)


def test_what_is_allowed_can_be_registered(ann: Client, namespace: str, folder: Path) -> None:
    made = elsewhere(folder / "allowed" / f"of-{namespace}")
    body = {"name": "r", "metadata-location": made.metadata_location}
    assert ann.ok("POST", f"{path(namespace)}/register", body)["metadata"]["table-uuid"] == str(
        made.metadata.table_uuid
    )


def test_an_allowed_file_does_not_lead_outside(ann: Client, namespace: str, folder: Path) -> None:
    made = elsewhere(folder / "allowed" / f"leads-{namespace}")
    metadata = json.loads(Path(made.metadata_location.removeprefix("file://")).read_text())
    file = folder / "allowed" / f"{namespace}.metadata.json"
    for change in ({"location": "/etc/x"}, {"properties": {"write.data.path": "/etc/x"}}):
        file.write_text(json.dumps({**metadata, **change}))
        body = {"name": "r", "metadata-location": str(file)}
        assert ann.send("POST", f"{path(namespace)}/register", body).kind == FORBIDDEN


def append(ann: Client, namespace: str, id: int, manifest_list: object, parent: int | None = None) -> int:
    """Append a snapshot to the table `t`, as if `parent` were current, and return the status."""
    metadata = ann.load("t", (namespace,))["metadata"]
    snapshot = {
        "snapshot-id": id,
        "timestamp-ms": metadata["last-updated-ms"],
        "sequence-number": metadata["last-sequence-number"] + 1,
        "manifest-list": str(manifest_list),
        "summary": {"operation": "append"},
        "schema-id": 0,
    }
    moved = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": id}
    body = {
        "requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": parent}],
        "updates": [{"action": "add-snapshot", "snapshot": snapshot}, moved],
    }
    return ann.send("POST", table("t", (namespace,)), body).status


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """A named pipe outside the warehouse. Reading it would block forever."""
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


def test_a_purge_reads_nothing_outside(ann: Client, namespace: str, fifo: Path) -> None:
    ann.create("t", (namespace,))
    assert append(ann, namespace, 1, fifo) == 200
    ann.ok("DELETE", table("t", (namespace,)), query={"purgeRequested": "true"})
    assert ann.names(namespace) == []
    assert fifo.exists()


def test_rebasing_an_append_reads_nothing_outside(ann: Client, namespace: str, fifo: Path) -> None:
    ann.create("t", (namespace,), properties={"polaris.append-rebase": "true"})
    assert append(ann, namespace, 1, fifo) == 200
    assert append(ann, namespace, 2, fifo) == 409


def test_a_table_that_lies_outside_already_can_be_used(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    direct = connect("memory:outside", tmp_path / "warehouse")
    request.addfinalizer(direct.session.close)
    direct.namespace("db")
    direct.create("t", location=str(tmp_path / "other"))
    catalog: Catalog = direct.session.catalog.restricted([])

    def commit(**properties: str) -> int:
        body = json.dumps({"requirements": [], "updates": [set_properties(**properties)]})
        return handle(catalog, "POST", table("t"), body=body, caller=Caller("ann")).status

    assert commit(a="1") == 200
    assert commit(**{"write.data.path": str(tmp_path / "other" / "data")}) == 200
    assert commit(**{"write.data.path": str(tmp_path / "other2")}) == 403


@pytest.mark.parametrize(
    "change", [{"location": "/etc/x"}, {"properties": {"write.metadata.path": "/etc/x"}}]
)
def test_a_lazily_imported_table_cannot_reach_outside_its_import_location(
    tmp_path: Path, request: pytest.FixtureRequest, change: dict[str, object]
) -> None:
    direct = connect(f"sqlite://{tmp_path}/store.db", tmp_path / "warehouse")
    request.addfinalizer(direct.session.close)
    files = {
        name: Path(table_in(tmp_path, "lake", name).removeprefix("file://")) for name in ("sound", "led")
    }
    rows = run(direct, DirectoryTree(f"{tmp_path}/lake", {}), lazy=True, into=("db",))
    assert [row.status for row in rows] == ["registered", "registered"]
    metadata = json.loads(files["led"].read_text())
    files["led"].write_text(json.dumps({**metadata, **change}))
    catalog: Catalog = direct.session.catalog.restricted([])

    def load(name: str) -> tuple[int, str]:
        answer = handle(catalog, "GET", table(name), caller=Caller("ann"))
        return answer.status, answer.body

    assert load("sound")[0] == 200
    status, said = load("led")
    assert status == 403
    assert "neither below the catalog's warehouse" in said
    assert direct.load("led")["metadata"]["table-uuid"] == metadata["table-uuid"]
