"""A server follows the catalogs of its realm, and offers the management API of catalogs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import polaris_spark
from polaris_spark import Session
from polaris_spark.clock import ManualClock
from polaris_spark.config import Properties
from polaris_spark.server import catalogs
from polaris_spark.server.catalogs import DROPPED_MS, NAMES_MS, ServedCatalogs
from polaris_spark.testing.waiting import PATIENCE_S, wait_until
from tests.rest.client import Client, table_request
from tests.server.servers import Remote, Server, client, token_file

ADMINISTRATOR, CLIENT = "dddddddddddddddd", "cccccccccccccccc"
CATALOGS = "api/management/v1/catalogs"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server with tokens, which allows the folder `allowed`."""
    tokens = token_file(tmp_path, {"root": f"{ADMINISTRATOR} administrator", "ann": CLIENT})
    options = ["--warehouse", str(tmp_path / "warehouse"), "--allow-location", str(tmp_path / "allowed")]
    with Server(f"sqlite://{tmp_path}/store.db", "--token-file", str(tokens), *options) as started:
        yield started


@pytest.fixture
def admin(server: Server) -> Client:
    """A client with the token of an administrator."""
    return client(server, ADMINISTRATOR)


@pytest.fixture
def elsewhere(server: Server, tmp_path: Path) -> Iterator[Session]:
    """A session of another process than the server."""
    with polaris_spark.connect(store=f"sqlite://{tmp_path}/store.db", create=False) as session:
        yield session


def managed(folder: Path, /, name: object, **more: Any) -> dict[str, Any]:
    """The request to create a catalog."""
    properties = {"default-base-location": str(folder / "allowed" / str(name))}
    storage = {"storageType": "FILE", "allowedLocations": [str(folder / "allowed" / "shared")]}
    return {
        "catalog": {
            "type": "INTERNAL",
            "name": name,
            "properties": properties,
            "storageConfigInfo": storage,
            **more,
        }
    }


def eventually(check: Any) -> None:
    """Wait until a check holds."""
    until = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_catalog_is_created_read_changed_and_dropped(admin: Client, tmp_path: Path) -> None:
    made = admin.send("POST", CATALOGS, managed(tmp_path, "a"))
    assert made.status == 201
    assert admin.ok("GET", f"{CATALOGS}/a") == made.body
    assert [one["name"] for one in admin.ok("GET", CATALOGS)["catalogs"]] == ["a", "polaris"]
    body = made.body
    assert (body["type"], body["storageConfigInfo"]["storageType"]) == ("INTERNAL", "FILE")
    assert body["properties"] == {"default-base-location": f"file://{tmp_path}/allowed/a"}
    admin.ok("POST", "v1/a/namespaces", {"namespace": ["db"]})
    change = {
        "currentEntityVersion": body["entityVersion"],
        "properties": {**body["properties"], "gc.enabled": "false"},
    }
    changed = admin.ok("PUT", f"{CATALOGS}/a", change)
    assert changed["properties"]["gc.enabled"] == "false"
    assert changed["storageConfigInfo"] == body["storageConfigInfo"]
    assert admin.send("PUT", f"{CATALOGS}/a", change).status == 409
    moved = {
        "currentEntityVersion": changed["entityVersion"],
        "properties": {"default-base-location": str(tmp_path / "allowed" / "b")},
    }
    assert admin.send("PUT", f"{CATALOGS}/a", moved).status == 400
    assert admin.send("DELETE", f"{CATALOGS}/a").status == 400  # not empty
    assert admin.send("DELETE", "v1/a/namespaces/db").status == 204
    assert admin.send("DELETE", f"{CATALOGS}/a").status == 204
    assert admin.send("GET", f"{CATALOGS}/a").status == 404
    assert admin.send("GET", "v1/a/namespaces").status == 404


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"type": "EXTERNAL"}, 400),
        ({"properties": {}}, 400),
        ({"properties": {"default-base-location": "/etc"}}, 403),
        ({"storageConfigInfo": {"storageType": "S3"}}, 400),
        ({"storageConfigInfo": {"storageType": "FILE", "roleArn": "x"}}, 400),
        ({"name": "polaris"}, 409),
        ({"name": 1}, 400),
    ],
)
def test_a_catalog_that_cannot_be_managed_is_refused(
    admin: Client, tmp_path: Path, more: dict[str, Any], status: int
) -> None:
    assert admin.send("POST", CATALOGS, managed(tmp_path, **{"name": "a", **more})).status == status
    assert [one["name"] for one in admin.ok("GET", CATALOGS)["catalogs"]] == ["polaris"]


def test_only_an_administrator_manages_catalogs(server: Server, tmp_path: Path) -> None:
    ann = client(server, CLIENT)
    for method, path in (
        ("GET", CATALOGS),
        ("POST", CATALOGS),
        ("GET", f"{CATALOGS}/polaris"),
        ("PUT", f"{CATALOGS}/polaris"),
        ("DELETE", f"{CATALOGS}/polaris"),
    ):
        assert ann.send(method, path, managed(tmp_path, "a")).status == 403
    assert Remote(server.uri, None).request("GET", CATALOGS)[0] == 401


def test_tables_of_a_managed_catalog_lie_in_its_allowed_locations(admin: Client, tmp_path: Path) -> None:
    admin.send("POST", CATALOGS, managed(tmp_path, "a"))
    admin.ok("POST", "v1/a/namespaces", {"namespace": ["db"]})
    for folder, status in (("shared", 200), ("other", 403)):
        body = {**table_request(folder), "location": str(tmp_path / "allowed" / folder / "t")}
        assert admin.send("POST", "v1/a/namespaces/db/tables", body).status == status


