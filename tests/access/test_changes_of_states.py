"""Ways around grants by transactions, staging areas and reverts, and grants that are lost in the meantime."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.access.changes import RoleName
from polaris_spark.access.grant_changes import Grant
from polaris_spark.catalog.rows import TABLE
from polaris_spark.errors import ForbiddenError, MergeConflictError, NotFoundError
from polaris_spark.jobs.registry import call
from tests.access.world import SCHEMA, User, World

T = "v1/namespaces/db/tables"
SECRET = {"action": "set-properties", "updates": {"a": "secret"}}
SETS = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    for namespace in ("db", "hidden"):
        made.namespace(namespace)
        made.table(namespace, "t")
    yield made
    made.close()


@pytest.fixture
def ann(world: World) -> User:
    world.grant(["CATALOG_LIST"])
    return world.open(world.credentials)


def commit_after(ann: User, work: Callable[[User], object], lose: Callable[[], object]) -> None:
    with ann.session.transaction() as begun:
        work(User(begun))
        lose()


def test_a_grant_that_is_lost_before_the_commit_of_a_transaction_refuses_it(world: World, ann: User) -> None:
    table = world.entity("db", "t", kind=TABLE)
    for privilege, lost, work in (
        (
            "TABLE_WRITE_PROPERTIES",
            "TABLE_WRITE_PROPERTIES on table db.t",
            lambda user: user.status("POST", f"{T}/t", SETS),
        ),
        (
            "NAMESPACE_CREATE",
            "NAMESPACE_CREATE on the parent namespace",
            lambda user: user.status("POST", "v1/namespaces", {"namespace": ["late"]}),
        ),
        ("TABLE_READ_DATA", "TABLE_READ_PROPERTIES on table db.t", lambda user: user.status("GET", f"{T}/t")),
    ):
        on = world.catalog if privilege == "NAMESPACE_CREATE" else table
        world.grant([privilege], on)

        def lose(privilege: str = privilege, on: bytes = on) -> None:
            world.change(Grant, RoleName("one"), on, [privilege], described="it", revoke=True)

        before = world.root.session.catalog.head().head.number
        with pytest.raises(ForbiddenError, match=lost):
            commit_after(ann, work, lose)
        assert world.root.session.catalog.head().head.number == before


def test_an_owner_who_is_replaced_before_the_commit_of_a_transaction_is_refused(
    world: World, ann: User
) -> None:
    assert world.root.call("set_owner", owner="ann", on="table", name="db.t")[0] == 200

    def lose() -> None:
        assert world.root.call("set_owner", owner="root", on="table", name="db.t")[0] == 200

    with pytest.raises(ForbiddenError, match=r"TABLE_WRITE_PROPERTIES on table db\.t"):
        commit_after(ann, lambda user: user.status("POST", f"{T}/t", SETS), lose)


def test_what_a_transaction_itself_creates_needs_no_further_grants_at_the_commit(
    world: World, ann: User
) -> None:
    world.grant(["TABLE_CREATE"], world.entity("db"))
    with ann.session.transaction() as begun:
        user = User(begun)
        assert user.status("POST", T, {"name": "own", "schema": SCHEMA}) == 200
        assert user.status("POST", f"{T}/own", SETS) == 200
    assert ann.status("GET", f"{T}/own") == 200


def test_a_transaction_changes_no_namespace_that_another_principal_created_meanwhile(
    world: World, ann: User
) -> None:
    world.grant(["NAMESPACE_CREATE"])

    def create(user: User, **properties: str) -> None:
        body = {"namespace": ["fin"], "properties": properties}
        assert user.status("POST", "v1/namespaces", body) == 200

    def begin(properties: dict[str, str], other: User) -> None:
        with ann.session.transaction(isolation="snapshot") as begun:
            create(User(begun), **properties)
            planted = {"name": "planted", "schema": SCHEMA}
            assert User(begun).status("POST", "v1/namespaces/fin/tables", planted) == 200
            create(other, secret="hidden value")

    for properties in ({"history.expire.max-snapshot-age-ms": "1"}, {"secret": "guess"}):
        with pytest.raises(MergeConflictError, match="another namespace of this name") as raised:
            begin(properties, world.root)
        assert "secret" not in str(raised.value)
        assert world.root.send("GET", "v1/namespaces/fin/tables")[1]["identifiers"] == []
        found = world.root.send("GET", "v1/namespaces/fin")[1]["properties"]
        assert found.keys() - {"location"} == {"secret"}
        assert world.root.status("DELETE", "v1/namespaces/fin") == 204
    begin({"mine": "yes"}, ann)
    assert ann.send("GET", "v1/namespaces/fin")[1]["properties"].keys() >= {"mine", "secret"}


def test_a_transaction_creates_nothing_in_a_namespace_that_was_created_again(world: World, ann: User) -> None:
    world.namespace("made")
    world.grant(["TABLE_CREATE"], world.entity("made"))
    planted = {"name": "planted", "schema": SCHEMA}

    def again() -> None:
        assert world.root.status("DELETE", "v1/namespaces/made") == 204
        world.namespace("made")

    with pytest.raises(MergeConflictError, match="namespace made was dropped and created again"):
        _create_and(ann, planted, again)
    assert world.root.send("GET", "v1/namespaces/made/tables")[1]["identifiers"] == []


def _create_and(ann: User, table: dict[str, Any], then: Callable[[], object]) -> None:
    with ann.session.transaction(isolation="snapshot") as begun:
        assert User(begun).status("POST", "v1/namespaces/made/tables", table) == 200
        then()


def test_a_transaction_changes_no_table_that_was_moved_away_meanwhile(world: World, ann: User) -> None:
    world.grant(["TABLE_WRITE_PROPERTIES"], world.entity("db"))
    ends = ({"namespace": [one], "name": "t2"} for one in ("db", "hidden"))
    move = dict(zip(("source", "destination"), ends, strict=True))
    world.table("db", "t2")

    def write(then: Callable[[], object]) -> None:
        with ann.session.transaction(isolation="snapshot") as begun:
            assert User(begun).status("POST", f"{T}/t2", SETS) == 200
            then()

    with pytest.raises(MergeConflictError, match="was moved to another namespace"):
        write(lambda: world.root.status("POST", "v1/tables/rename", move))
    found = world.root.send("GET", "v1/namespaces/hidden/tables/t2")[1]["metadata"]
    assert "a" not in found["properties"]


def test_a_conflict_of_a_transaction_does_not_describe_a_table_of_another_principal(
    world: World, ann: User
) -> None:
    world.grant(["TABLE_CREATE"], world.entity("db"))
    with pytest.raises(MergeConflictError, match="another table of this name") as raised:
        _create_x(world, ann)
    assert "password" not in str(raised.value)


def _create_x(world: World, ann: User) -> None:
    table = {"name": "x", "schema": SCHEMA}
    with ann.session.transaction(isolation="snapshot") as begun:
        assert User(begun).status("POST", T, table) == 200
        assert world.root.status("POST", T, {**table, "properties": {"password": "secret"}}) == 200


def test_the_owner_of_an_entity_is_not_changed_in_a_transaction(world: World) -> None:
    with world.root.session.transaction() as begun:
        inside = User(begun)
        assert inside.status("POST", f"{T}/t", SETS) == 200
        status, answer = inside.call("set_owner", owner="ann", on="table", name="db.t")
        assert (status, "a transaction is open" in str(answer)) == (400, True), answer
        assert inside.call("show_owner", on="table", name="db.t")[1]["rows"][0][1] == "root"
    assert world.root.call("set_owner", owner="ann", on="table", name="db.t")[0] == 200


def test_a_rolled_back_request_needs_no_grant_at_the_commit(world: World, ann: User) -> None:
    table = world.entity("db", "t", kind=TABLE)
    world.grant(["NAMESPACE_CREATE"])
    world.grant(["TABLE_WRITE_PROPERTIES"], table)
    with ann.session.transaction(isolation="snapshot") as begun:
        user = User(begun)
        assert user.status("POST", "v1/namespaces", {"namespace": ["kept"]}) == 200
        begun.savepoint("a")
        assert user.status("POST", f"{T}/t", SETS) == 200
        begun.rollback_to("a")
        world.change(Grant, RoleName("one"), table, [], described="it", revoke=True)
    assert world.root.status("GET", "v1/namespaces/kept") == 200


def test_a_staging_area_is_committed_only_by_those_who_may_merge_into_its_branch(
    world: World, ann: User
) -> None:
    """The area's branch decides, not the branch of the session."""
    call(world.root.session, "create_branch", name="dev")
    assert world.root.call("stage", name="a")[0] == 200
    staged = {"namespace": ["staged"]}
    assert world.root.status("POST", "v1/namespaces", staged, polaris_state="+a") == 200
    path, body = "polaris-spark/v1/procedures/commit_staged", {"arguments": {"name": "a"}}
    world.grant(["BRANCH_MERGE"], world.branch("dev"))
    world.grant(["TABLE_READ_DATA", "VIEW_READ_PROPERTIES"], world.branch("+a"))
    status, answer = ann.send("POST", path, body, polaris_state="dev")
    assert (status, "BRANCH_MERGE on branch main" in str(answer)) == (403, True), answer
    assert world.root.status("GET", "v1/namespaces/staged") == 404
    world.revoke_all()
    world.grant(["BRANCH_MERGE"], world.branch("main"))
    status, answer = ann.send("POST", path, body)
    assert (status, "TABLE_READ_DATA on branch +a" in str(answer)) == (403, True), answer
    world.grant(["TABLE_READ_DATA", "VIEW_READ_PROPERTIES"], world.branch("+a"))
    status, answer = ann.send("POST", path, body)
    assert (status, "TABLE_READ_DATA on branch main" in str(answer)) == (403, True), answer
    world.grant(["TABLE_READ_DATA", "VIEW_READ_PROPERTIES"], world.branch("main"))
    assert ann.send("POST", path, body)[0] == 200
    assert world.root.status("GET", "v1/namespaces/staged") == 200


