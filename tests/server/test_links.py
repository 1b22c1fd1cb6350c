"""A server refuses symbolic links below the warehouse, unless it was started to follow links to targets inside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.rest.client import (
    Client,
    files_below,
    path,
    set_properties,
    table,
    table_request,
    tables,
    view_request,
)
from tests.rest.icebergs import elsewhere
from tests.server.servers import Server, client, options

FORBIDDEN = (403, "ForbiddenException")


@pytest.fixture
def warehouse(folder: Path, namespace: str) -> Path:
    """A new folder in the warehouse of the shared server."""
    made = folder / "warehouse" / f"links-{namespace}"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder outside the warehouse, with a file."""
    made = tmp_path / "outside"
    made.mkdir()
    (made / "precious").write_text("mine")
    return made


def name_statistics(
    ann: Client, namespace: str, name: str, location: str, *, manifests: str | None = None
) -> None:
    """Make a table name a file as its statistics file.

    Args:
        manifests: folder of the manifest list that the table names; by default in the table's location.
    """
    metadata = ann.load(name, (namespace,))["metadata"]
    snapshot = {
        "snapshot-id": 1,
        "timestamp-ms": metadata["last-updated-ms"],
        "sequence-number": 1,
        "manifest-list": f"{manifests or metadata['location']}/none.avro",
        "summary": {"operation": "append"},
        "schema-id": 0,
    }
    statistics = {
        "snapshot-id": 1,
        "statistics-path": location,
        "file-size-in-bytes": 1,
        "file-footer-size-in-bytes": 1,
        "blob-metadata": [],
    }
    updates = [
        {"action": "add-snapshot", "snapshot": snapshot},
        {"action": "set-statistics", "statistics": statistics},
    ]
    ann.ok("POST", table(name, (namespace,)), {"requirements": [], "updates": updates})


def purge(ann: Client, namespace: str, name: str) -> None:
    ann.ok("DELETE", table(name, (namespace,)), query={"purgeRequested": "true"})


def test_no_table_or_view_is_put_behind_a_link(
    ann: Client, namespace: str, warehouse: Path, outside: Path
) -> None:
    ann.create("t", (namespace,))
    (warehouse / "out").symlink_to(outside)
    (warehouse / "inside").symlink_to(warehouse.parent)
    (warehouse / "chain").symlink_to(warehouse / "out")
    (warehouse / "nowhere").symlink_to(outside / "none")
    (warehouse / "loop").symlink_to(warehouse / "loop")
    before = files_below(outside)
    for at in ("out", "out/new", "out/a/b/c", "inside/new", "chain/new", "nowhere", "loop/new"):
        place = f"file://{warehouse}/{at}"
        for request in (
            table_request("x", location=place),
            table_request("x", location=place, stage_create=True),
            table_request("x", location=f"{warehouse}//{at}/"),
            table_request("x", properties={"write.metadata.path": place}),
            table_request("x", properties={"write.data.path": place}),
        ):
            assert ann.send("POST", tables(namespace), request).kind == FORBIDDEN, request
        body = {"requirements": [], "updates": [set_properties(**{"write.metadata.path": place})]}
        assert ann.send("POST", table("t", (namespace,)), body).kind == FORBIDDEN
        view = view_request("v", location=place)
        assert ann.send("POST", f"{path(namespace)}/views", view).kind == FORBIDDEN
    assert files_below(outside) == before
    assert [made.name for made in outside.iterdir()] == ["precious"]  # no folder either
    assert ann.names(namespace) == ["t"]


def test_a_namespace_behind_a_link_gets_no_table(
    ann: Client, namespace: str, warehouse: Path, outside: Path
) -> None:
    (warehouse / "out").symlink_to(outside)
    ann.namespace(namespace, "inner", properties={"location": f"file://{warehouse}/out/inner"})
    assert ann.send("POST", tables(namespace, "inner"), table_request("x")).kind == FORBIDDEN
    assert files_below(outside) == {"precious"}


def test_no_file_behind_a_link_is_registered(
    ann: Client, namespace: str, warehouse: Path, tmp_path: Path
) -> None:
    made = Path(elsewhere(tmp_path / "other").metadata_location.removeprefix("file://"))
    (warehouse / "folder").symlink_to(made.parent)
    (warehouse / "file.metadata.json").symlink_to(made)
    (warehouse / "passwd").symlink_to("/etc/passwd")
    for place in (f"folder/{made.name}", "file.metadata.json", "passwd"):
        for kind in ("register", "register-view"):
            body = {"name": "r", "metadata-location": f"file://{warehouse}/{place}"}
            answer = ann.send("POST", f"{path(namespace)}/{kind}", body)
            assert answer.kind == FORBIDDEN, place
            assert "root:" not in answer.error["message"]


