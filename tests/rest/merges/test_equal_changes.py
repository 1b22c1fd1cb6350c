"""Merges, reverts and cherry-picks of changes that the branch already has."""

from __future__ import annotations

from tests.rest.client import Client, set_properties, view, view_request
from tests.rest.merges.steps import Opened, conflict, make, merge, number, properties, rename


def set_of_namespace(client: Client, **updates: str) -> None:
    client.ok("POST", "v1/namespaces/db/properties", {"updates": updates, "removals": []})


def set_of_view(client: Client, **updates: str) -> None:
    client.ok("POST", view("v"), {"requirements": [], "updates": [set_properties(**updates)]})


def test_a_merge_does_not_change_what_both_sides_changed_in_the_same_way(
    main: Client, opened: Opened
) -> None:
    main.ok("POST", "v1/namespaces/db/views", view_request("v"))
    main.set("t", **{"my.gone": "1"})
    dev = opened("dev")
    for client in (main, dev):
        client.set("t", **{"my.a": "1"})
        client.commit("t", {"action": "remove-properties", "removals": ["my.gone"]})
        set_of_namespace(client, p="1")
        set_of_view(client, p="1")
    before = number(main)
    location = main.load("t")["metadata-location"]
    assert merge(main, "dev", dry_run=True) == {}
    assert merge(main, "dev") == {}
    assert main.load("t")["metadata-location"] == location
    assert make(main, "diff", from_state=str(before), to_state=str(number(main))) == []
    rename(dev, "t", "x")
    main.set("t", **{"my.b": "1"})
    dev.set("x", **{"my.b": "1"})
    assert merge(main, "dev") == {"db.x": "renamed"}
    assert properties(main, "x") == {"my.a": "1", "my.b": "1"}


def test_a_revert_or_cherry_pick_of_what_the_branch_has_makes_no_commit(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    for client in (main, dev):
        client.set("t", **{"my.a": "1"})
    end = number(main)
    assert make(main, "cherry_pick", commit=f"dev#{number(dev)}") == []
    assert number(main) == end
    main.commit("t", {"action": "remove-properties", "removals": ["my.a"]})
    assert make(main, "revert", commit=str(end)) == []
    assert number(main) == end + 1


def test_a_view_that_both_sides_changed_in_different_ways_is_a_conflict(main: Client, opened: Opened) -> None:
    main.ok("POST", "v1/namespaces/db/views", view_request("v"))
    dev = opened("dev")
    for client, value in ((main, "1"), (dev, "2")):
        set_of_view(client, p="1", q=value)
    conflict(main, "dev", "view db.v: both sides changed the view (this branch: ")


def test_a_namespace_whose_property_is_kept_is_reported_as_kept(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    for client, value in ((main, "1"), (dev, "2")):
        set_of_namespace(client, p=value)
    assert merge(main, "dev", strategy="ours") == {"db": "kept"}
    assert main.stored_properties("db")["p"] == "1"


def test_a_comparison_leaves_out_namespaces_with_equal_properties(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    for client in (main, dev):
        set_of_namespace(client, p="1")
        client.namespace("n", properties={"q": "1"})
        client.namespace("m", properties={"q": "1" if client is main else "2"})
    [row] = make(main, "diff", from_state="main", to_state="dev")
    assert (row["kind"], row["name"], row["change"]) == ("namespace", "m", "changed")
    assert row["details"] == {"set q": "2"}
