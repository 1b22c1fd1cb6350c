"""Grants and owners on branches, tags and earlier states."""

from __future__ import annotations

from polaris_spark.catalog.rows import TABLE
from polaris_spark.jobs.registry import call
from tests.access.world import SCHEMA, T, User, World


def test_a_grant_on_a_branch_holds_only_there(world: World, ann: User) -> None:
    call(world.root.session, "create_branch", name="dev")
    world.grant(["TABLE_READ_DATA"], world.branch("dev"))
    assert ann.status("GET", f"{T}/t", polaris_state="dev") == 200
    assert ann.status("GET", f"{T}/t@dev") == 200
    assert ann.status("GET", f"{T}/t") == 404
    assert ann.status("GET", f"{T}/t", polaris_state="main#1") == 404


def test_whoever_creates_a_branch_may_not_read_it_for_this_alone(world: World, ann: User) -> None:
    world.grant(["BRANCH_CREATE"])
    assert ann.call("create_branch", name="mine")[0] == 200
    assert ann.status("GET", f"{T}/t", polaris_state="mine") == 404


def test_a_new_branch_has_none_of_the_grants_of_a_dropped_one(world: World, ann: User) -> None:
    call(world.root.session, "create_branch", name="dev")
    world.grant(["TABLE_READ_DATA"], world.branch("dev"))
    call(world.root.session, "rename_branch", name="dev", to="renamed")
    assert ann.status("GET", f"{T}/t", polaris_state="renamed") == 200
    call(world.root.session, "create_branch", name="dev")
    assert ann.status("GET", f"{T}/t", polaris_state="dev") == 404
    call(world.root.session, "drop_branch", name="renamed")
    call(world.root.session, "create_branch", name="renamed")
    assert ann.status("GET", f"{T}/t", polaris_state="renamed") == 404


def test_a_merge_does_not_bring_hidden_content_to_a_branch(world: World, ann: User) -> None:
    call(world.root.session, "create_branch", name="dev")
    world.grant(["CATALOG_MANAGE_CONTENT"], world.branch("dev"))
    world.grant(["BRANCH_FULL_METADATA"])
    world.table("db", "later")
    number = world.root.session.catalog.head().head.number
    on_dev = {"polaris_state": "dev"}
    for procedure, arguments in (
        ("merge", {"source": "main"}),
        ("merge", {"source": f"main#{number}"}),
        ("cherry_pick", {"commit": f"main#{number}"}),
        ("reassign_branch", {"name": "dev", "to": "main"}),
    ):
        path = f"polaris-spark/v1/procedures/{procedure}"
        status, body = ann.send("POST", path, {"arguments": arguments}, **on_dev)
        assert status == 403, (procedure, body)
        assert "TABLE_READ_DATA" in str(body)
    assert ann.status("GET", f"{T}/later", **on_dev) == 404
    world.grant(["CATALOG_MANAGE_CONTENT"], world.branch("main"))
    path = "polaris-spark/v1/procedures/merge"
    assert ann.send("POST", path, {"arguments": {"source": "main"}}, **on_dev)[0] == 200
    assert ann.status("GET", f"{T}/later", **on_dev) == 200


def test_whoever_creates_a_branch_may_drop_it(world: World, ann: User) -> None:
    world.grant(["BRANCH_CREATE"])
    assert ann.call("create_branch", name="mine")[0] == 200
    world.revoke_all()
    world.grant(["CATALOG_LIST"])
    assert ann.call("drop_branch", name="mine")[0] == 200
    assert ann.call("drop_branch", name="main")[0] == 403


def test_branches_tags_and_earlier_states_need_the_same_grants(world: World, ann: User) -> None:
    call(world.root.session, "create_branch", name="dev")
    call(world.root.session, "create_tag", name="v1")
    number = world.root.session.catalog.head().head.number
    states = ("dev", "v1", str(number), f"dev#{number}")
    for state in states:
        assert ann.status("GET", f"{T}/t@{state.replace('#', '%23')}") == 404
        assert ann.status("GET", f"{T}/t", polaris_state=state) == 404
    world.grant(["TABLE_READ_DATA"], world.entity("db", "t", kind=TABLE))
    for state in states:
        assert ann.status("GET", f"{T}/t", polaris_state=state) == 200
        assert ann.status("GET", f"{T}/u", polaris_state=state) == 404