def test_a_purge_deletes_nothing_behind_a_link(
    ann: Client, namespace: str, warehouse: Path, outside: Path
) -> None:
    ann.create("live", (namespace,))
    live = Path(ann.load("live", (namespace,))["metadata-location"].removeprefix("file://"))
    (warehouse / "out").symlink_to(outside)
    (warehouse / "chain").symlink_to(warehouse / "out")
    (warehouse / "live").symlink_to(live.parent)
    (warehouse / "last").symlink_to(outside / "precious")
    for number, at in enumerate(("out/precious", "chain/precious", f"live/{live.name}", "last")):
        ann.create(f"t{number}", (namespace,))
        name_statistics(ann, namespace, f"t{number}", f"file://{warehouse}/{at}")
        purge(ann, namespace, f"t{number}")
    assert (outside / "precious").read_text() == "mine"
    assert live.exists()
    assert (warehouse / "last").is_symlink()


def test_a_purge_deletes_nothing_where_a_table_in_an_allowed_location_became_a_link(
    tmp_path: Path, outside: Path
) -> None:
    warehouse, allowed = tmp_path / "warehouse", tmp_path / "allowed"
    for made in (warehouse, allowed / "t"):
        made.mkdir(parents=True)
    allow = ("--allow-location", str(allowed))
    with Server(f"sqlite://{tmp_path}/c.db", *options(warehouse, *allow)) as server:
        ann = client(server)
        ann.namespace("db")
        ann.ok("POST", tables("db"), table_request("t", location=f"file://{allowed}/t"))
        name_statistics(ann, "db", "t", f"file://{allowed}/t/precious", manifests=f"file://{warehouse}")
        (allowed / "t").rename(allowed / "aside")
        (allowed / "t").symlink_to(outside)
        purge(ann, "db", "t")
        server.stop()
    assert (outside / "precious").read_text() == "mine"


def test_no_metadata_is_written_through_a_folder_that_became_a_link(
    ann: Client, namespace: str, outside: Path
) -> None:
    ann.create("t", (namespace,))
    metadata = Path(ann.load("t", (namespace,))["metadata-location"].removeprefix("file://")).parent
    metadata.rename(metadata.with_name("aside"))
    metadata.symlink_to(outside)
    body = {"requirements": [], "updates": [set_properties(a="1")]}
    assert ann.send("POST", table("t", (namespace,)), body).kind == FORBIDDEN
    assert files_below(outside) == {"precious"}
    assert "a" not in ann.load("t", (namespace,))["metadata"]["properties"]
    metadata.unlink()
    metadata.with_name("aside").rename(metadata)
    assert ann.send("POST", table("t", (namespace,)), body).status == 200


def test_no_manifest_list_behind_a_link_is_read_when_an_append_is_rebased(
    ann: Client, namespace: str, warehouse: Path, tmp_path: Path
) -> None:
    from tests.server.test_locations import append

    os.mkfifo(tmp_path / "fifo")
    (warehouse / "out").symlink_to(tmp_path)
    ann.create("t", (namespace,), properties={"polaris.append-rebase": "true"})
    assert append(ann, namespace, 1, f"file://{warehouse}/out/fifo") == 200
    assert append(ann, namespace, 2, f"file://{warehouse}/out/fifo") in (403, 409)


def test_a_server_that_follows_links_follows_those_that_stay_inside(tmp_path: Path, outside: Path) -> None:
    warehouse, real = tmp_path / "warehouse", tmp_path / "real"
    (real / "disk").mkdir(parents=True)
    warehouse.symlink_to(real)  # the operator may reach the warehouse through a link
    (real / "inside").symlink_to(real / "disk")
    (real / "out").symlink_to(outside)
    more = ["--follow-links", "--token", "env:TOKEN"]
    given = [one for one in options(f"file://{warehouse}", *more) if one != "--insecure"]
    with Server(f"sqlite://{tmp_path}/store.db", *given, env={"TOKEN": "t" * 16}) as server:
        ann = client(server, "t" * 16)
        ann.namespace("db")
        ann.create("t", location=f"file://{warehouse}/inside/t")
        ann.set("t", a="1")
        made = Path(ann.load("t")["metadata-location"].removeprefix("file://"))
        assert (real / "disk" / "t" / "metadata" / made.name).exists()
        body = {"name": "r", "metadata-location": f"file://{warehouse}/out/precious"}
        assert ann.send("POST", f"{path('db')}/register", body).kind == FORBIDDEN
        for place in ("out", "out/x"):
            request = table_request("x", location=f"file://{warehouse}/{place}")
            assert ann.send("POST", tables("db"), request).kind == FORBIDDEN
        name_statistics(ann, "db", "t", f"file://{warehouse}/out/precious")
        purge(ann, "db", "t")
    assert files_below(real / "disk") == set()
    assert files_below(outside) == {"precious"}
