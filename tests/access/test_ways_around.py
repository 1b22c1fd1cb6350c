"""Requests by a principal with few privileges: what it may see and do, and ways around grants that must not exist."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest

from polaris_spark.access.changes import RoleName
from polaris_spark.access.grant_changes import Grant
from polaris_spark.access.principal_changes import AlterPrincipal
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.rows import TABLE, VIEW
from polaris_spark.commits.change import new_operation_id
from polaris_spark.errors import ForbiddenError, NotAuthorizedError
from tests.access.world import SCHEMA, T, User, World, names


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
    status, answer = ann.send("POST", "v1/transactions/commit", of_other)
    assert status == 403
    assert "request 3 of the transaction" in str(answer)
    assert "TABLE_WRITE_PROPERTIES on table db.t" in str(answer)
    of_new = requests({"method": "POST", "path": T, "body": {"name": "t", "schema": SCHEMA}})
    assert ann.status("POST", "v1/transactions/commit", of_new) == 204


def test_each_request_of_a_transaction_is_checked_in_the_state_that_the_others_have_made(
    world: World, ann: User
) -> None:
    world.grant(["NAMESPACE_CREATE"])
    world.grant(["TABLE_FULL_METADATA", "TABLE_CREATE"], world.entity("db"))
    world.grant(["TABLE_DROP"], world.entity("hidden", "t", kind=TABLE))

    def commit(*requests: tuple[str, str, Any]) -> tuple[int, Any]:
        parts = [{"method": method, "path": path, "body": body} for method, path, body in requests]
        return ann.send("POST", "v1/transactions/commit", {"table-changes": [], "requests": parts})

    def move(name: str, to: str, namespace: str = "db") -> tuple[str, str, Any]:
        ends = ({"namespace": [namespace], "name": name}, {"namespace": ["db"], "name": to})
        return "POST", "v1/tables/rename", dict(zip(("source", "destination"), ends, strict=True))

    create, table = ("POST", "v1/namespaces", {"namespace": ["mine"]}), {"name": "t", "schema": SCHEMA}
    assert commit(create, ("POST", "v1/namespaces/mine/tables", table)) == (204, None)
    ids = [ann.send("GET", f"{T}/{name}")[1]["metadata"]["table-uuid"] for name in "tu"]
    assert commit(move("t", "aside"), move("u", "t"), move("aside", "u")) == (204, None)
    assert [ann.send("GET", f"{T}/{name}")[1]["metadata"]["table-uuid"] for name in "ut"] == ids
    write = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]}
    assert commit(("POST", "v1/namespaces/hidden/tables/t", write))[0] == 403
    assert commit(move("t", "taken", "hidden"), ("POST", f"{T}/taken", write)) == (204, None)
    assert commit(("POST", f"{T}/gone", write), move("t", "gone"))[0] == 404


def test_a_repeated_idempotency_key_of_another_principal_gives_nothing(world: World, ann: User) -> None:
    key = str(uuid.UUID(bytes=new_operation_id(int(time.time() * 1_000))))
    headers = {"Idempotency_Key": key}
    made = world.root.send("POST", T, {"name": "k", "schema": SCHEMA}, **headers)
    assert made[0] == 200
    assert ann.send("POST", T, {"name": "k", "schema": SCHEMA}, **headers)[0] == 404


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
