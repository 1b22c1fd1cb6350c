"""Who logs in, and who manages principals, roles and grants."""

from __future__ import annotations

from pathlib import Path

import pytest

import polaris_spark
from polaris_spark.access import securables
from polaris_spark.access.changes import Assign, DropRole, RoleName
from polaris_spark.access.control import AccessControl
from polaris_spark.access.grant_changes import Grant
from polaris_spark.access.principal_changes import AlterPrincipal
from polaris_spark.catalog.rows import TABLE
from polaris_spark.errors import InputError, NotAuthorizedError, NotFoundError
from polaris_spark.jobs.registry import call
from tests.access.world import T, User, World


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
    from polaris_spark.store_uris import Secret

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
