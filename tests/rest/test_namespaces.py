"""Namespaces over the protocol."""

from __future__ import annotations

from functools import partial

import pytest

from polaris_spark.commits.log import entries
from polaris_spark.index.keys import decode_key
from tests.rest.client import Client, at_once, new_key, path, tables, view_request
from tests.rest.conftest import Open


def test_a_namespace_is_listed_loaded_and_exists_once_it_is_created(opened: Open, store, warehouse) -> None:
    catalog = opened(store, warehouse)
    answer = catalog.namespace("db", properties={"owner": "me"})
    where = f"file://{warehouse}/db"
    properties = {"owner": "me", "location": where}
    assert answer == {"namespace": ["db"], "properties": properties}
    assert catalog.ok("GET", "v1/namespaces") == {"namespaces": [["db"]]}
    assert catalog.ok("GET", path("db")) == answer
    assert catalog.send("HEAD", path("db")).status == 204
    assert catalog.send("HEAD", path("other")).status == 404


def test_nested_namespaces_are_listed_by_their_parent(catalog: Client) -> None:
    catalog.namespace("db", "inner")
    catalog.namespace("db", "inner", "innermost")
    assert catalog.ok("GET", "v1/namespaces") == {"namespaces": [["db"]]}
    assert catalog.ok("GET", "v1/namespaces", query={"parent": "db"}) == {"namespaces": [["db", "inner"]]}
    below = catalog.ok("GET", "v1/namespaces", query={"parent": "db\x1finner"})
    assert below == {"namespaces": [["db", "inner", "innermost"]]}
    assert catalog.ok("GET", path("db", "inner"))["namespace"] == ["db", "inner"]


def test_a_parent_that_does_not_exist_is_refused(catalog: Client) -> None:
    answer = catalog.send("GET", "v1/namespaces", query={"parent": "nope"})
    assert answer.kind == (404, "NoSuchNamespaceException")
    assert answer.error["message"] == "Namespace does not exist: nope"


def test_a_namespace_cannot_be_created_twice(catalog: Client) -> None:
    answer = catalog.send("POST", "v1/namespaces", {"namespace": ["db"]})
    assert answer.kind == (409, "AlreadyExistsException")
    assert answer.error["message"] == "Namespace already exists: db"


def test_the_namespace_of_the_catalogs_own_views_is_reserved(catalog: Client) -> None:
    for name in ("system", "SYSTEM"):
        assert catalog.send("POST", "v1/namespaces", {"namespace": [name]}).status == 400
    catalog.namespace("db", "system")


def test_properties_are_set_and_removed_and_missing_ones_are_returned(catalog: Client) -> None:
    catalog.namespace("p", properties={"a": "1", "b": "2"})
    body = {"updates": {"a": "9", "c": "3"}, "removals": ["b", "nope", "nope"]}
    answer = catalog.ok("POST", f"{path('p')}/properties", body)
    assert answer == {"updated": ["a", "c"], "removed": ["b"], "missing": ["nope"]}
    properties = catalog.ok("GET", path("p"))["properties"]
    assert {name: properties.get(name) for name in "abc"} == {"a": "9", "b": None, "c": "3"}


def test_a_property_cannot_be_set_and_removed_at_once(catalog: Client) -> None:
    answer = catalog.send("POST", f"{path('db')}/properties", {"updates": {"a": "1"}, "removals": ["a"]})
    assert answer.kind == (422, "UnprocessableEntityException")


def test_properties_of_a_missing_namespace_are_refused(catalog: Client) -> None:
    answer = catalog.send("POST", f"{path('nope')}/properties", {"updates": {"a": "1"}})
    assert answer.kind == (404, "NoSuchNamespaceException")


def test_an_empty_namespace_is_dropped_and_can_be_created_again(catalog: Client) -> None:
    catalog.namespace("gone", properties={"a": "1"})
    assert catalog.send("DELETE", path("gone")).status == 204
    assert catalog.send("DELETE", path("gone")).kind == (404, "NoSuchNamespaceException")
    assert "a" not in catalog.namespace("gone")["properties"]