@pytest.mark.parametrize("procedure", ["merge", "cherry_pick", "commit_staged"])
def test_conflicts_show_nothing_to_those_who_may_not_read_the_branch(
    world: World, ann: User, procedure: str
) -> None:
    root, branch = world.root, "+a" if procedure == "commit_staged" else "dev"
    call(root.session, "stage" if branch == "+a" else "create_branch", name=branch.removeprefix("+"))
    assert root.status("POST", f"{T}/t", {**SETS, "updates": [SECRET]}) == 200
    world.grant(["CATALOG_MANAGE_CONTENT"], world.branch(branch))
    assert ann.status("POST", f"{T}/t", SETS, polaris_state=branch) == 200
    world.grant(["BRANCH_MERGE"], world.branch("main"))
    [(_, number, *_)] = call(root.session, "describe_branch", name=branch)
    arguments: dict[str, dict[str, str]] = {
        "merge": {"source": "dev"},
        "cherry_pick": {"commit": f"dev#{number}"},
        "commit_staged": {"name": "a"},
    }
    for more in ({"dry_run": True}, {}):
        status, answer = ann.call(procedure, **arguments[procedure], **more)
        assert (status, "secret" in str(answer)) == (403, False), answer
        assert "TABLE_READ_DATA on branch main" in str(answer)
    world.grant(["TABLE_READ_DATA", "VIEW_READ_PROPERTIES"], world.branch("main"))
    status, answer = ann.call(procedure, **arguments[procedure], dry_run=True)
    assert (status, "secret" in str(answer)) == (200, True), answer


