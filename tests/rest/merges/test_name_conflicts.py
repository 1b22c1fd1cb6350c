"""Merges in which names belong to different entities on the two sides."""

from __future__ import annotations

import pytest

from polaris_spark.catalog.rows import NAMES, id_from
from tests.rest.client import Client, table, view, view_request
from tests.rest.materialized import create_materialized_view
from tests.rest.merges.steps import Opened, conflict, merge, rename


def uuids(client: Client) -> dict[str, str]:
    """Return the UUID of each table of the namespace `db`, by name."""
    return {name: client.load(name)["metadata"]["table-uuid"] for name in client.names("db")}


def test_a_table_whose_rename_is_not_taken_keeps_its_name(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    rename(dev, "t", "b")
    dev.create("t")
    main.create("b")
    before = uuids(main)
    other = "the branch has another table of this name"
    conflict(main, "dev", "2 conflicts", f"table db.b: {other}", f"table db.t: {other}")
    assert merge(main, "dev", strategy="ours") == {"db.b": "kept", "db.t": "kept"}
    assert uuids(main) == before


def test_no_rename_of_a_chain_is_taken_if_the_last_name_is_not_free(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    for old, new in (("t", "x"), ("u", "t"), ("w", "u")):
        rename(dev, old, new)
    dev.set("x", **{"my.a": "1"})
    main.create("x")
    before = uuids(main)
    assert merge(main, "dev", strategy="ours") == {"db.t": "kept", "db.u": "kept", "db.x": "kept"}
    assert uuids(main) == before


def test_a_name_that_is_not_freed_can_be_taken_by_its_own_strategy(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    for old, new in (("t", "x"), ("u", "t")):
        rename(dev, old, new)
    main.create("x")
    before = uuids(main)
    rows = merge(main, "dev", strategy="ours", strategies={"db.t": "theirs"})
    assert rows == {"db.x": "kept", "db.t": "renamed"}
    assert uuids(main) == {"t": before["u"], "w": before["w"], "x": before["x"]}


@pytest.mark.parametrize("taken", ["table", "view", "moved"])
def test_a_materialized_view_that_is_not_taken_leaves_no_storage_table(
    main: Client, opened: Opened, taken: str
) -> None:
    if taken == "moved":
        create_materialized_view(main.session.catalog, "old")
    dev = opened("dev")
    if taken == "moved":
        ends = [{"namespace": ["db"], "name": one} for one in ("old", "same")]
        dev.ok("POST", "v1/views/rename", {"source": ends[0], "destination": ends[1]})
    else:
        create_materialized_view(dev.session.catalog, "same")
    if taken == "table":
        main.create("same")
    else:
        main.ok("POST", "v1/namespaces/db/views", view_request("same"))
    assert merge(main, "dev", strategy="ours") == {"db.same": "kept"}
    assert main.send("GET", table("storage", ("db", "same"))).status == 404
    if taken == "moved":
        main.ok("GET", view("old"))
        main.load("storage", ("db", "old"))


def test_tables_exchange_their_names_beside_tables_with_the_temporary_names(
    main: Client, opened: Opened
) -> None:
    dev = opened("dev")
    for old, new in (("t", "x"), ("u", "t"), ("x", "u")):
        rename(dev, old, new)
    head = main.session.catalog.head()
    entities = [id_from(entry.value) for _, entry in head.index(NAMES).range(b"", None)]
    for id in entities:
        main.create(f"{id:x}")
        dev.create(f"{id:x}_")
    before = uuids(main) | {name: uuid for name, uuid in uuids(dev).items() if name.endswith("_")}
    merge(main, "dev")
    assert uuids(main) == before | {"t": before["u"], "u": before["t"]}


def test_a_conflict_of_a_renamed_and_removed_table_names_the_old_and_new_name(
    main: Client, opened: Opened
) -> None:
    dev = opened("dev")
    rename(dev, "t", "b")
    main.ok("DELETE", table("t"))
    conflict(main, "dev", "the other state renamed it from db.t to db.b, and this branch removed it")
    conflict(dev, "main", "the other state removed it, and this branch renamed it from db.t to db.b")
