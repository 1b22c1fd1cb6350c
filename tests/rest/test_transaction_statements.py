"""Requests of a transaction on namespaces, views, columns and materialized views."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polaris_spark.clock import ManualClock
from polaris_spark.jobs.registry import call
from tests.rest.client import VIEW_VERSION, Client, path, table, view, view_request
from tests.rest.conftest import OpenBranch
from tests.rest.kinds import add_schema, column
from tests.rest.materialized import create_materialized_view
from tests.rest.steps import Tx, read, two_tables, write

MOVED = pytest.mark.parametrize("moved", [False, True])
"""Whether the branch changes before the commit, so that the transaction is merged."""


@pytest.fixture
def main(open_branch: OpenBranch, clock: ManualClock) -> Client:
    return two_tables(open_branch(clock=clock))


def commit(main: Client, tx: Tx, moved: bool) -> None:
    if moved:
        main.create("meanwhile")
    tx.commit()
    assert call(main.session, "fsck") == []


@MOVED
def test_namespaces_are_created_and_dropped(main: Client, moved: bool) -> None:
    for name in ("old", "kept"):
        main.namespace(name)
    tx = Tx(main, "serializable")
    tx.client.namespace("new", properties={"a": "1"})
    tx.client.create("t", namespace=("new",))
    tx.client.ok("DELETE", path("old"))
    tx.client.namespace("passing")
    tx.client.ok("DELETE", path("passing"))
    tx.client.ok("POST", f"{path('kept')}/properties", {"updates": {"b": "2"}, "removals": []})
    before = main.ok("GET", "v1/namespaces")["namespaces"]
    assert before == [["db"], ["kept"], ["old"]]
    commit(main, tx, moved)
    assert main.ok("GET", "v1/namespaces")["namespaces"] == [["db"], ["kept"], ["new"]]
    assert main.stored_properties("kept")["b"] == "2"
    assert main.names("new") == ["t"]


@MOVED
def test_views_are_created_replaced_renamed_and_dropped(main: Client, moved: bool) -> None:
    for name in ("gone", "old", "kept"):
        main.ok("POST", "v1/namespaces/db/views", view_request(name))
    tx = Tx(main, "serializable")
    tx.client.ok("POST", "v1/namespaces/db/views", view_request("made"))
    tx.client.ok("DELETE", view("gone"))
    ends = [{"namespace": ["db"], "name": one} for one in ("old", "renamed")]
    tx.client.ok("POST", "v1/views/rename", {"source": ends[0], "destination": ends[1]})
    query = {"type": "sql", "sql": "SELECT 2", "dialect": "spark"}
    version = {**VIEW_VERSION, "version-id": 2, "schema-id": 0, "representations": [query]}
    updates = [
        {"action": "add-view-version", "view-version": version},
        {"action": "set-current-view-version", "view-version-id": -1},
    ]
    tx.client.ok("POST", view("kept"), {"requirements": [], "updates": updates})
    assert main.names("db", kind="views") == ["gone", "kept", "old"]
    commit(main, tx, moved)
    assert main.names("db", kind="views") == ["kept", "made", "renamed"]
    versions = main.ok("GET", view("kept"))["metadata"]["versions"]
    assert [one["representations"][0]["sql"] for one in versions][-1] == "SELECT 2"


@MOVED
def test_columns_are_added_and_rows_are_written_to_them(main: Client, moved: bool) -> None:
    tx = Tx(main, "serializable")
    loaded = tx.client.load("t")["metadata"]
    id = loaded["last-column-id"] + 1
    changed = add_schema(*loaded["schemas"][0]["fields"], column(id))
    answer = tx.client.commit("t", changed, {"action": "set-current-schema", "schema-id": -1})
    assert answer.status == 200, answer
    write(tx.client, "t", 1)
    commit(main, tx, moved)
    after = main.load("t")["metadata"]
    assert (after["last-column-id"], after["current-schema-id"], read(main, "t")) == (id, 1, 1)


@MOVED
@pytest.mark.parametrize("statement", ["create", "replace", "drop", "rename"])
def test_materialized_views_change_with_their_storage_tables(
    main: Client, statement: str, moved: bool
) -> None:
    if statement != "create":
        create_materialized_view(main.session.catalog, "mv")
    tx = Tx(main, "serializable")
    statements: dict[str, Callable[[], object]] = {
        "create": lambda: create_materialized_view(tx.client.session.catalog, "mv"),
        "replace": lambda: create_materialized_view(
            tx.client.session.catalog, "mv", "SELECT a + 1 AS a FROM t", replace=True
        ),
        "drop": lambda: tx.client.ok("DELETE", view("mv")),
        "rename": lambda: tx.client.ok(
            "POST",
            "v1/views/rename",
            {
                "source": {"namespace": ["db"], "name": "mv"},
                "destination": {"namespace": ["db"], "name": "other"},
            },
        ),
    }
    statements[statement]()
    write(tx.client, "t", 1)
    commit(main, tx, moved)
    expected = {"drop": [], "rename": ["other"]}.get(statement, ["mv"])
    assert main.names("db", kind="views") == expected
    assert read(main, "t") == 1
    assert main.send("GET", table("t")).status == 200