def test_a_restored_table_has_its_owner(world: World, ann: User) -> None:
    world.grant(["TABLE_CREATE"], world.entity("db"))
    assert ann.status("POST", T, {"name": "own", "schema": SCHEMA}) == 200
    for name, to in (("own", "own"), ("own", "moved")):
        assert ann.status("DELETE", f"{T}/{name}") == 204
        assert world.root.call("undrop", table=f"db.{name}", to=f"db.{to}")[0] == 200
        assert world.root.call("show_owner", on="table", name=f"db.{to}")[1]["rows"][0][1] == "ann"
        assert ann.status("GET", f"{T}/{to}") == 200


def test_a_revert_needs_the_right_to_read_the_branch(world: World, ann: User) -> None:
    """Its result names what the commits have changed."""
    newest = str(world.root.session.catalog.head().head.number)
    world.grant(["BRANCH_MERGE"], world.branch("main"))
    status, answer = ann.call("revert", commit=newest, dry_run=True)
    assert status == 403
    assert "hidden" not in str(answer)
    world.grant(["TABLE_READ_DATA", "VIEW_READ_PROPERTIES"], world.branch("main"))
    assert ann.call("revert", commit=newest, dry_run=True)[0] == 200


@pytest.mark.parametrize(
    ("procedure", "arguments", "branch"),
    [
        ("create_branch", {"name": "again"}, "again"),
        ("rename_branch", {"name": "other", "to": "again"}, "again"),
        ("stage", {"name": "area"}, "+area"),
    ],
)
def test_a_branch_never_has_the_grants_of_a_dropped_one_even_if_its_creator_dies(
    world: World,
    ann: User,
    monkeypatch: pytest.MonkeyPatch,
    procedure: str,
    arguments: dict[str, str],
    branch: str,
) -> None:
    first = {"stage": ("stage", "area")}.get(procedure, ("create_branch", "again"))
    call(world.root.session, "create_branch", name="other")
    call(world.root.session, first[0], name=first[1])
    world.grant(["TABLE_READ_DATA"], world.branch(branch))
    assert ann.status("GET", f"{T}/t", polaris_state=branch) == 200
    call(world.root.session, "drop_branch", name=branch)

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("polaris_spark.jobs.branches.begin", die)
    with pytest.raises(KeyboardInterrupt):
        call(world.root.session, procedure, **arguments)
    assert world.root.status("GET", f"{T}/t", polaris_state=branch) == 200
    assert ann.status("GET", f"{T}/t", polaris_state=branch) == 404


