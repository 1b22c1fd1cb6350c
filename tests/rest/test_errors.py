"""Invalid requests: each gets an error response in Iceberg's format, and changes nothing."""

from __future__ import annotations

import json
import logging

import pytest

from tests.rest.client import (
    SCHEMA,
    Client,
    path,
    rename,
    set_properties,
    table,
    table_request,
    tables,
    view,
    view_request,
)

HOSTILE = [
    "it's",
    'a"b',
    "a.b",
    "a/b",
    "a\\b",
    "../..",
    "...",
    "%2F",
    "%00",
    "%25",
    "#",
    "?",
    "%",
    "+",
    "a b",
    " ",
    "a+b",
    "`;drop table t;--",
    " a ",
    "A",
    "é",
    "e\u0301",
    "日本語",
    "🧊",
    "\u200d",
    "\ufeff",
    "\uffff",
    "\U0010ffff",
    "tables",
    "namespaces",
    "v1",
    "null",
    "{}",
    "x" * 1_000,
    "表" * 333,
]

REFUSED = [
    "",
    "a\x1fb",
    "a\nb",
    "\n",
    "a\n",
    "\r",
    "\t",
    "\0",
    "\x01",
    "\x1b[31m",
    "\x1e",
    "\x7f",
    "\x80",
    "\x9b31m",
    "a\u2028b",
    "\u2029",
    "\u202e",
    "a\u2066b",
    ".",
    "..",
]
"""Texts that are refused as names, because some clients cannot address them or they cannot be printed safely."""

POSTS = [
    "v1/namespaces",
    f"{path('db')}/properties",
    tables("db"),
    table("t"),
    f"{path('db')}/register",
    f"{path('db')}/register-view",
    "v1/tables/rename",
    "v1/views/rename",
    "v1/transactions/commit",
    f"{path('db')}/views",
    view("v"),
]


def unchanged(catalog: Client) -> tuple[bytes, list[str]]:
    """Return the version of the head, and the log."""
    return catalog.session.catalog.head().version, catalog.names("db")


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_any_characters_are_kept_exactly(catalog: Client, name: str) -> None:
    catalog.namespace(name)
    catalog.namespace(name, name)
    catalog.create(name, (name, name))
    assert catalog.load(name, (name, name))["metadata"]["location"].startswith("file:///")
    assert catalog.names(name, name) == [name]
    below = catalog.ok("GET", "v1/namespaces", query={"parent": name})
    assert below == {"namespaces": [[name, name]]}
    assert catalog.send("DELETE", table(name, (name, name))).status == 204
    assert catalog.send("DELETE", path(name, name)).status == 204
    assert catalog.ok("GET", "v1/namespaces")["namespaces"] == sorted([["db"], [name]])


def test_a_space_in_a_path_may_be_written_as_javas_clients_do(catalog: Client) -> None:
    catalog.create("my table+1")
    assert catalog.send("HEAD", f"{tables('db')}/my+table%2B1").status == 204
    assert catalog.send("HEAD", f"{tables('db')}/my%20table%2B1").status == 204


@pytest.mark.parametrize("name", REFUSED)
def test_names_that_some_clients_cannot_address_are_refused(catalog: Client, name: str) -> None:
    catalog.create()
    catalog.ok("POST", f"{path('db')}/views", view_request("v"))
    before = unchanged(catalog)
    assert catalog.send("POST", "v1/namespaces", {"namespace": [name]}).status == 400
    assert catalog.send("POST", "v1/namespaces", {"namespace": ["db", name]}).status == 400
    assert catalog.send("POST", tables("db"), table_request(name)).status == 400
    assert catalog.send("POST", "v1/tables/rename", rename("t", name)).status == 400
    assert catalog.send("POST", "v1/tables/rename", rename("t", "u", (name,))).status in (400, 404)
    assert catalog.send("POST", tables("db"), table_request(name, stage_create=True)).status == 400
    assert catalog.send("POST", f"{path('db')}/views", view_request(name)).status == 400
    assert catalog.send("POST", "v1/views/rename", rename("v", name)).status == 400
    create = {"requirements": [{"type": "assert-create"}], "updates": []}
    assert catalog.send("POST", table(name), create).status in (400, 404)
    location = catalog.load()["metadata-location"]
    body = {"name": name, "metadata-location": location}
    assert catalog.send("POST", f"{path('db')}/register", body).status == 400
    assert unchanged(catalog) == before


def test_a_table_cannot_be_moved_out_of_all_namespaces(catalog: Client) -> None:
    catalog.create()
    assert catalog.send("POST", "v1/tables/rename", rename("t", "u", ())).kind == (400, "BadRequestException")
    assert catalog.names("db") == ["t"]


