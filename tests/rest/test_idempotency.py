"""Requests that are sent again under the same Idempotency-Key."""

from __future__ import annotations

import json
import uuid
from functools import partial
from pathlib import Path

import pytest

from tests.forking import context, preload
from tests.rest.client import (
    SCHEMA,
    VIEW_VERSION,
    Answer,
    Client,
    at_once,
    connect,
    identifier,
    new_key,
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
from tests.rest.icebergs import elsewhere

preload(__name__)

VIEW = {
    "view-uuid": "0192f0a5-7a7b-4c11-9a5e-0d6f1c2b3a49",
    "format-version": 1,
    "location": "file:///elsewhere/view",
    "current-version-id": 1,
    "versions": [VIEW_VERSION],
    "version-log": [{"timestamp-ms": 1, "version-id": 1}],
    "schemas": [SCHEMA],
}


def requests(folder: Path) -> list[tuple[str, str, object]]:
    """One request of each kind that changes something. In this order, all succeed."""
    made = elsewhere(folder / "elsewhere", appends=1)
    view_file = folder / "elsewhere" / "view.metadata.json"
    view_file.write_text(json.dumps(VIEW))
    change = {"identifier": identifier("t"), "requirements": [], "updates": [set_properties(b="2")]}
    return [
        ("POST", "v1/namespaces", {"namespace": ["n"], "properties": {"a": "1"}}),
        ("POST", f"{path('n')}/properties", {"updates": {"b": "2"}, "removals": ["a", "c"]}),
        ("DELETE", path("n"), None),
        ("POST", tables("db"), table_request("t")),
        ("POST", table("t"), {"requirements": [], "updates": [set_properties(a="1")]}),
        ("POST", "v1/transactions/commit", {"table-changes": [change]}),
        ("POST", "v1/tables/rename", rename("t", "u")),
        ("DELETE", table("u"), None),
        ("POST", f"{path('db')}/register", {"name": "r", "metadata-location": made.metadata_location}),
        ("POST", f"{path('db')}/views", view_request("v")),
        ("POST", "v1/views/rename", rename("v", "w")),
        ("DELETE", view("w"), None),
        ("POST", f"{path('db')}/register-view", {"name": "x", "metadata-location": str(view_file)}),
    ]


def test_every_change_sent_again_is_answered_again_and_done_once(
    opened: Open, store: str, warehouse: Path, tmp_path: Path
) -> None:
    catalog = opened(store, warehouse)
    catalog.namespace("db")
    sent: list[tuple[tuple[str, str, object], str, Answer]] = []
    for request in requests(tmp_path):
        key = new_key()
        sent.append((request, key, catalog.send(*request, key=key)))
        assert sent[-1][2].status < 300, sent[-1]
        assert catalog.send(*request, key=key) == sent[-1][2]
    version = catalog.session.catalog.head().version
    (tmp_path / "elsewhere").rename(tmp_path / "moved")
    again = opened(store, None)
    for request, key, answer in sent:
        assert again.send(*request, key=key) == answer, request
    assert catalog.session.catalog.head().version == version


def _send(store: str, requests: list) -> list:
    """Send requests from a process of its own."""
    client = connect(store, None)
    try:
        return [tuple(client.send(*request, key=key)) for request, key in requests]
    finally:
        client.session.close()


def test_another_process_gives_the_same_answer(opened: Open, warehouse: Path, shared_store: str) -> None:
    catalog = opened(shared_store, warehouse)
    catalog.namespace("db")
    request, key = ("POST", tables("db"), table_request("t")), new_key()
    answer = catalog.send(*request, key=key)
    catalog.set("t", moved="on")
    with context.Pool(1) as pool:
        (again,) = pool.apply(_send, (shared_store, [(request, key)]))
    assert again == tuple(answer)
    assert catalog.load()["metadata"]["properties"]["moved"] == "on"


def test_the_key_of_another_request_is_refused(catalog: Client) -> None:
    key = new_key()
    assert catalog.send("POST", tables("db"), table_request("t"), key=key).status == 200
    others = [
        ("POST", tables("db"), table_request("u")),
        ("POST", tables("db"), {**table_request("t"), "properties": {}}),
        ("DELETE", table("t"), None),
        ("POST", "v1/namespaces", {"namespace": ["n"]}),
    ]
    for request in others:
        assert catalog.send(*request, key=key).kind == (422, "UnprocessableEntityException")
    assert catalog.names("db") == ["t"]


def test_a_purge_is_another_request_than_a_drop(catalog: Client) -> None:
    catalog.create()
    key = new_key()
    assert catalog.send("DELETE", table("t"), key=key).status == 204
    again = catalog.send("DELETE", table("t"), key=key, query={"purgeRequested": "true"})
    assert again.kind == (422, "UnprocessableEntityException")


def test_the_same_key_of_another_principal_is_another_operation(opened: Open, warehouse: Path) -> None:
    store = f"memory:{uuid.uuid4()}"
    one, other = (opened(store, warehouse, principal=name) for name in ("one", "other"))
    one.namespace("db")
    key = new_key()
    assert one.send("POST", tables("db"), table_request("t"), key=key).status == 200
    assert other.send("POST", tables("db"), table_request("t"), key=key).kind[0] == 409
    assert other.send("POST", tables("db"), table_request("u"), key=key).status == 200
    assert one.names("db") == ["t", "u"]


def test_a_refused_request_may_be_sent_again_under_its_key(catalog: Client) -> None:
    key = new_key()
    request = ("POST", tables("later"), table_request("t"))
    assert catalog.send(*request, key=key).status == 404
    catalog.namespace("later")
    assert catalog.send(*request, key=key).status == 200


@pytest.mark.parametrize("shared", [True, False], ids=["one session", "a session each"])
def test_of_concurrent_duplicates_one_is_done_and_all_get_its_answer(
    opened: Open, store: str, warehouse: Path, shared: bool
) -> None:
    first = opened(store, warehouse)
    first.namespace("db")
    for round in range(5):
        clients = [first if shared else opened(store, warehouse) for _ in range(8)]
        key, name = new_key(), f"t{round}"
        before = first.session.catalog.head().head.number
        request = ("POST", tables("db"), table_request(name))
        answers = at_once([partial(client.send, *request, key=key) for client in clients])
        assert answers[0].status == 200
        assert all(answer == answers[0] for answer in answers)
        assert first.session.catalog.head().head.number == before + 1


def test_a_creation_sent_again_does_not_bring_a_dropped_table_back(catalog: Client) -> None:
    key = new_key()
    answer = catalog.send("POST", tables("db"), table_request("t"), key=key)
    catalog.send("DELETE", table("t"))
    assert catalog.send("POST", tables("db"), table_request("t"), key=key) == answer
    assert catalog.names("db") == []


def test_keys_are_remembered_beyond_what_a_commit_embeds(catalog: Client) -> None:
    keys = [new_key() for _ in range(200)]
    for i, key in enumerate(keys):
        assert catalog.send("POST", "v1/namespaces", {"namespace": [f"n{i}"]}, key=key).status == 200
    number = catalog.session.catalog.head().head.number
    for i, key in enumerate(keys):
        assert catalog.send("POST", "v1/namespaces", {"namespace": [f"n{i}"]}, key=key).status == 200
    assert catalog.session.catalog.head().head.number == number


@pytest.mark.parametrize(
    "key",
    ["x", "1", "{}", "\ud800", str(uuid.UUID(int=0)), str(uuid.UUID(int=1, version=4)), "0" * 100_000],
)
def test_a_value_that_is_not_a_uuidv7_is_refused(catalog: Client, key: str) -> None:
    answer = catalog.send("POST", "v1/namespaces", {"namespace": ["n"]}, key=key)
    assert answer.kind == (400, "BadRequestException")
    assert catalog.ok("GET", "v1/namespaces") == {"namespaces": [["db"]]}
