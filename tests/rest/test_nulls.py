"""Optional fields of request bodies: null and a missing field mean the same, as in Iceberg's reference server."""

from __future__ import annotations

import pytest

from tests.rest.client import (
    SCHEMA,
    Client,
    identifier,
    path,
    set_properties,
    table,
    tables,
    view,
    view_request,
)

UPDATES = [set_properties(a="1")]


@pytest.mark.parametrize("body", [{"updates": UPDATES}, {"requirements": None, "updates": UPDATES}])
def test_a_commit_needs_no_requirements(catalog: Client, body: dict) -> None:
    catalog.create()
    committed = catalog.ok("POST", table("t"), {**body, "identifier": None})
    assert committed["metadata"]["properties"]["a"] == "1"


@pytest.mark.parametrize("change", [{"updates": UPDATES}, {"requirements": None, "updates": UPDATES}])
def test_a_change_of_a_transaction_needs_no_requirements(catalog: Client, change: dict) -> None:
    catalog.create()
    body = {"table-changes": [{**change, "identifier": identifier("t")}]}
    assert catalog.send("POST", "v1/transactions/commit", body).status == 204
    assert catalog.load()["metadata"]["properties"]["a"] == "1"


@pytest.mark.parametrize("updates", [{}, {"updates": None}])
def test_a_commit_without_updates_changes_nothing(catalog: Client, updates: dict) -> None:
    catalog.create()
    catalog.ok("POST", f"{path('db')}/views", view_request("v"))
    before = catalog.session.catalog.head().version
    assert catalog.ok("POST", table("t"), {"requirements": [], **updates}) == catalog.load()
    assert catalog.send("POST", view("v"), {"requirements": [], **updates}).status == 200
    body = {"table-changes": [{"identifier": identifier("t"), **updates}]}
    assert catalog.send("POST", "v1/transactions/commit", body).status == 204
    assert catalog.session.catalog.head().version == before


def test_a_requirement_is_checked_without_updates(catalog: Client) -> None:
    catalog.create()
    body = {"requirements": [{"type": "assert-table-uuid", "uuid": "x"}], "updates": None}
    assert catalog.send("POST", table("t"), body).kind == (409, "CommitFailedException")


@pytest.mark.parametrize(
    ("where", "required", "optional"),
    [
        ("v1/namespaces", {"namespace": ["n"]}, ["properties"]),
        (f"{path('db')}/properties", {}, ["updates", "removals"]),
        (
            tables("db"),
            {"name": "n", "schema": SCHEMA},
            ["location", "partition-spec", "write-order", "stage-create", "properties"],
        ),
        (
            f"{path('db')}/views",
            {key: value for key, value in view_request("v").items() if key != "properties"},
            ["location", "properties"],
        ),
        (table("t"), {}, ["requirements", "updates", "identifier"]),
        (view("w"), {}, ["requirements", "updates", "identifier"]),
    ],
)
def test_every_optional_field_may_be_null(
    catalog: Client, where: str, required: dict, optional: list[str]
) -> None:
    catalog.create()
    catalog.ok("POST", f"{path('db')}/views", view_request("w"))
    answer = catalog.send("POST", where, {**required, **dict.fromkeys(optional)})
    assert answer.status == 200, answer


def test_overwrite_may_be_null(catalog: Client) -> None:
    catalog.create()
    location = catalog.load()["metadata-location"]
    assert catalog.send("DELETE", table("t")).status == 204
    body = {"name": "n", "metadata-location": location, "overwrite": None}
    assert catalog.send("POST", f"{path('db')}/register", body).status == 200