def test_a_repeated_rename_moves_the_rights_if_the_first_process_died(
    world: World, ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    call(world.root.session, "create_branch", name="other")
    world.grant(["TABLE_READ_DATA"], world.branch("other"))

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("polaris_spark.jobs.branches.begin", die)
        with pytest.raises(KeyboardInterrupt):
            call(world.root.session, "rename_branch", name="other", to="again")
    assert ann.status("GET", f"{T}/t", polaris_state="again") == 404
    call(world.root.session, "rename_branch", name="other", to="again")
    assert ann.status("GET", f"{T}/t", polaris_state="again") == 200
    with pytest.raises(NotFoundError):
        call(world.root.session, "rename_branch", name="other", to="again")


def test_the_metadata_file_of_a_dropped_table_is_not_registered_without_rights_on_it(
    world: World, ann: User
) -> None:
    status, loaded = world.root.send("GET", "v1/namespaces/hidden/tables/t")
    assert status == 200
    assert world.root.status("DELETE", "v1/namespaces/hidden/tables/t") == 204
    body = {"name": "mine", "metadata-location": loaded["metadata-location"]}
    world.grant(["NAMESPACE_FULL_METADATA", "TABLE_FULL_METADATA"], world.entity("db"))
    status, answer = ann.send("POST", "v1/namespaces/db/register", body)
    assert (status, "TABLE_READ_DATA on catalog" in str(answer)) == (403, True), answer
    assert ann.send("POST", "v1/namespaces/db/register-view", body)[0] == 403
    world.grant(["TABLE_READ_DATA", "VIEW_READ_PROPERTIES"])
    assert ann.send("POST", "v1/namespaces/db/register", body)[0] == 200


def test_a_commit_or_time_is_checked_on_its_own_branch(world: World, ann: User) -> None:
    """`4` is a commit of the session's branch, or of the branch that is moved, and no branch of this name."""
    call(world.root.session, "create_branch", name="dev")
    world.grant(["CATALOG_MANAGE_CONTENT", "BRANCH_FULL_METADATA"], world.branch("dev"))
    path, on_dev = "polaris-spark/v1/procedures", {"polaris_state": "dev"}
    assert ann.send("POST", f"{path}/cherry_pick", {"arguments": {"commit": "4"}}, **on_dev)[0] == 200
    for to in ("4", "2999-01-01T00:00:00Z", "dev#4"):
        status, answer = ann.call("reassign_branch", name="dev", to=to)
        assert status == 200, (to, answer)
    for procedure, arguments in (
        ("cherry_pick", {"commit": "main#4"}),
        ("reassign_branch", {"name": "dev", "to": "main#4"}),
        ("reassign_branch", {"name": "dev", "to": "main"}),
    ):
        status, answer = ann.send("POST", f"{path}/{procedure}", {"arguments": arguments}, **on_dev)
        assert (status, "TABLE_READ_DATA on branch main" in str(answer)) == (403, True), (procedure, answer)


def test_a_grant_on_a_branch_whose_name_is_a_number_does_not_hold_for_this_commit(
    world: World, ann: User
) -> None:
    number = str(world.root.session.catalog.head().head.number)
    call(world.root.session, "create_branch", name=number)
    world.grant(["TABLE_READ_DATA", "VIEW_READ_PROPERTIES"], world.branch(number))
    call(world.root.session, "drop_branch", name=number)
    call(world.root.session, "create_branch", name="mine")
    world.grant(["BRANCH_MERGE", "BRANCH_WRITE_PROPERTIES"], world.branch("mine"))
    for procedure, arguments in (
        ("cherry_pick", {"commit": number, "dry_run": True}),
        ("reassign_branch", {"name": "mine", "to": number}),
    ):
        path = f"polaris-spark/v1/procedures/{procedure}"
        status, answer = ann.send("POST", path, {"arguments": arguments}, polaris_state="mine")
        assert (status, "TABLE_READ_DATA on branch mine" in str(answer)) == (403, True), (procedure, answer)


def test_a_dropped_table_is_restored_only_by_those_who_may_read_the_branch(world: World, ann: User) -> None:
    assert world.root.status("DELETE", "v1/namespaces/hidden/tables/t") == 204
    world.grant(["NAMESPACE_CREATE"])
    world.grant(["TABLE_CREATE", "VIEW_CREATE"], world.branch("main"))
    assert ann.status("POST", "v1/namespaces", {"namespace": ["mine"]}) == 200
    for name in ("hidden.t", "hidden.tt"):
        status, answer = ann.call("undrop", table=name, to="mine.t")
        assert (status, "TABLE_READ_DATA on branch main" in str(answer)) == (403, True), answer
    assert ann.status("GET", "v1/namespaces/mine/tables/t") == 404
    world.grant(["TABLE_READ_DATA", "VIEW_READ_PROPERTIES"], world.branch("main"))
    assert "similar names were dropped: hidden.t" in str(ann.call("undrop", table="hidden.tt")[1])
    assert ann.call("undrop", table="hidden.t", to="mine.t")[0] == 200
