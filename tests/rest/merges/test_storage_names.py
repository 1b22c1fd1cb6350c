"""Merges of materialized views that exchange names, and of tables with the names of storage tables."""

from __future__ import annotations

import pytest

from polaris_spark.clock import ManualClock
from tests.rest.client import Client, path, set_properties, table, view, view_request
from tests.rest.materialized import create_materialized_view, refresh
from tests.rest.merges.steps import DAY, Opened, append, conflict, make, merge, number, revert

INNER = ("db", "x")


def refreshed(client: Client, name: str, id: int, number: int, replaces: int | None = None) -> None:
    body = client.ok("GET", view(name))["metadata"]
    client.ok(
        "POST", table("storage", ("db", name)), refresh(body["view-uuid"], id, number, replaces=replaces)
    )


def renamed(client: Client, old: str, new: str) -> None:
    names = [{"namespace": ["db"], "name": one} for one in (old, new)]
    client.ok("POST", "v1/views/rename", {"source": names[0], "destination": names[1]})


def with_table(client: Client) -> None:
    """Create the table `db.x.storage` in the namespace `db.x`."""
    client.create("storage", INNER)


def changed(client: Client, path: str, **properties: str) -> None:
    client.ok("POST", path, {"requirements": [], "updates": [set_properties(**properties)]})


def test_a_view_that_exchanges_its_name_is_taken_with_its_own_rows(main: Client, opened: Opened) -> None:
    for name in ("x", "y"):
        create_materialized_view(main.session.catalog, name)
    dev = opened("dev")
    refreshed(main, "x", 1, 1)
    for old, new in (("x", "z"), ("y", "x"), ("z", "y")):
        renamed(dev, old, new)
    conflict(main, "dev", "view db.x: both sides changed")
    merge(main, "dev", strategy="theirs")
    for name in ("x", "y"):
        assert main.load("storage", ("db", name))["metadata"].get("current-snapshot-id", -1) == -1


def test_a_storage_table_does_not_replace_a_table(main: Client, opened: Opened) -> None:
    main.namespace(*INNER)
    dev = opened("dev")
    with_table(main)
    dev.ok("DELETE", path(*INNER))
    create_materialized_view(dev.session.catalog, "x")
    conflict(main, "dev", "table db.x.storage: the branch has another table of this name")


def test_a_view_is_not_the_namespace_of_a_table(main: Client, opened: Opened) -> None:
    main.namespace(*INNER)
    dev = opened("dev")
    main.ok("DELETE", path(*INNER))
    main.ok("POST", "v1/namespaces/db/views", view_request("x"))
    with_table(dev)
    conflict(main, "dev", "table db.x.storage: namespace db.x does not exist in the branch")


def test_a_strategy_for_a_view_does_not_apply_to_the_table_named_like_its_storage(
    main: Client, opened: Opened
) -> None:
    main.namespace(*INNER)
    dev = opened("dev")
    for client in (main, dev):
        client.ok("POST", "v1/namespaces/db/views", view_request("x"))
    with_table(dev)
    assert merge(main, "dev", strategy="ours") == {"db.x": "kept", "db.x.storage": "added"}
    changed(main, view("x"), p="1")
    assert merge(dev, "main", strategy="theirs")
    changed(main, view("x"), p="2")
    changed(dev, view("x"), p="3")
    changed(dev, table("storage", INNER), q="1")
    assert merge(main, "dev", strategy="ours") == {"db.x": "kept", "db.x.storage": "changed"}


@pytest.mark.parametrize("strategy", ["ours", "theirs"])
def test_a_strategy_resolves_an_expiry_beside_a_refresh(
    main: Client, opened: Opened, clock: ManualClock, strategy: str
) -> None:
    create_materialized_view(main.session.catalog, "x")
    refreshed(main, "x", 1, 1)
    refreshed(main, "x", 2, 2, 1)
    dev = opened("dev")
    clock.advance(5 * DAY)
    make(main, "expire", older_than="0 s", retain_last=1)
    refreshed(dev, "x", 3, 3, 2)
    conflict(main, "dev", "view db.x: both sides changed or refreshed the materialized view")
    merge(main, "dev", strategy=strategy)
    stored = main.load("storage", ("db", "x"))["metadata"]["current-snapshot-id"]
    assert stored == {"ours": 2, "theirs": 3}[strategy]


def test_the_newest_refresh_is_reverted(main: Client) -> None:
    create_materialized_view(main.session.catalog, "x")
    refreshed(main, "x", 1, 1)
    refreshed(main, "x", 2, 2, 1)
    refresh_of_2 = number(main)
    assert revert(main, refresh_of_2) == {"db.x": "changed"}
    assert main.load("storage", ("db", "x"))["metadata"]["current-snapshot-id"] == 1
    refreshed(main, "x", 3, 3, 1)
    conflict(main, str(refresh_of_2), "view db.x: both sides changed or refreshed", procedure="revert")


def test_a_merge_with_a_refresh_is_reverted_whole(main: Client, opened: Opened) -> None:
    create_materialized_view(main.session.catalog, "x")
    refreshed(main, "x", 1, 1)
    dev = opened("dev")
    refreshed(dev, "x", 2, 2, 1)
    append(dev, "t")
    merge(main, "dev")
    assert revert(main, number(main)) == {"db.t": "merged", "db.x": "changed"}
    assert main.load("storage", ("db", "x"))["metadata"]["current-snapshot-id"] == 1
    refreshed(main, "x", 3, 3, 1)


def test_a_replaced_materialized_view_is_taken_by_a_branch_that_dropped_it(
    main: Client, opened: Opened
) -> None:
    create_materialized_view(main.session.catalog, "x")
    dev = opened("dev")
    create_materialized_view(dev.session.catalog, "x", sql="select 2", column="z", replace=True)
    main.ok("DELETE", view("x"))
    assert merge(main, "dev", strategy="theirs") == {"db.x": "replaced"}
    main.load("storage", ("db", "x"))


def test_a_view_gets_the_name_of_a_view_that_both_sides_dropped(main: Client, opened: Opened) -> None:
    for name in ("x", "y"):
        create_materialized_view(main.session.catalog, name)
    dev = opened("dev")
    for client in (main, dev):
        client.ok("DELETE", view("x"))
    changed(main, view("y"), p="1")
    renamed(dev, "y", "x")
    assert merge(main, "dev", strategy="theirs") == {"db.x": "replaced"}
    main.load("storage", ("db", "x"))
