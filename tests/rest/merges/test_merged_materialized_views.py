"""Merges and reverts of materialized views and their rows."""

from __future__ import annotations

from polaris_spark.clock import ManualClock
from tests.rest.client import Client, set_properties, table, view, view_request
from tests.rest.materialized import create_materialized_view, refresh
from tests.rest.merges.steps import DAY, Opened, conflict, make, merge, number, revert


def refreshed(client: Client, id: int, number: int, replaces: int | None = None) -> None:
    """Refresh the view `db.mv`."""
    body = client.ok("GET", view("mv"))["metadata"]
    commit = refresh(body["view-uuid"], id, number, replaces=replaces)
    answer = client.send("POST", table("storage", ("db", "mv")), commit)
    assert answer.status == 200, answer


def test_a_materialized_view_and_its_rows_are_merged_as_one(main: Client, opened: Opened) -> None:
    create_materialized_view(main.session.catalog, "mv")
    dev = opened("dev")
    refreshed(dev, 1, 1)
    [row] = make(main, "diff", from_state="main", to_state="dev")
    assert (row["kind"], row["name"], row["change"]) == ("materialized view", "db.mv", "changed")
    assert merge(main, "dev") == {"db.mv": "changed"}
    assert main.load("storage", ("db", "mv"))["metadata"]["current-snapshot-id"] == 1
    refreshed(dev, 2, 2, 1)
    refreshed(main, 3, 2, 1)
    conflict(main, "dev", "view db.mv: both sides changed or refreshed the materialized view")
    assert merge(main, "dev", strategies={"db.mv": "theirs"}) == {"db.mv": "replaced"}
    assert main.load("storage", ("db", "mv"))["metadata"]["current-snapshot-id"] == 2
    dev.ok("DELETE", view("mv"))
    assert merge(main, "dev") == {"db.mv": "removed"}


def test_the_refresh_of_a_materialized_view_is_reverted_only_if_its_rows_exist(
    main: Client, clock: ManualClock
) -> None:
    def stored() -> int:
        return int(main.load("storage", ("db", "mv"))["metadata"]["current-snapshot-id"])

    create_materialized_view(main.session.catalog, "mv")
    refreshed(main, 1, 1)
    for id, replaces in ((2, 1), (3, 2)):
        refreshed(main, id, id, replaces)
    second = number(main) - 1
    conflict(main, str(second), "view db.mv: both sides", procedure="revert")
    assert revert(main, second, strategy="theirs") == {"db.mv": "replaced"}
    assert stored() == 1
    refreshed(main, 4, 2, 1)
    fourth = number(main)
    clock.advance(DAY)
    make(main, "expire", older_than="0 s", retain_last=1)
    said = conflict(main, str(fourth), "view db.mv: ", procedure="revert", strategy="theirs")
    assert "its files may be deleted already" in said
    assert stored() == 4


def test_a_namespace_and_a_materialized_view_do_not_get_the_same_name(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    create_materialized_view(main.session.catalog, "mv")
    dev.namespace("db", "mv")
    conflict(main, "dev", "namespace db.mv: Materialized view already exists: db.mv")
    conflict(dev, "main", "view db.mv: Namespace already exists: db.mv")


def test_a_materialized_view_does_not_make_room_for_another_view(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    dev.ok("POST", "v1/namespaces/db/views", view_request("same"))
    create_materialized_view(main.session.catalog, "same")
    conflict(main, "dev", "view db.same: the branch has another view of this name", strategy="theirs")


def test_the_strategy_theirs_takes_a_materialized_view_with_its_unchanged_rows(
    main: Client, opened: Opened
) -> None:
    create_materialized_view(main.session.catalog, "mv")
    refreshed(main, 1, 1)
    dev = opened("dev")
    create_materialized_view(dev.session.catalog, "mv", sql="select 2", replace=True)
    rows = dev.load("storage", ("db", "mv"))["metadata"]["current-snapshot-id"]
    refreshed(main, 2, 2, 1)
    both = "view db.mv: both sides changed or refreshed the materialized view"
    assert "1 conflict," in conflict(main, "dev", both)
    assert merge(main, "dev", strategy="theirs") == {"db.mv": "replaced"}
    [version] = main.ok("GET", view("mv"))["metadata"]["versions"][-1]["representations"]
    assert version["sql"] == "select 2"
    assert main.load("storage", ("db", "mv"))["metadata"]["current-snapshot-id"] == rows


def test_a_dropped_materialized_view_is_restored_with_its_storage_table(main: Client, opened: Opened) -> None:
    create_materialized_view(main.session.catalog, "mv")
    refreshed(main, 1, 1)
    dev = opened("dev")
    dev.ok("POST", view("mv"), {"requirements": [], "updates": [set_properties(p="1")]})
    main.ok("DELETE", view("mv"))
    conflict(main, "dev", "view db.mv: the other state changed it, and this branch removed it")
    assert merge(main, "dev", strategy="ours", dry_run=True) == {"db.mv": "kept"}
    assert merge(main, "dev", strategy="theirs") == {"db.mv": "replaced"}
    main.ok("GET", view("mv"))
    assert main.load("storage", ("db", "mv"))["metadata"]["current-snapshot-id"] == 1
