"""The same requests in process and over HTTP get the same answers."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rest.client import (
    SCHEMA,
    Client,
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
from tests.server.servers import Server, client, options

HOSTILE = [
    "a/b",
    "%2F",
    "%",
    "+",
    "a b",
    "..",
    ".",
    "a\\b",
    'q"',
    "é",
    "日本語",
    "🧊",
    "\u202e",
    "\n",
    "a\nb",
    "\r\n",
    "\0",
    "\x85",
    "\u2028",
    "#?&;=",
]
KEY = new_key()

COMMIT = {"requirements": [], "updates": [set_properties(a="1")]}
REQUESTS: list[tuple[str, str, Any, dict[str, str], dict[str, str]]] = [
    (*request, {}, {}) if len(request) == 3 else (*request, {}) if len(request) == 4 else request  # type: ignore[misc]  # filled up
    for request in [
        ("GET", "v1/config", None),
        ("GET", "v1/config", None, {"warehouse": "polaris"}),
        ("GET", "v1/config", None, {"warehouse": "nope"}),
        ("POST", "v1/namespaces", {"namespace": ["db"], "properties": {"a": "1"}}),
        ("POST", "v1/namespaces", {"namespace": ["db"]}),
        ("POST", "v1/namespaces", {"namespace": []}),
        ("POST", "v1/namespaces", {"namespace": "db"}),
        ("POST", "v1/namespaces", "{"),
        ("POST", "v1/namespaces", None),
        ("POST", "v1/namespaces", {"namespace": ["no", "parent"]}),
        ("POST", "v1/namespaces", {"namespace": ["system"]}),
        ("GET", "v1/namespaces", None, {"parent": "db"}),
        ("GET", "v1/namespaces", None, {"parent": "none"}),
        ("GET", "v1/namespaces", None, {"pageSize": "x"}),
        ("GET", "v1/namespaces", None, {"pageToken": "junk"}),
        ("GET", path("db"), None),
        ("HEAD", path("db"), None),
        ("HEAD", path("none"), None),
        ("POST", path("db") + "/properties", {"updates": {"b": "2"}, "removals": ["a", "z"]}),
        ("POST", path("db") + "/properties", {"updates": {"b": "2"}, "removals": ["b"]}),
        ("POST", tables("db"), table_request("t"), {}, {"Idempotency-Key": KEY}),
        ("POST", tables("db"), table_request("t"), {}, {"Idempotency-Key": KEY}),
        ("POST", tables("db"), table_request("other"), {}, {"Idempotency-Key": KEY}),
        ("POST", tables("db"), table_request("t"), {}, {"Idempotency-Key": "junk"}),
        ("POST", tables("db"), table_request("t")),
        ("POST", tables("db"), table_request("staged", stage_create=True)),
        ("POST", tables("db"), {"name": "bad", "schema": {"type": "struct", "fields": [{}]}}),
        ("POST", tables("db"), table_request("up", location="/a/../b")),
        ("POST", tables("none"), table_request("t")),
        ("GET", tables("db"), None),
        ("GET", tables("db"), None, {"pageSize": "1", "pageToken": ""}),
        ("GET", table("t"), None),
        ("GET", table("t"), None, {"snapshots": "refs"}),
        ("GET", table("t"), None, {"snapshots": "some"}),
        ("GET", table("t"), None, {}, {"If-None-Match": "*"}),
        ("HEAD", table("t"), None),
        ("HEAD", table("none"), None),
        ("GET", table("none"), None),
        ("POST", table("t"), COMMIT),
        ("POST", table("t"), {"requirements": [{"type": "assert-create"}], "updates": []}),
        ("POST", table("t"), {"requirements": [], "updates": [{"action": "junk"}]}),
        ("POST", table("t"), {**COMMIT, "identifier": identifier("other")}),
        ("POST", table("t"), "[" * 5_000),
        ("POST", "v1/transactions/commit", {"table-changes": [{**COMMIT, "identifier": identifier("t")}]}),
        ("POST", "v1/transactions/commit", {"table-changes": [COMMIT]}),
        ("POST", "v1/tables/rename", rename("t", "u")),
        ("POST", "v1/tables/rename", rename("t", "u")),
        ("POST", "v1/tables/rename", rename("u", "t", ("none",))),
        ("POST", path("db") + "/register", {"name": "r", "metadata-location": "{warehouse}/none/v1.metadata.json"}),
        ("POST", path("db") + "/views", view_request("v")),
        ("POST", path("db") + "/views", view_request("v")),
        ("GET", view("v"), None),
        ("HEAD", view("none"), None),
        ("POST", view("v"), {"requirements": [], "updates": [set_properties(a="1")]}),
        ("POST", "v1/views/rename", rename("v", "w")),
        ("DELETE", view("w"), None),
        ("DELETE", path("db"), None),
        *(("POST", tables("db"), table_request(name)) for name in HOSTILE),
        *(("GET", table(name), None) for name in HOSTILE),
        *(("POST", "v1/namespaces", {"namespace": [name]}) for name in HOSTILE),
        *(("HEAD", path(name), None) for name in HOSTILE),
        *(("GET", "v1/namespaces", None, {"parent": name}) for name in HOSTILE),
        ("GET", "v1/polaris/namespaces", None),
        ("GET", "v1/none/namespaces", None),
        ("GET", "v1/none/config", None),
        ("GET", "v1/%ff/namespaces", None),
        ("GET", "v1/namespaces/%ff", None),
        ("GET", "v1/namespaces/%1F", None),
        ("GET", "v1/namespaces//tables", None),
        ("GET", "v2/config", None),
        ("GET", "v1", None),
        ("GET", "v1/nope/nope/nope/nope", None),
        ("PUT", "v1/namespaces", None),
        ("DELETE", "v1/config", None),
        ("PATCH", table("u"), COMMIT),
        ("POST", "v1/oauth/tokens", None),
        ("DELETE", table("u"), None, {"purgeRequested": "true"}),
        ("DELETE", table("u"), None),
    ]
]  # fmt: skip  # a table reads as one


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Path, Client]]:
    """A catalog in process and an equal one over HTTP, by the folders of their warehouses."""
    here, there = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("there")
    direct = connect(f"sqlite://{here / 'store.db'}", here / "warehouse", catalog="polaris")
    with Server(f"sqlite://{there / 'store.db'}", *options(there / "warehouse")) as server:
        yield {here / "warehouse": direct, there / "warehouse": client(server)}
    direct.session.close()


def alike(answer: tuple[int, dict[str, str], str]) -> tuple[int, dict[str, str], Any]:
    """Return an answer without the values that differ between stores: times, UUIDs, ids, folders."""
    status, headers, body = answer
    kept = {name.lower(): value for name, value in headers.items()}
    shown = {name: kept[name] for name in ("content-type", "etag") if name in kept}
    if "etag" in shown:
        shown["etag"] = re.sub(r"[0-9a-f]+-", "", shown["etag"].removeprefix("W/"))
    body = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", body)
    body = re.sub(r"/[^\"]*/(here|there)\d*/", "/FOLDER/", body)
    body = re.sub(r"(-ms\":|timestamp-ms\": ?)\d+", r"\1MS", body)
    return status, shown, body


@pytest.mark.parametrize(
    "number", range(len(REQUESTS)), ids=lambda n: f"{n} {REQUESTS[n][0]} {REQUESTS[n][1]}"[:60]
)
def test_both_transports_answer_alike(both: dict[Path, Client], number: int) -> None:
    method, where, body, query, headers = REQUESTS[number]
    text = body if body is None or isinstance(body, str) else json.dumps(body)
    direct, remote = (
        alike(
            one.session.request(
                method, where, query, text and text.replace("{warehouse}", str(warehouse)), headers
            )
        )
        for warehouse, one in both.items()
    )
    if method == "HEAD":
        direct = (*direct[:2], "")  # an answer to HEAD has no body (RFC 9110, 9.3.2)
    assert remote == direct


def test_large_responses_are_compressed_for_clients_that_accept_it(ann: Client, namespace: str) -> None:
    ann.create("t", (namespace,), properties={f"p{i}": "x" * 50 for i in range(100)})
    where = table("t", (namespace,))
    token = {"Authorization": f"Bearer {ann.session.token}"}  # type: ignore[attr-defined]  # a Remote
    raw = ann.session.raw  # type: ignore[attr-defined]  # the same
    answers = {
        accepted: raw("GET", f"/{where}", None, {**token, "Accept-Encoding": accepted})
        for accepted in ("gzip", "identity", "gzip;q=0", "br, *;q=0.5", "*, gzip;q=0", "*;q=0, gzip")
    }
    encodings = {accepted: answer[1].get("content-encoding") for accepted, answer in answers.items()}
    taken = {accepted for accepted, encoding in encodings.items() if encoding == "gzip"}
    assert taken == {"gzip", "br, *;q=0.5", "*;q=0, gzip"}
    assert len({answer[2] for answer in answers.values()}) == 1
    assert all(answer[1]["vary"] == "Accept-Encoding" for answer in answers.values())


def test_an_unchanged_table_is_answered_without_a_body(ann: Client, namespace: str) -> None:
    ann.create("t", (namespace,), properties={"p": "x" * 5_000})
    where = table("t", (namespace,))
    for accepted in ("gzip", "identity"):
        loaded = ann.send("GET", where, headers={"Accept-Encoding": accepted})
        again = ann.send("GET", where, headers={"If-None-Match": loaded.headers["etag"]})
        assert (again.status, again.body) == (304, None)
    ann.ok("POST", where, {"requirements": [], "updates": [set_properties(b="2")]})
    assert ann.send("GET", where, headers={"If-None-Match": loaded.headers["etag"]}).status == 200


def test_catalogs_of_a_realm_are_chosen_by_name_or_warehouse(tmp_path: Path) -> None:
    store, names = f"sqlite://{tmp_path / 'store.db'}", ["main", "a/b %2F+é", "namespaces", "日本"]
    for name in names[1:]:
        with connect(store, tmp_path / f"w{names.index(name)}", catalog=name).session:
            pass
    with Server(store, *options(tmp_path / "w0", "--catalog", "main")) as server:
        one = client(server)
        one.namespace("of main")
        for name in ("a/b %2F+é", "日本"):
            asked = [name, str(tmp_path / f"w{names.index(name)}")]
            (prefix,) = {
                one.ok("GET", "v1/config", query={"warehouse": w})["overrides"]["prefix"] for w in asked
            }
            other = client(server, prefix=prefix)
            assert other.ok("GET", "v1/namespaces")["namespaces"] == []
            other.namespace("x/y", properties={"of": name})
            assert other.stored_properties("x/y") == {"of": name}
            other.create("t", ("x/y",))
            place = other.load("t", ("x/y",))["metadata"]["location"]
            assert place.startswith(f"file://{tmp_path}/w{names.index(name)}/")
        assert one.ok("GET", "v1/namespaces")["namespaces"] == [["of main"]]
        assert one.send("GET", "v1/config", query={"warehouse": "namespaces"}).kind == (
            400,
            "BadRequestException",
        )
        assert one.send("GET", f"v1/{uuid.uuid4()}/namespaces").kind == (404, "NotFoundException")


def test_a_schema_survives_the_way(ann: Client, namespace: str) -> None:
    created = ann.create("t", (namespace,))
    assert created["metadata"]["schemas"][0]["fields"] == SCHEMA["fields"]