def test_a_session_that_shows_another_branch_needs_grants_there(world: World, ann: User) -> None:
    call(world.root.session, "create_branch", name="dev")
    world.grant(["TABLE_READ_DATA"], world.branch("main"))
    assert ann.status("GET", f"{T}/t") == 200
    shown = world.open(world.credentials, as_of="dev")
    assert shown.status("GET", f"{T}/t") == 404
    world.grant(["TABLE_READ_DATA"], world.branch("dev"))
    assert shown.status("GET", f"{T}/t") == 200


def test_owners_survive_transactions_merges_and_renames(world: World, ann: User) -> None:
    world.grant(["NAMESPACE_CREATE", "BRANCH_CREATE", "BRANCH_MERGE"])
    body = {
        "table-changes": [],
        "requests": [
            {"method": "POST", "path": "v1/namespaces", "body": {"namespace": ["mine"]}},
            {"method": "POST", "path": "v1/namespaces", "body": {"namespace": ["more"]}},
        ],
    }
    assert ann.status("POST", "v1/transactions/commit", body) == 204
    assert ann.call("show_owner", on="namespace", name="mine")[1]["rows"][0][1] == "ann"
    call(world.root.session, "create_branch", name="dev")
    assert ann.status("POST", "v1/namespaces", {"namespace": ["later"]}, polaris_state="dev") == 200
    call(world.root.session, "merge", source="dev")
    assert ann.call("show_owner", on="namespace", name="later")[1]["rows"][0][1] == "ann"
    assert ann.status("POST", "v1/namespaces/later/tables", {"name": "t", "schema": SCHEMA}) == 200
    move = {
        "source": {"namespace": ["later"], "name": "t"},
        "destination": {"namespace": ["mine"], "name": "t2"},
    }
    assert ann.status("POST", "v1/tables/rename", move) == 204
    assert ann.call("show_owner", on="table", name="mine.t2")[1]["rows"][0][1] == "ann"


def test_a_transaction_on_a_branch_has_the_grants_of_the_branch(world: World, ann: User) -> None:
    world.grant(["TABLE_READ_DATA"], world.branch("main"))
    with ann.session.transaction() as copy:
        inside = User(copy)
        assert inside.status("GET", f"{T}/t") == 200
        assert inside.status("DELETE", f"{T}/t") == 403


def test_a_former_owner_gives_no_grants_from_an_older_state(world: World, ann: User) -> None:
    """A grant on a table holds on every branch, so the owner on another branch is not enough."""
    world.grant(["TABLE_CREATE"], world.entity("hidden"))
    assert ann.status("POST", "v1/namespaces/hidden/tables", {"name": "own", "schema": SCHEMA}) == 200
    before = ann.session.catalog.head().head.number
    world.revoke_all()
    assert world.root.call("set_owner", owner="root", on="table", name="hidden.own")[0] == 200
    world.grant(["BRANCH_CREATE"])
    assert ann.call("create_branch", name="mine", at=str(before))[0] == 200
    mine = world.open(world.credentials, branch="mine")
    asked = {"privileges": "TABLE_WRITE_DATA", "role": "one", "on": "table", "name": "hidden.own"}
    assert mine.call("grant", **asked)[0] == 403
    assert mine.call("set_owner", owner="ann", on="table", name="hidden.own")[0] == 403
    assert ann.status("GET", "v1/namespaces/hidden/tables/own") == 404


def test_whoever_uses_a_staging_area_does_not_own_it(world: World, ann: User) -> None:
    assert world.root.call("stage", name="a")[0] == 200
    world.grant(["BRANCH_CREATE"])
    assert ann.call("stage", name="a")[0] == 200
    assert ann.call("drop_branch", name="+a")[0] == 403
    assert ann.call("stage", name="own")[0] == 200
    assert ann.call("drop_branch", name="+own")[0] == 200


def test_a_tag_has_none_of_the_grants_of_a_dropped_branch(world: World, ann: User) -> None:
    world.grant(["BRANCH_CREATE"])
    for name in ("x", "mine"):
        assert ann.call("create_branch", name=name)[0] == 200
        world.grant(["TABLE_READ_DATA", "VIEW_READ_PROPERTIES"], world.branch(name))
    assert ann.call("reassign_branch", name="mine", to="main")[0] == 403
    assert ann.call("drop_branch", name="x")[0] == 200
    assert ann.call("create_tag", name="x", source="main")[0] == 200
    assert ann.call("reassign_branch", name="mine", to="x")[0] == 403
