"""Views over the protocol."""

from __future__ import annotations

from pathlib import Path

from tests.rest.client import VIEW_VERSION, Client, files_below, path, view, view_request
from tests.rest.conftest import Open


def create(catalog: Client, name: str = "v", **rest: object) -> dict:
    """Create a view in the namespace `db`."""
    return catalog.ok("POST", f"{path('db')}/views", view_request(name, **rest))


def replace(catalog: Client, sql: str, *requirements: dict) -> object:
    """Give the view `v` another text."""
    version = {
        **VIEW_VERSION,
        "version-id": 2,
        "representations": [{"type": "sql", "sql": sql, "dialect": "spark"}],
    }
    updates = [
        {"action": "add-view-version", "view-version": version},
        {"action": "set-current-view-version", "view-version-id": -1},
    ]
    return catalog.send("POST", view("v"), {"requirements": list(requirements), "updates": updates})


def test_a_created_view_is_answered_as_it_is_loaded(opened: Open, store: str, warehouse: Path) -> None:
    catalog = opened(store, warehouse)
    catalog.namespace("db")
    created = create(catalog, properties={"k": "v"})
    assert created["metadata"]["properties"] == {"k": "v"}
    assert created["metadata"]["versions"][0]["representations"] == VIEW_VERSION["representations"]
    assert catalog.ok("GET", view("v")) == created
    assert catalog.send("HEAD", view("v")).status == 204
    assert catalog.names("db", kind="views") == ["v"]
    assert catalog.names("db") == []


def test_a_replaced_view_keeps_its_earlier_version(catalog: Client) -> None:
    first = create(catalog)["metadata"]
    answer = replace(catalog, "select 2", {"type": "assert-view-uuid", "uuid": first["view-uuid"]})
    assert answer.status == 200, answer
    metadata = catalog.ok("GET", view("v"))["metadata"]
    assert metadata["current-version-id"] == 2
    assert [v["representations"][0]["sql"] for v in metadata["versions"]] == ["select 1", "select 2"]


def test_a_view_that_changed_meanwhile_is_a_conflict(catalog: Client) -> None:
    create(catalog)
    answer = replace(
        catalog, "x", {"type": "assert-view-uuid", "uuid": "00000000-0000-0000-0000-000000000000"}
    )
    assert answer.kind == (409, "CommitFailedException")


def test_a_dropped_view_is_gone(catalog: Client) -> None:
    create(catalog)
    assert catalog.send("DELETE", view("v")).status == 204
    for method in ("GET", "HEAD", "DELETE"):
        assert catalog.send(method, view("v")).status == 404
    assert replace(catalog, "x").kind == (404, "NoSuchViewException")


def test_a_view_is_not_a_table(catalog: Client) -> None:
    create(catalog, "v")
    catalog.create("t")
    for method in ("GET", "HEAD", "DELETE"):
        assert catalog.send(method, f"{path('db')}/tables/v").status == 404
        assert catalog.send(method, view("t")).status == 404
    assert catalog.commit("v").kind == (404, "NoSuchTableException")


def test_a_view_needs_its_namespace(catalog: Client) -> None:
    answer = catalog.send("POST", f"{path('nope')}/views", view_request("v"))
    assert answer.kind == (404, "NoSuchNamespaceException")


def test_every_version_of_a_view_has_its_file(catalog: Client, warehouse: Path) -> None:
    create(catalog)
    replace(catalog, "select 2")
    assert len(files_below(warehouse)) == 2