def test_a_server_sees_what_other_processes_do_with_catalogs(
    admin: Client, elsewhere: Session, tmp_path: Path
) -> None:
    elsewhere.catalogs.create("a", {"warehouse": str(tmp_path / "a")})
    admin.ok("POST", "v1/a/namespaces", {"namespace": ["first"]})  # at once
    elsewhere.catalogs.rename("a", "b")
    assert admin.ok("GET", "v1/b/namespaces")["namespaces"] == [["first"]]
    elsewhere.catalogs.create("a", {"warehouse": str(tmp_path / "a2")})
    begun = time.monotonic()
    eventually(lambda: admin.ok("GET", "v1/a/namespaces")["namespaces"] == [])
    assert time.monotonic() - begun < NAMES_MS / 1_000 + PATIENCE_S / 10
    elsewhere.catalogs.drop("b", cascade=True)
    answer = admin.send("GET", "v1/b/namespaces")
    assert answer.status == 404  # at once
    elsewhere.catalogs.undrop("b")
    eventually(lambda: admin.send("GET", "v1/b/namespaces").status == 200)
    config = admin.ok("GET", "v1/config", query={"warehouse": "b"})
    assert config["overrides"] == {"prefix": "b"}


def test_a_server_goes_on_when_its_default_catalog_is_renamed_dropped_and_created_again(
    admin: Client, elsewhere: Session, tmp_path: Path
) -> None:
    admin.ok("POST", "v1/namespaces", {"namespace": ["first"]})
    elsewhere.catalogs.rename("polaris", "renamed")
    assert admin.ok("GET", "v1/renamed/namespaces")["namespaces"] == [["first"]]
    assert admin.ok("GET", "v1/namespaces")["namespaces"] == [["first"]]
    elsewhere.catalogs.drop("renamed", cascade=True)
    answer = admin.send("GET", "v1/namespaces")
    assert (answer.status, "was dropped" in answer.error["message"]) == (404, True)
    elsewhere.catalogs.create("polaris", {"warehouse": str(tmp_path / "w2")})
    eventually(lambda: admin.send("GET", "v1/namespaces").status == 200)
    assert admin.ok("GET", "v1/namespaces")["namespaces"] == []


def test_a_server_closes_the_sessions_of_dropped_catalogs(tmp_path: Path) -> None:
    clock = ManualClock(int(time.time() * 1_000))
    session = polaris_spark.connect(
        store=f"sqlite://{tmp_path}/c.db", warehouse=str(tmp_path / "w"), clock=clock
    )
    served = ServedCatalogs(session)
    opened = []
    for name in ("dropped", "restored", "kept"):
        session.catalogs.create(name, {"warehouse": str(tmp_path / name)})
        opened.append(served.choose(name))
    session.catalogs.drop("dropped")
    session.catalogs.drop("restored")
    assert served.choose("dropped") is served.default
    clock.advance(DROPPED_MS - NAMES_MS)
    session.catalogs.undrop("restored")
    assert served.choose("restored") is opened[1]
    clock.advance(NAMES_MS)
    assert served.choose("kept") is opened[2]
    wait_until(lambda: opened[0]._closed.is_set(), "the session is closed")
    for one, name in zip(opened[1:], ("restored", "kept"), strict=True):
        assert served.choose(name) is one
        assert one.request("GET", "v1/namespaces")[0] == 200
    session.catalogs.undrop("dropped")
    assert served.choose("dropped").request("GET", "v1/namespaces")[0] == 200
    served.close()
    assert all(one._closed.is_set() for one in opened)


def test_a_catalog_that_is_slow_to_open_does_not_delay_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = polaris_spark.connect(store=f"sqlite://{tmp_path}/c.db", warehouse=str(tmp_path / "w"))
    for name in ("slow", "quick"):
        session.catalogs.create(name, {"warehouse": str(tmp_path / name)})
    served, begun, go_on = ServedCatalogs(session), threading.Event(), threading.Event()
    open_session = catalogs.open_session

    def slow(properties: Properties, *more: Any, **options: Any) -> Session:
        if properties.catalog == "slow":
            begun.set()
            assert go_on.wait(PATIENCE_S)
        return open_session(properties, *more, **options)

    monkeypatch.setattr(catalogs, "open_session", slow)
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(served.choose, "slow") for _ in range(2)]
        assert begun.wait(PATIENCE_S)
        assert served.choose("quick").request("GET", "v1/namespaces")[0] == 200
        assert served.choose("polaris") is served.default
        go_on.set()
        one, two = (found.result() for found in waiting)
    assert one is two
    served.close()
    assert one._closed.is_set()


def test_a_catalog_that_is_opened_while_its_server_ends_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = polaris_spark.connect(store=f"sqlite://{tmp_path}/c.db", warehouse=str(tmp_path / "w"))
    session.catalogs.create("a", {"warehouse": str(tmp_path / "a")})
    served, open_session = ServedCatalogs(session), catalogs.open_session

    def late(*arguments: Any, **more: Any) -> Session:
        found = open_session(*arguments, **more)
        served.close()
        return found

    monkeypatch.setattr(catalogs, "open_session", late)
    assert served.choose("a")._closed.is_set()
