"""Comparisons of states."""

from __future__ import annotations

from tests.rest.client import VIEW_VERSION, Client, Json, table, view, view_request
from tests.rest.merges.steps import Opened, append, make, number, rename, with_column


def test_a_comparison_lists_the_differences(main: Client, opened: Opened) -> None:
    start = number(main)
    dev = opened("dev")
    append(dev, "t", 5, 6)
    append(dev, "t", 7)
    rename(dev, "w", "x")
    dev.ok("DELETE", table("u"))
    dev.namespace("n")
    rows = make(main, "diff", from_state="main", to_state="dev")
    details = {row["name"]: row.pop("details") for row in rows}
    moved = f"none -> {dev.load('t')['metadata']['current-snapshot-id']}"
    assert details == {"db.t": {"ref main": moved}, "db.u": {}, "db.x": {}, "n": {}}
    found = {row.pop("name"): tuple(row.values()) for row in rows}
    assert found == {
        "db.t": ("table", "changed", None, 2, 18, 18),
        "db.u": ("table", "removed", None, 0, 0, 0),
        "db.x": ("table", "renamed", "db.w", 0, 0, 0),
        "n": ("namespace", "added", None, None, None, None),
    }
    assert make(main, "diff", from_state="dev", to_state="dev") == []
    assert len(make(main, "diff", from_state=str(start), to_state="dev")) == 4
    back = make(main, "diff", from_state="dev", to_state=f"main#{start}")
    assert {row["change"] for row in back} == {"changed", "added", "renamed", "removed"}


def test_a_comparison_tells_what_changed_in_an_entity(main: Client, opened: Opened) -> None:
    main.ok("POST", "v1/namespaces/db/views", view_request("v"))
    main.set("t", **{"my.gone": "1", "my.same": "1", "my.new": "1"})
    dev = opened("dev")
    updates: list[Json] = [
        {"action": "add-schema", "schema": with_column(main.load("t"), "c", "int")},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "remove-properties", "removals": ["my.gone"]},
        {"action": "set-properties", "updates": {"my.new": "2"}},
        {
            "action": "add-spec",
            "spec": {
                "spec-id": 1,
                "fields": [{"name": "a", "transform": "bucket[4]", "source-id": 1, "field-id": 1000}],
            },
        },
        {"action": "set-default-spec", "spec-id": -1},
    ]
    assert dev.commit("t", *updates).status == 200
    changed = {
        **VIEW_VERSION,
        "version-id": 2,
        "representations": [{"type": "sql", "sql": "select 2", "dialect": "spark"}],
    }
    updates = [
        {"action": "add-view-version", "view-version": changed},
        {"action": "set-current-view-version", "view-version-id": -1},
        {"action": "set-properties", "updates": {"x": "1"}},
    ]
    dev.ok("POST", view("v"), {"requirements": [], "updates": updates})
    dev.ok("POST", "v1/namespaces/db/properties", {"removals": [], "updates": {"p": "1"}})
    found = {
        row["name"]: (row["change"], row["details"])
        for row in make(main, "diff", from_state="main", to_state="dev")
    }
    assert found == {
        "db": ("changed", {"set p": "1"}),
        "db.t": (
            "changed",
            {
                "add-column c": "int",
                "set my.new": "2",
                "unset": "my.gone",
                "partition-spec": "bucket[4](a)",
            },
        ),
        "db.v": ("changed", {"query spark": "select 2", "set x": "1"}),
    }
    back = make(main, "diff", from_state="dev", to_state="main")
    assert {row["name"]: row["details"] for row in back} == {
        "db": {"unset": "p"},
        "db.t": {
            "drop-column c": "int",
            "set my.gone": "1",
            "set my.new": "1",
            "partition-spec": "none",
        },
        "db.v": {"query spark": "select 1", "unset": "x"},
    }


def test_a_comparison_tells_that_a_table_was_rolled_back(main: Client, opened: Opened) -> None:
    append(main, "t")
    dev = opened("dev")
    first = dev.load("t")["metadata"]["current-snapshot-id"]
    last = append(dev, "t")["current-snapshot-id"]
    [row] = make(main, "diff", from_state="dev", to_state="main")
    assert row["details"] == {"ref main": f"{last} -> {first}", "rollback": "main"}


def test_branches_that_added_different_columns_differ_by_these(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    for client, type in ((main, "int"), (dev, "string")):
        answer = client.commit(
            "t",
            {"action": "add-schema", "schema": with_column(client.load("t"), "c", type)},
            {"action": "set-current-schema", "schema-id": -1},
        )
        assert answer.status == 200
    [row] = make(main, "diff", from_state="main", to_state="dev")
    assert row["details"] == {"retype-column c": "int -> string"}
