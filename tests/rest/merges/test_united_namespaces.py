"""Merges of namespaces that two branches have created separately."""

from __future__ import annotations

import pytest

from tests.rest.client import Client, path
from tests.rest.merges.steps import Opened, conflict, make, merge, number


def change(client: Client, removals: tuple[str, ...] = (), **updates: str) -> None:
    body = {"updates": updates, "removals": list(removals)}
    client.ok("POST", "v1/namespaces/n/properties", body)


def properties(client: Client) -> dict[str, str]:
    return {key: value for key, value in client.stored_properties("n").items() if key != "location"}


@pytest.fixture
def dev(main: Client, opened: Opened) -> Client:
    """A branch whose namespace `n` was created there and in `main`, and merged into `main`."""
    dev = opened("dev")
    main.namespace("n", properties={"a": "1"})
    dev.namespace("n", properties={"b": "2"})
    dev.create("x", namespace=("n",))
    assert merge(main, "dev") == {"n": "merged", "n.x": "added"}
    return dev


def test_properties_of_a_united_namespace_are_merged(main: Client, dev: Client) -> None:
    change(dev, c="3")
    assert merge(main, "dev") == {"n": "merged"}
    change(dev, ("c",))
    assert merge(main, "dev") == {"n": "merged"}
    assert properties(main) == {"a": "1", "b": "2"}
    assert merge(main, "dev") == {}


@pytest.mark.parametrize("strategy", ["fail", "ours", "theirs"])
def test_a_united_namespace_is_merged_back(main: Client, dev: Client, strategy: str) -> None:
    change(dev, c="3")
    assert merge(dev, "main", strategy=strategy) == {"n": "merged"}
    assert properties(dev) == {"a": "1", "b": "2", "c": "3"}
    assert dev.names("n") == ["x"]
    assert merge(dev, "main") == {}
    assert merge(main, "dev") == {"n": "changed"}
    assert properties(main) == properties(dev)
    assert make(main, "diff", from_state="main", to_state="dev") == []
    before = number(main)
    assert merge(main, "dev") == {}
    assert number(main) == before


def test_the_drop_of_a_united_namespace_is_merged(main: Client, dev: Client) -> None:
    merge(dev, "main")
    dev.ok("DELETE", "v1/namespaces/n/tables/x")
    dev.ok("DELETE", path("n"))
    assert merge(main, "dev") == {"n": "removed", "n.x": "removed"}
    assert main.send("GET", path("n")).status == 404


def test_the_drop_of_a_united_namespace_conflicts_with_changes_of_it(main: Client, dev: Client) -> None:
    dev.ok("DELETE", "v1/namespaces/n/tables/x")
    dev.ok("DELETE", path("n"))
    conflict(main, "dev", "namespace n: the other state removed it, and this branch changed it")
    assert merge(main, "dev", strategy="theirs") == {"n": "removed", "n.x": "removed"}


def test_a_namespace_that_was_dropped_and_created_again_is_the_same_namespace(
    main: Client, opened: Opened
) -> None:
    main.namespace("n", properties={"a": "1"})
    dev = opened("dev")
    dev.ok("DELETE", path("n"))
    dev.namespace("n", properties={"a": "2"})
    main.create("x", namespace=("n",))
    assert merge(main, "dev") == {"n": "changed"}
    assert (properties(main), main.names("n")) == ({"a": "2"}, ["x"])
    number_of_merge = number(main)
    assert [row["name"] for row in make(main, "revert", commit=str(number_of_merge))] == ["n"]
    assert properties(main) == {"a": "1"}