@pytest.mark.parametrize(
    "text", ['{"namespace":["\\ud800"]}', '{"namespace":["\ud800"]}', '{"namespace":["\\udc00\\ud800"]}']
)
def test_lone_surrogates_are_refused(catalog: Client, text: str) -> None:
    answer = catalog.send("POST", "v1/namespaces", text)
    assert answer.kind == (400, "BadRequestException")
    assert "half of a surrogate pair" in answer.error["message"]


@pytest.mark.parametrize(
    "where",
    [
        "v1/namespaces/\ud800",
        "v1/namespaces/%ED%A0%80",
        "v1/namespaces/%ff",
        "v1/namespaces/db/tables/%C0%80",
    ],
)
def test_paths_that_are_not_utf8_are_refused(catalog: Client, where: str) -> None:
    assert catalog.send("GET", where).kind == (400, "BadRequestException")


@pytest.mark.parametrize(
    "request_",
    [
        ("GET", "v1/namespaces", {"pageSize": 2}, None, None),
        ("GET", "v1/namespaces", {"pageToken": b"x"}, None, None),
        ("POST", "v1/namespaces", None, {"namespace": ["n"]}, None),
        ("POST", "v1/namespaces", None, b'{"namespace":["n"]}', {"Idempotency-Key": "x"}),
        ("POST", "v1/namespaces", None, "{}", {"Idempotency-Key": 1}),
        ("GET", "v1/namespaces", None, None, {1: "x"}),
        ("GET", "v1/namespaces", {2: "x"}, None, None),
        ("GET", b"v1/namespaces", None, None, None),
        (None, None, None, 1, None),
    ],
)
def test_arguments_that_are_not_text_are_refused(catalog: Client, request_: tuple) -> None:
    status, _, body = catalog.session.request(*request_)
    assert status in (400, 404)
    assert json.loads(body)["error"]["code"] == status


def test_names_over_the_limit_are_refused_wherever_they_stand(catalog: Client) -> None:
    catalog.create()
    before = unchanged(catalog)
    huge = "x" * 5_000
    many = ["y"] * 3_000
    answers = [
        catalog.send("POST", "v1/namespaces", {"namespace": [huge]}),
        catalog.send("POST", "v1/namespaces", {"namespace": many}),
        catalog.send("GET", path(huge)),
        catalog.send("GET", "v1/namespaces", query={"parent": huge}),
        catalog.send("POST", tables("db"), table_request(huge)),
        catalog.send("GET", table(huge)),
        catalog.send("DELETE", table(huge)),
        catalog.send("POST", "v1/tables/rename", rename("t", huge)),
        catalog.send("POST", tables("db"), table_request("u", location="file:///" + "x" * 5_000)),
    ]
    assert {answer.kind for answer in answers} == {(400, "BadRequestException")}
    assert unchanged(catalog) == before


@pytest.mark.parametrize("where", POSTS)
@pytest.mark.parametrize(
    "body",
    [
        None,
        "",
        "{",
        "[]",
        "null",
        "1",
        '"x"',
        "[" * 100_000,
        '{"a":' * 5_000,
        '{"name": NaN}',
        "{}\0",
        "{}{}",
        "\ufeff{}",
    ],
)
def test_a_body_that_is_not_the_right_json_is_refused(catalog: Client, where: str, body: str | None) -> None:
    catalog.create()
    before = unchanged(catalog)
    assert catalog.send("POST", where, body).kind == (400, "BadRequestException")
    assert unchanged(catalog) == before


WRONG = [None, 1, True, 1.5, "x", [], {}, [None], [1], {"a": 1}, {"a": None}, 2**70, [[]], [{}]]
FIELDS = {
    "v1/namespaces": {"namespace": ["n"], "properties": {}},
    f"{path('db')}/properties": {"updates": {}, "removals": []},
    tables("db"): {
        "name": "n",
        "schema": SCHEMA,
        "location": "file:///tmp/never",
        "partition-spec": {"fields": []},
        "write-order": {"order-id": 0, "fields": []},
        "properties": {},
        "stage-create": True,
    },
    table("t"): {"requirements": [], "updates": [], "identifier": {"namespace": ["db"], "name": "t"}},
    f"{path('db')}/register": {"name": "n", "metadata-location": "/nope", "overwrite": True},
    f"{path('db')}/register-view": {"name": "n", "metadata-location": "/nope"},
    "v1/tables/rename": rename("t", "t"),
    "v1/transactions/commit": {"table-changes": []},
    f"{path('db')}/views": {"name": "n", "schema": SCHEMA, "view-version": {}, "properties": {}},
}