@pytest.mark.parametrize("content", ["table", "view", "namespace"])
def test_a_namespace_that_is_not_empty_cannot_be_dropped(catalog: Client, content: str) -> None:
    if content == "table":
        catalog.create()
    elif content == "view":
        catalog.ok("POST", f"{path('db')}/views", view_request("v"))
    else:
        catalog.namespace("db", "inner")
    answer = catalog.send("DELETE", path("db"))
    assert answer.kind == (409, "NamespaceNotEmptyException")
    assert answer.error["message"] == "Namespace db is not empty"


def test_namespaces_whose_names_begin_alike_are_not_taken_for_one_another(catalog: Client) -> None:
    catalog.namespace("d")
    catalog.namespace("db2")
    catalog.create("t", ("db2",))
    assert catalog.send("DELETE", path("d")).status == 204
    assert catalog.send("DELETE", path("db")).status == 204
    assert catalog.names("db2") == ["t"]


def test_a_table_never_lands_in_a_namespace_that_is_dropped_at_the_same_time(
    opened: Open, store, warehouse
) -> None:
    catalog = opened(store, warehouse)
    for round in range(20):
        name = f"n{round}"
        catalog.namespace(name)
        dropped, created = at_once(
            [
                lambda name=name: catalog.send("DELETE", path(name)).status,
                lambda name=name: (
                    catalog.send(
                        "POST", tables(name), {"name": "t", "schema": {"type": "struct", "fields": []}}
                    ).status
                ),
            ]
        )
        assert (dropped, created) in {(204, 404), (409, 200)}
        assert catalog.send("HEAD", path(name)).status == (404 if dropped == 204 else 204)


def test_missing_parents_are_created_in_the_same_commit_and_logged(catalog: Client) -> None:
    before = catalog.session.catalog.head().commit.number
    catalog.namespace("db", "a", "b", properties={"k": "v"})
    head = catalog.session.catalog.head()
    assert head.commit.number == before + 1
    assert catalog.stored_properties("db", "a") == {}
    assert catalog.stored_properties("db", "a", "b") == {"k": "v"}
    listed = [entry for _, commit, _, entry in entries(head.store, head.head) if commit.number == before + 1]
    keys = [decode_key(entry.key) for entry in reversed(listed)]
    assert [(*key.path, key.name) for key in keys] == [("db", "a"), ("db", "a", "b")]
    assert {entry.action for entry in listed} == {"create-namespace"}


def test_a_namespace_with_missing_parents_can_be_created_again_under_its_key(catalog: Client) -> None:
    key, body = new_key(), {"namespace": ["x", "y", "z"], "properties": {"k": "v"}}
    answers = [catalog.send("POST", "v1/namespaces", body, key=key) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].body == answers[1].body
    assert catalog.stored_properties("x", "y", "z") == {"k": "v"}
    assert catalog.send("POST", "v1/namespaces", {"namespace": ["x"]}).status == 409


def test_threads_that_create_below_the_same_missing_parent_all_succeed(catalog: Client) -> None:
    at_once([partial(catalog.namespace, "p", "q", f"n{number}") for number in range(8)])
    below = catalog.ok("GET", "v1/namespaces", query={"parent": "p\x1fq"})["namespaces"]
    assert len(below) == 8


def test_missing_parents_are_refused_if_the_property_requires_them(catalog: Client) -> None:
    catalog.session.set_catalog_properties({"create-parent-namespaces": "false"})
    created = catalog.send("POST", "v1/namespaces", {"namespace": ["nope", "inner"]})
    assert created.kind == (404, "NoSuchNamespaceException")
    assert created.error["message"] == "Namespace does not exist: nope"
    catalog.namespace("db", "inner")


def test_a_parent_whose_name_is_refused_is_not_created(catalog: Client) -> None:
    answer = catalog.send("POST", "v1/namespaces", {"namespace": ["db", "..", "inner"]})
    assert answer.status == 400
    assert catalog.ok("GET", "v1/namespaces", query={"parent": "db"}) == {"namespaces": []}
