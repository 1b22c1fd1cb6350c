"""Requests by a principal with few privileges: what it may see and do, and ways around grants that must not exist."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import polaris_spark
from polaris_spark.access import securables
from polaris_spark.access.changes import Assign, DropRole, RoleName
from polaris_spark.access.control import AccessControl
from polaris_spark.access.grant_changes import Grant
from polaris_spark.access.principal_changes import AlterPrincipal
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.rows import TABLE, VIEW
from polaris_spark.commits.change import new_operation_id
from polaris_spark.errors import ForbiddenError, InputError, NotAuthorizedError, NotFoundError
from polaris_spark.jobs.registry import call
from tests.access.world import SCHEMA, User, World

T = "v1/namespaces/db/tables"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    for namespace in ("db", "hidden"):
        made.namespace(namespace)
        for table in ("t", "u"):
            made.table(namespace, table)
    made.namespace("deep", "er")
    made.table("deep%1Fer", "t")
    made.view("db", "v")
    yield made
    made.close()


@pytest.fixture
def ann(world: World) -> User:
    world.grant(["CATALOG_LIST"])
    return world.open(world.credentials)


def names(answer: tuple[int, Any]) -> list[str]:
    status, body = answer
    assert status == 200, body
    return [".".join(one) if isinstance(one, list) else one["name"] for one in next(iter(body.values()))]


def test_a_grant_on_a_table_shows_only_this_table_and_the_way_to_it(world: World, ann: User) -> None:
    world.grant(["TABLE_READ_DATA"], world.entity("deep", "er", "t", kind=TABLE))
    world.grant(["TABLE_READ_DATA"], world.entity("db", "t", kind=TABLE))
    assert names(ann.send("GET", "v1/namespaces")) == ["db", "deep"]
    assert names(ann.send("GET", "v1/namespaces", query={"parent": "deep"})) == ["deep.er"]
    assert names(ann.send("GET", T)) == ["t"]
    assert names(ann.send("GET", "v1/namespaces/db/views")) == []
    assert ann.status("GET", f"{T}/t") == 200
    assert ann.status("GET", f"{T}/u") == 404
    assert ann.status("GET", "v1/namespaces/hidden/tables") == 404
    namespaces = ("db", "deep", "deep%1Fer", "hidden", "missing")
    found = {name: ann.status("HEAD", f"v1/namespaces/{name}") for name in namespaces}
    assert found == {"db": 204, "deep": 204, "deep%1Fer": 204, "hidden": 404, "missing": 404}
    assert ann.status("GET", "v1/namespaces/db") == 403


def test_hidden_names_get_the_answers_of_missing_names(world: World, ann: User) -> None:
    world.grant(["TABLE_READ_DATA"], world.entity("db", "t", kind=TABLE))
    world.table("db", "secret")
    world.view("db", "secret_view")
    requests: list[tuple[str, str, Any]] = [
        ("GET", f"{T}/NAME", None),
        ("HEAD", f"{T}/NAME", None),
        ("DELETE", f"{T}/NAME", None),
        ("POST", f"{T}/NAME", {"requirements": [], "updates": []}),
        ("GET", "v1/namespaces/db/views/NAME", None),
        ("GET", "v1/namespaces/NAME", None),
        ("HEAD", "v1/namespaces/NAME", None),
        ("GET", "v1/namespaces/NAME/tables", None),
        ("GET", "v1/namespaces/NAME/tables/t", None),
        ("POST", "v1/namespaces/NAME/tables", {"name": "x", "schema": SCHEMA}),
        ("DELETE", "v1/namespaces/NAME", None),
    ]
    for method, path, body in requests:
        there = "secret" if path.startswith(T) else "secret_view" if "views" in path else "hidden"
        found, missing = (ann.send(method, path.replace("NAME", name), body) for name in (there, "missing"))
        assert found[0] == missing[0] == 404, (method, path)
        assert str(found[1]).replace(there, "NAME") == str(missing[1]).replace("missing", "NAME")


def test_page_tokens_do_not_contain_hidden_names(world: World, ann: User) -> None:
    import base64

    for number in range(20):
        world.table("db", f"secret{number:02}")
    world.table("db", "z")
    for name in ("t", "u", "z"):
        world.grant(["TABLE_LIST"], world.entity("db", name, kind=TABLE))
    token, seen = "", []
    while token is not None:
        status, body = ann.send("GET", T, query={"pageSize": "1", "pageToken": token})
        assert status == 200
        seen += [one["name"] for one in body["identifiers"]]
        token = body.get("next-page-token")
        assert token is None or b"secret" not in base64.urlsafe_b64decode(token + "==")
    assert seen == ["t", "u", "z"]


def test_a_renamed_table_keeps_its_grants_and_a_new_one_has_none(world: World, ann: User) -> None:
    world.grant(["TABLE_READ_DATA"], world.entity("db", "t", kind=TABLE))
    move = {
        "source": {"namespace": ["db"], "name": "t"},
        "destination": {"namespace": ["db"], "name": "moved"},
    }
    assert world.root.status("POST", "v1/tables/rename", move) == 204
    world.table("db", "t")
    assert ann.status("GET", f"{T}/moved") == 200
    assert ann.status("GET", f"{T}/t") == 404


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


def test_a_revoked_grant_does_not_hold_in_cached_answers(world: World, ann: User) -> None:
    table = world.entity("db", "t", kind=TABLE)
    world.grant(["TABLE_READ_DATA"], table)
    status, headers, _ = ann.session.request("GET", f"{T}/t", {}, None, {"x": "y"})
    assert status == 200
    tag = {"If-None-Match": headers["ETag"]}
    assert [ann.session.request("GET", f"{T}/t", {}, None, tag)[0] for _ in range(3)] == [304] * 3
    world.change(Grant, RoleName("one"), table, [], described="it", revoke=True)
    assert ann.session.request("GET", f"{T}/t", {}, None, tag)[0] == 404


def test_whoever_creates_something_owns_it(world: World, ann: User) -> None:
    world.grant(["NAMESPACE_CREATE"])
    assert ann.status("POST", "v1/namespaces", {"namespace": ["mine"]}) == 200
    assert ann.status("POST", "v1/namespaces/mine/tables", {"name": "t", "schema": SCHEMA}) == 200
    assert ann.status("GET", "v1/namespaces/mine/tables/t") == 200
    assert ann.status("POST", f"{T}", {"name": "x", "schema": SCHEMA}) == 403
    world.revoke_all()
    world.grant(["CATALOG_LIST"])
    assert ann.status("GET", "v1/namespaces/mine/tables/t") == 200
    assert ann.call("show_owner", on="table", name="mine.t")[1]["rows"] == [["table mine.t", "ann"]]
    assert ann.call("set_owner", owner="root", on="table", name="mine.t")[0] == 200
    assert ann.call("set_owner", owner="root", on="namespace", name="mine")[0] == 200
    assert ann.status("GET", "v1/namespaces/mine/tables/t") == 404
    assert ann.status("GET", "v1/namespaces/mine/tables/t", polaris_state="main#1") == 404


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


def test_a_transaction_needs_the_grants_of_each_of_its_requests(world: World, ann: User) -> None:
    world.grant(["TABLE_WRITE_DATA"], world.entity("db", "t", kind=TABLE))
    change = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]}

    def commit(*tables: str) -> int:
        changes = [{"identifier": {"namespace": ["db"], "name": one}, **change} for one in tables]
        return ann.status("POST", "v1/transactions/commit", {"table-changes": changes})

    assert commit("t") == 204
    assert commit("t", "u") == 404
    drop = {"method": "DELETE", "path": f"{T}/t"}
    assert ann.status("POST", "v1/transactions/commit", {"table-changes": [], "requests": [drop]}) == 403


def test_a_transaction_cannot_give_a_checked_name_to_another_table(world: World, ann: User) -> None:
    world.grant(["TABLE_FULL_METADATA", "TABLE_WRITE_DATA"], world.entity("db", "t", kind=TABLE))
    world.grant(["TABLE_DROP"], world.entity("db", "u", kind=TABLE))
    world.grant(["TABLE_CREATE"], world.entity("db"))
    change = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]}

    def requests(*then: dict[str, Any]) -> dict[str, Any]:
        drop = {"method": "DELETE", "path": f"{T}/t"}
        write = {"method": "POST", "path": f"{T}/t", "body": change}
        return {"table-changes": [], "requests": [drop, *then, write]}

    move = {"source": {"namespace": ["db"], "name": "u"}, "destination": {"namespace": ["db"], "name": "t"}}
    of_other = requests({"method": "POST", "path": "v1/tables/rename", "body": move})
    assert ann.status("POST", "v1/transactions/commit", of_other) == 409
    of_new = requests({"method": "POST", "path": T, "body": {"name": "t", "schema": SCHEMA}})
    assert ann.status("POST", "v1/transactions/commit", of_new) == 204


def test_pyiceberg_logs_in_by_credentials(world: World) -> None:
    from pyiceberg.exceptions import NoSuchTableError

    from polaris_spark.pyiceberg import PolarisCatalog

    world.grant(["TABLE_READ_DATA"], world.entity("db", "t", kind=TABLE))
    given = {"store": world.store, "warehouse": world.folder, "credential": world.credentials.text()}
    with PolarisCatalog("polaris", **given) as catalog:
        assert list(catalog.list_tables("db")) == [("db", "t")]
        assert catalog.load_table("db.t").name() == ("db", "t")
        assert "credential" not in catalog.properties
        with pytest.raises(NoSuchTableError):
            catalog.load_table("db.u")


def test_a_transaction_on_a_branch_has_the_grants_of_the_branch(world: World, ann: User) -> None:
    world.grant(["TABLE_READ_DATA"], world.branch("main"))
    with ann.session.transaction() as copy:
        inside = User(copy)
        assert inside.status("GET", f"{T}/t") == 200
        assert inside.status("DELETE", f"{T}/t") == 403


def test_a_repeated_idempotency_key_of_another_principal_gives_nothing(world: World, ann: User) -> None:
    key = str(uuid.UUID(bytes=new_operation_id(int(time.time() * 1_000))))
    headers = {"Idempotency_Key": key}
    made = world.root.send("POST", T, {"name": "k", "schema": SCHEMA}, **headers)
    assert made[0] == 200
    assert ann.send("POST", T, {"name": "k", "schema": SCHEMA}, **headers)[0] == 404


def test_revoked_principals_and_roles_are_refused_at_once(world: World, ann: User) -> None:
    world.grant(["TABLE_READ_DATA"])
    assert ann.status("GET", f"{T}/t") == 200
    world.change(AlterPrincipal, "ann", state="revoked")
    assert ann.status("GET", f"{T}/t") == 401
    world.change(AlterPrincipal, "ann", state="active")
    assert ann.status("GET", f"{T}/t") == 200
    world.change(DropRole, RoleName("one"))
    assert ann.status("GET", f"{T}/t") == 404


def test_rules_of_other_processes_hold_after_the_refresh_period(world: World) -> None:
    now = [0.0]
    references = world.root.session.catalog.references
    elsewhere = AccessControl(references, 1_000, monotonic=lambda: now[0])
    before = elsewhere.required()
    # The change goes around `AccessControl.change`, as that of another process does.
    clock, operation = world.root.session.connection.clock, world.root.session.operation()
    grant = Grant(clock, operation, RoleName("one"), securables.REALM, ["TABLE_LIST"], described="the realm")
    references.commit("access", grant)
    assert elsewhere.required() is before
    now[0] = 1.1
    assert elsewhere.required() is not before


def test_catalog_roles_hold_only_in_their_catalog(world: World) -> None:
    row = world.root.session.catalog.row
    role = RoleName("catalog_admin", row)
    world.change(Assign, role, principal_role="one")
    ann = world.open(world.credentials)
    assert ann.status("DELETE", f"{T}/t") == 204
    with pytest.raises(NotFoundError, match="catalog 'other' does not exist"):
        world.open(world.credentials, catalog="other", warehouse=f"{world.folder}/other")


def test_a_session_without_credentials_is_refused(world: World) -> None:
    for wrong in ({}, {"principal": "root"}):
        with pytest.raises(NotAuthorizedError, match="credential"):
            polaris_spark.connect(store=world.store, warehouse=world.folder, **wrong)
    with pytest.raises(NotAuthorizedError, match="not valid"):
        polaris_spark.connect(store=world.store, warehouse=world.folder, credential="a:b")
    world.grant(["CATALOG_LIST"])
    with pytest.raises(InputError, match="those of 'ann'"):
        world.open(world.credentials, principal="root")


def test_a_session_that_was_open_before_is_not_trusted(tmp_path: Path) -> None:
    from polaris_spark.access.bootstrap import bootstrap
    from polaris_spark.access.control import changed

    with polaris_spark.connect(store="memory:trusted", warehouse=str(tmp_path), principal="root") as session:
        assert session.request("GET", "v1/namespaces")[0] == 200
        bootstrap(session.catalog.references, session.operation(), "root", None)
        changed()
        assert session.request("GET", "v1/namespaces")[0] == 401
        with pytest.raises(NotAuthorizedError):
            session.set_catalog_properties({"gc.enabled": "false"})
        with pytest.raises(NotAuthorizedError):
            call(session, "sweep")


def test_grants_are_managed_by_those_who_may(world: World, ann: User) -> None:
    world.change(Assign, RoleName("one"), principal="ann")
    status, body = ann.call("grant", privileges="TABLE_LIST", role="one", on="catalog")
    assert status == 403, body
    world.grant(["CATALOG_MANAGE_ACCESS"], world.entity("db"))
    assert ann.call("grant", privileges="TABLE_LIST", role="one", on="table", name="db.t")[0] == 200
    assert ann.call("grant", privileges="TABLE_LIST", role="one", on="table", name="hidden.t")[0] == 404
    assert ann.call("grant", privileges="TABLE_LIST", role="one", on="realm")[0] == 403


def test_administrators_are_changed_only_by_administrators(world: World, ann: User) -> None:
    world.grant(["PRINCIPAL_RESET_CREDENTIALS", "PRINCIPAL_FULL_METADATA"])
    for name, arguments in (
        ("reset_credentials", {}),
        ("drop_principal", {}),
        ("alter_principal", {"state": "revoked"}),
    ):
        assert ann.call(name, name="root", **arguments)[0] == 403, name
    assert ann.call("create_principal", name="bob")[0] == 200
    assert ann.call("reset_credentials", name="bob")[0] == 200


def test_who_may_manage_access_is_changed_only_by_such_principals(world: World, ann: User) -> None:
    world.grant(["PRINCIPAL_RESET_CREDENTIALS", "PRINCIPAL_FULL_METADATA"])
    root = world.root
    for name, arguments in (
        ("create_principal", {"name": "bob"}),
        ("create_role", {"name": "managers"}),
        ("assign_role", {"role": "managers", "holder": "bob"}),
        ("grant", {"privileges": "SERVICE_MANAGE_ACCESS", "role": "managers", "on": "realm"}),
    ):
        assert root.call(name, **arguments)[0] == 200, name
    for name, arguments in (
        ("reset_credentials", {}),
        ("alter_principal", {"state": "revoked"}),
        ("drop_principal", {}),
    ):
        assert ann.call(name, name="bob", **arguments)[0] == 403, name
    assert root.call("alter_principal", name="bob", state="revoked")[0] == 200
    assert ann.call("alter_principal", name="bob", state="active")[0] == 403


def test_a_principal_that_must_rotate_can_do_only_that(world: World) -> None:
    world.grant(["CATALOG_MANAGE_CONTENT"])
    call(world.root.session, "create_principal", name="eve", must_rotate=True)
    status, body = world.root.call("reset_credentials", name="eve", must_rotate=True)
    assert status == 200
    world.change(Assign, RoleName("one"), principal="eve")
    from polaris_spark.access.credentials import Credentials
    from polaris_spark.config import Secret

    _, client, secret = body["rows"][0]
    eve = world.open(Credentials(client, Secret(secret)))
    assert eve.status("GET", "v1/namespaces") == 401
    status, body = eve.call("rotate_credentials")
    assert status == 200, body
    assert eve.status("GET", "v1/namespaces") == 200


def test_it_is_explained_why_something_is_allowed(world: World, ann: User) -> None:
    world.grant(["TABLE_WRITE_DATA"], world.entity("db"))
    _, body = ann.call("explain_access", privilege="TABLE_READ_DATA", on="table", name="db.t")
    answer = {what: text for what, text, _ in body["rows"]}
    assert answer["allowed"] == "TABLE_READ_DATA on table db.t for principal ann"
    assert answer["because"] == (
        "principal role one has TABLE_WRITE_DATA on namespace db, which implies TABLE_READ_DATA"
    )
    _, body = ann.call("explain_access", privilege="TABLE_DROP", on="table", name="db.t")
    answer = {what: text for what, text, _ in body["rows"]}
    assert "refused" in answer
    assert "TABLE_FULL_METADATA" in answer["would suffice"]
    assert ann.call("explain_access", privilege="TABLE_DROP", on="table", name="hidden.t")[0] == 404


def test_who_can_names_everybody_with_the_privilege(world: World, ann: User) -> None:
    world.grant(["TABLE_READ_DATA"], world.entity("db"))
    rows = call(world.root.session, "who_can", privilege="TABLE_READ_DATA", on="table", name="db.t")
    assert ("ann", "principal role one", "TABLE_READ_DATA", "namespace db") in rows
    assert {row[0] for row in rows} == {"ann", "root"}
    assert ann.call("who_can", privilege="TABLE_READ_DATA", on="table", name="db.t")[0] == 403


def test_a_request_never_changes_another_table_that_got_the_name(world: World, ann: User) -> None:
    """The table is replaced between the check and the commit."""
    world.grant(["TABLE_FULL_METADATA"], world.entity("db", "t", kind=TABLE))
    catalog = world.root.session.catalog
    from polaris_spark.catalog.entities.entities import TableName, table_key
    from polaris_spark.catalog.metadata.rows import Table
    from polaris_spark.catalog.rows import NAMES, id_from
    from polaris_spark.catalog.tables.contents import DropContent
    from polaris_spark.errors import CommitFailedError

    name = TableName(("db",), "t")
    entry = catalog.head().index(NAMES).get(table_key(name))
    assert entry is not None
    checked = catalog.resolving([(table_key(name), id_from(entry.value))])
    assert world.root.status("DELETE", f"{T}/t") == 204
    world.table("db", "t")
    with pytest.raises(CommitFailedError, match="another entity"):
        checked.commit(DropContent(catalog.context, ann.session.operation(), name, Table))
    assert ann.status("GET", f"{T}/t") == 404


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


def test_a_transaction_of_a_principal_that_was_revoked_is_not_committed(world: World, ann: User) -> None:
    world.grant(["NAMESPACE_CREATE"])

    def revoked_meanwhile() -> None:
        with ann.session.transaction() as begun:
            assert User(begun).status("POST", "v1/namespaces", {"namespace": ["late"]}) == 200
            world.change(AlterPrincipal, "ann", state="revoked")

    with pytest.raises(NotAuthorizedError):
        revoked_meanwhile()
    assert world.root.status("GET", "v1/namespaces/late") == 404


def test_the_error_for_an_overlapping_location_names_no_other_table(world: World, ann: User) -> None:
    world.grant(["TABLE_CREATE"], world.entity("db"))
    asked = {"name": "new", "schema": SCHEMA, "location": f"{world.folder}/hidden"}
    status, body = ann.send("POST", T, asked)
    assert status == 403
    assert "another table or view" in str(body)
    assert "hidden.t" not in str(body)


@pytest.mark.parametrize(
    ("procedure", "arguments"),
    [
        ("set_owner", {"on": "view", "name": "db.v", "owner": "ann"}),
        ("drop_materialized_view", {"view": "db.v"}),
    ],
)
def test_a_procedure_never_changes_another_view_that_got_the_name(
    world: World, ann: User, monkeypatch: pytest.MonkeyPatch, procedure: str, arguments: dict[str, Any]
) -> None:
    """The view is replaced after the privileges were checked."""
    world.grant(["VIEW_FULL_METADATA", "CATALOG_MANAGE_ACCESS"], world.entity("db", "v", kind=VIEW))
    commit = Catalog.commit

    def commit_after_replacement(self: Catalog, change: Any) -> Any:
        monkeypatch.setattr(Catalog, "commit", commit)
        assert world.root.status("DELETE", "v1/namespaces/db/views/v") == 204
        world.view("db", "v")
        return commit(self, change)

    monkeypatch.setattr(Catalog, "commit", commit_after_replacement)
    status, body = ann.call(procedure, **arguments)
    assert (status, "another entity" in str(body)) == (409, True), body


def test_a_view_is_seen_only_with_a_privilege_on_views(world: World, ann: User) -> None:
    world.grant(["TABLE_READ_DATA"])
    assert ann.status("GET", "v1/namespaces/db/views/v") == 404
    world.grant(["VIEW_READ_PROPERTIES"], world.entity("db", "v", kind=VIEW))
    assert ann.status("GET", "v1/namespaces/db/views/v") == 200


def test_properties_of_the_catalog_need_a_privilege(world: World, ann: User) -> None:
    with pytest.raises(ForbiddenError, match="CATALOG_WRITE_PROPERTIES"):
        ann.session.set_catalog_properties({"gc.enabled": "false"})


def test_hidden_catalogs_get_the_answers_of_missing_ones(
    world: World, ann: User, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from polaris_spark.extension import ROUTER
    from polaris_spark.rest.access import Caller
    from polaris_spark.rest.handler import handle
    from polaris_spark.server.catalogs import ServedCatalogs

    place = str(tmp_path_factory.mktemp("other"))
    world.open(world.administrator, catalog="other", warehouse=place).session.close()
    served = ServedCatalogs(world.root.session)
    caller = Caller("ann", is_verified=True)

    def send(path: str, **query: str) -> tuple[int, str]:
        match = ROUTER.find("GET", path)
        session = served.of_warehouse(query["warehouse"]) if query else served.choose(match.prefix)
        answer = handle(
            session.catalog, "GET", path, query=query, caller=caller, router=ROUTER, session=session
        )
        return answer.status, answer.body

    for path in ("v1/NAME/namespaces", "v1/NAME/namespaces/db", "v1/NAME/config"):
        hidden, missing = (send(path.replace("NAME", name)) for name in ("other", "nope"))
        assert hidden[0] == missing[0] == 404
        assert hidden[1].replace("other", "NAME") == missing[1].replace("nope", "NAME")
    answers = {send("v1/config", warehouse=one) for one in ("other", "nope", place)}
    assert len(answers) == 1
    assert send("v1/config", warehouse="polaris")[0] == 200