@pytest.mark.parametrize("where", FIELDS)
def test_fields_of_wrong_types_never_end_in_an_internal_error(
    catalog: Client, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    catalog.create()
    for field in FIELDS[where]:
        for wrong in WRONG:
            answer = catalog.send("POST", where, {**FIELDS[where], field: wrong})
            assert answer.status < 500, (field, wrong, answer)
            if answer.status >= 400:
                assert answer.error["type"]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


UPDATES = {
    "assign-uuid": ["uuid"],
    "upgrade-format-version": ["format-version"],
    "add-schema": ["schema", "last-column-id"],
    "set-current-schema": ["schema-id"],
    "add-spec": ["spec"],
    "set-default-spec": ["spec-id"],
    "add-sort-order": ["sort-order"],
    "set-default-sort-order": ["sort-order-id"],
    "add-snapshot": ["snapshot"],
    "set-snapshot-ref": ["ref-name", "snapshot-id"],
    "remove-snapshots": ["snapshot-ids"],
    "remove-snapshot-ref": ["ref-name"],
    "set-location": ["location"],
    "set-properties": ["updates"],
    "remove-properties": ["removals"],
    "set-statistics": ["statistics"],
    "remove-statistics": ["snapshot-id"],
    "set-partition-statistics": ["partition-statistics"],
    "remove-partition-statistics": ["snapshot-id"],
    "remove-partition-specs": ["spec-ids"],
    "remove-schemas": ["schema-ids"],
    "add-encryption-key": ["encryption-key"],
    "remove-encryption-key": ["key-id"],
}


@pytest.mark.parametrize("action", UPDATES)
def test_updates_with_fields_of_wrong_types_never_end_in_an_internal_error(
    catalog: Client, action: str
) -> None:
    catalog.create()
    for field in UPDATES[action]:
        for wrong in WRONG:
            answer = catalog.commit("t", {"action": action, field: wrong})
            assert answer.status in (200, 400, 409), (field, wrong, answer)
            assert catalog.load()["metadata"]["schemas"]


def test_unknown_updates_and_requirements_are_refused_and_named(catalog: Client) -> None:
    catalog.create()
    before = unchanged(catalog)
    for update in ({"action": "explode"}, {"action": None}, {"action": 1}, {}):
        assert catalog.commit("t", set_properties(a="1"), update).status == 400
    for requirement in ({"type": "assert-luck"}, {"type": None}, {"type": {}}, {}):
        assert catalog.commit("t", set_properties(a="1"), requirements=(requirement,)).status == 400
    named = catalog.commit("t", {"action": "explode"}).error["message"]
    assert "explode" in named
    assert unchanged(catalog) == before


def test_unknown_fields_are_ignored(catalog: Client) -> None:
    body = {**table_request("t"), "something-new": {"deep": [1]}}
    assert catalog.send("POST", tables("db"), body).status == 200


@pytest.mark.parametrize(
    "where",
    [
        "",
        "/",
        "//",
        "v1",
        "v1/",
        "v2/namespaces",
        "v1/nope",
        "v1/a/b/c",
        "v1/namespaces/a/b/c/d/e/f",
        "namespaces",
        "v1/namespaces/db/nope",
    ],
)
def test_unknown_paths_are_not_found(catalog: Client, where: str) -> None:
    assert catalog.send("GET", where).status == 404


@pytest.mark.parametrize(
    ("method", "below"),
    [
        ("GET", "tables/t/credentials"),
        ("POST", "tables/t/sign"),
        ("POST", "tables/t/plan"),
        ("GET", "tables/t/plan/p"),
        ("DELETE", "tables/t/plan/p"),
        ("POST", "tables/t/tasks"),
        ("POST", "tables/t/unregister"),
        ("GET", "functions"),
        ("GET", "functions/f"),
    ],
)
def test_endpoints_that_are_not_offered_are_refused_as_unsupported_and_not_advertised(
    catalog: Client, method: str, below: str
) -> None:
    catalog.create()
    answer = catalog.send(method, f"{path('db')}/{below}", {} if method == "POST" else None)
    assert answer.kind == (406, "UnsupportedOperationException")
    last = below.split("/")[2:3] or below.split("/")[:1]
    assert not [one for one in catalog.ok("GET", "v1/config")["endpoints"] if f"/{last[0]}" in one]


def test_a_request_for_a_token_is_refused_as_oauth_does_it(catalog: Client) -> None:
    answer = catalog.send(
        "POST", "v1/oauth/tokens", "grant_type=client_credentials&client_id=a&client_secret=b"
    )
    assert (answer.status, answer.body["error"]) == (400, "unsupported_grant_type")
    assert "property 'token'" in answer.body["error_description"]
    assert not [one for one in catalog.ok("GET", "v1/config")["endpoints"] if "oauth" in one]


@pytest.mark.parametrize("method", ["PUT", "PATCH", "OPTIONS", "TRACE", "", "get", "GET\r\n"])
def test_unknown_methods_are_refused(catalog: Client, method: str) -> None:
    for where in ("v1/config", "v1/namespaces", path("db"), tables("db"), table("t")):
        assert catalog.send(method, where).kind == (406, "UnsupportedOperationException")


def test_a_prefix_is_the_catalogs_name_and_no_other(catalog: Client) -> None:
    assert catalog.ok("GET", "v1/polaris/namespaces") == {"namespaces": [["db"]]}
    assert catalog.ok("GET", f"/{tables('db')}") == {"identifiers": []}
    assert catalog.send("GET", "v1/other/namespaces").kind == (404, "NotFoundException")


def test_missing_entities_are_named(catalog: Client) -> None:
    expected = {
        table("t"): ("NoSuchTableException", "Table does not exist: db.t"),
        view("v"): ("NoSuchViewException", "View does not exist: db.v"),
        path("nope"): ("NoSuchNamespaceException", "Namespace does not exist: nope"),
        tables("nope"): ("NoSuchNamespaceException", "Namespace does not exist: nope"),
        f"{path('nope')}/views": ("NoSuchNamespaceException", "Namespace does not exist: nope"),
    }
    for where, (kind, message) in expected.items():
        answer = catalog.send("GET", where)
        assert answer.kind == (404, kind)
        assert answer.error["message"] == message


def test_a_failed_requirement_is_a_conflict(catalog: Client) -> None:
    catalog.create()
    requirement = {"type": "assert-table-uuid", "uuid": "00000000-0000-0000-0000-000000000000"}
    answer = catalog.commit("t", set_properties(a="1"), requirements=(requirement,))
    assert answer.kind == (409, "CommitFailedException")
    assert answer.error["message"].startswith("Requirement failed: UUID does not match")


def test_path_and_body_must_name_the_same_table(catalog: Client) -> None:
    catalog.create()
    body = {"requirements": [], "updates": [], "identifier": {"namespace": ["db"], "name": "other"}}
    assert catalog.send("POST", table("t"), body).kind == (400, "BadRequestException")


def test_the_configuration_lists_what_is_answered(catalog: Client) -> None:
    config = catalog.ok("GET", "v1/config")
    assert config["idempotency-key-lifetime"] == "PT1800S"
    assert "GET /v1/{prefix}/namespaces" in config["endpoints"]
    for endpoint in config["endpoints"]:
        method, where = endpoint.split(" ")
        filled = where.replace("{prefix}/", "").replace("{namespace}", "no").replace("{table}", "t")
        answer = catalog.send(
            method, filled.replace("{view}", "v").lstrip("/"), "{}" if method == "POST" else None
        )
        assert answer.status != 406
        assert not (answer.status == 404 and answer.error["type"] == "NotFoundException"), endpoint
    named = catalog.ok("GET", "v1/config", query={"warehouse": "polaris"})
    assert named == {**config, "overrides": {"prefix": "polaris"}}
    place = catalog.session.catalog.context.warehouse
    for same in (place, f"{place}/", place.removeprefix("file://")):
        assert catalog.ok("GET", "v1/config", query={"warehouse": same}) == config
    for other in ("nope", "/nope", f"{place}/x", "\0"):
        assert catalog.send("GET", "v1/config", query={"warehouse": other}).status == 404


def test_properties_of_any_text_come_back_exactly(catalog: Client) -> None:
    values = {name: name for name in (*HOSTILE, *REFUSED)}
    catalog.create("t", properties=values)
    assert values.items() <= catalog.load()["metadata"]["properties"].items()
    catalog.namespace("p", properties=values)
    assert values.items() <= catalog.ok("GET", path("p"))["properties"].items()


def test_a_large_table_is_kept_in_parts(catalog: Client) -> None:
    fields = [
        {"id": i, "name": f"column {i}", "required": False, "type": "string", "doc": "x" * 200}
        for i in range(1, 3_001)
    ]
    schema = {"type": "struct", "schema-id": 0, "fields": fields}
    catalog.ok("POST", tables("db"), {"name": "t", "schema": schema, "properties": {"big": "y" * 500_000}})
    metadata = catalog.load()["metadata"]
    assert metadata["schemas"] == [schema]
    assert len(metadata["properties"]["big"]) == 500_000
    assert len(json.dumps(metadata)) > 1_000_000
