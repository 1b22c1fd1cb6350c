"""The routes of principals, roles and grants of Polaris' management API, with the bodies that its clients send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import polaris_spark
from polaris_spark.access import securables
from polaris_spark.access.credentials import Credentials
from polaris_spark.access.privileges import PRIVILEGES, implied
from polaris_spark.catalog.rows import TABLE
from polaris_spark.errors import NotAuthorizedError
from polaris_spark.extension.management_access import ROUTES
from polaris_spark.store_uris import Secret
from tests.access.world import User, World

M = "api/management/v1"
ROLES = f"{M}/catalogs/polaris/catalog-roles"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "main")
    made.namespace("db")
    made.table("db", "t")
    made.view("db", "v")
    yield made
    made.close()


@pytest.fixture
def root(world: World) -> User:
    return world.root


def done(answer: tuple[int, Any], status: int = 200) -> Any:
    assert answer[0] == status, answer
    return answer[1]


def test_principals_are_created_changed_and_dropped(world: World, root: User) -> None:
    body = {"principal": {"name": "bob", "properties": {"a": "1"}}, "credentialRotationRequired": False}
    made = done(root.send("POST", f"{M}/principals", body), 201)
    assert made["principal"]["name"] == "bob"
    assert made["principal"]["properties"] == {"a": "1"}
    assert made["credentials"]["clientId"] == made["principal"]["clientId"]
    assert root.status("POST", f"{M}/principals", body) == 409
    assert [one["name"] for one in done(root.send("GET", f"{M}/principals"))["principals"]] == [
        "ann",
        "bob",
        "root",
    ]
    found = done(root.send("GET", f"{M}/principals/bob"))
    assert found == made["principal"]
    change = {"currentEntityVersion": found["entityVersion"], "properties": {"b": "2"}}
    changed = done(root.send("PUT", f"{M}/principals/bob", change))
    assert changed["properties"] == {"b": "2"}
    assert changed["entityVersion"] != found["entityVersion"]
    assert changed["createTimestamp"] == found["createTimestamp"] <= changed["lastUpdateTimestamp"]
    assert root.status("PUT", f"{M}/principals/bob", change) == 409  # the version is an old one
    assert root.status("DELETE", f"{M}/principals/bob") == 204
    assert root.status("GET", f"{M}/principals/bob") == 404
    assert root.status("DELETE", f"{M}/principals/nobody") == 404


def test_credentials_are_rotated_by_their_owner_and_reset_by_others(world: World, root: User) -> None:
    world.grant(["CATALOG_LIST"])
    body = {"principal": {"name": "bob"}, "credentialRotationRequired": True}
    made = done(root.send("POST", f"{M}/principals", body), 201)
    done(root.send("PUT", f"{M}/principals/bob/principal-roles", {"principalRole": {"name": "one"}}), 201)
    bob = world.open(credentials(made))
    assert bob.status("GET", f"{M}/principals") == 401
    other = "root"
    assert bob.status("POST", f"{M}/principals/{other}/rotate") == 403
    rotated = done(bob.send("POST", f"{M}/principals/bob/rotate"))
    assert rotated["credentials"]["clientSecret"] != made["credentials"]["clientSecret"]
    assert world.open(credentials(rotated)).status("GET", "v1/config") == 200
    assert root.status("POST", f"{M}/principals/bob/reset", {"clientSecret": "mine"}) == 400
    reset = done(root.send("POST", f"{M}/principals/bob/reset"))
    with pytest.raises(NotAuthorizedError):
        world.open(credentials(rotated))
    assert world.open(credentials(reset)).status("GET", "v1/config") == 200


def credentials(made: Any) -> Credentials:
    given = made["credentials"]
    return Credentials(given["clientId"], Secret(given["clientSecret"]))


def test_principal_roles_are_created_assigned_and_dropped(world: World, root: User) -> None:
    role = {"principalRole": {"name": "engineers", "properties": {"a": "1"}}}
    made = done(root.send("POST", f"{M}/principal-roles", role), 201)
    assert (made["name"], made["properties"]) == ("engineers", {"a": "1"})
    assert root.status("POST", f"{M}/principal-roles", role) == 409
    assert (
        root.status("POST", f"{M}/principal-roles", {"principalRole": {"name": "f", "federated": True}})
        == 400
    )
    assert done(root.send("GET", f"{M}/principal-roles/engineers")) == made
    names = [one["name"] for one in done(root.send("GET", f"{M}/principal-roles"))["roles"]]
    assert names == ["engineers", "one", "service_admin"]
    change = {"currentEntityVersion": made["entityVersion"], "properties": {}}
    assert done(root.send("PUT", f"{M}/principal-roles/engineers", change))["name"] == "engineers"
    assert root.status("PUT", f"{M}/principal-roles/engineers", change) == 409
    assert root.status("PUT", f"{M}/principals/ann/principal-roles", role) == 201
    held = done(root.send("GET", f"{M}/principals/ann/principal-roles"))["roles"]
    assert [one["name"] for one in held] == ["engineers", "one"]
    holders = done(root.send("GET", f"{M}/principal-roles/engineers/principals"))["principals"]
    assert [one["name"] for one in holders] == ["ann"]
    assert root.status("DELETE", f"{M}/principals/ann/principal-roles/engineers") == 204
    assert done(root.send("GET", f"{M}/principal-roles/engineers/principals")) == {"principals": []}
    assert root.status("DELETE", f"{M}/principal-roles/engineers") == 204
    assert root.status("GET", f"{M}/principal-roles/engineers") == 404


def test_a_grant_to_a_catalog_role_lets_its_principals_read(world: World, root: User, tmp_path: Path) -> None:
    role = {"catalogRole": {"name": "readers"}}
    assert done(root.send("POST", ROLES, role), 201)["name"] == "readers"
    assert [one["name"] for one in done(root.send("GET", ROLES))["roles"]] == ["readers"]
    assert root.status("PUT", f"{M}/principal-roles/one/catalog-roles/polaris", role) == 201
    (held,) = done(root.send("GET", f"{M}/principal-roles/one/catalog-roles/polaris"))["roles"]
    assert held["name"] == "readers"
    (holder,) = done(root.send("GET", f"{ROLES}/readers/principal-roles"))["roles"]
    assert holder["name"] == "one"
    grants = [
        {"type": "catalog", "privilege": "CATALOG_READ_PROPERTIES"},
        {"type": "namespace", "namespace": ["db"], "privilege": "NAMESPACE_READ_PROPERTIES"},
        {"type": "table", "namespace": ["db"], "tableName": "t", "privilege": "TABLE_READ_DATA"},
        {"type": "view", "namespace": ["db"], "viewName": "v", "privilege": "VIEW_READ_PROPERTIES"},
    ]
    for one in grants:
        assert root.status("PUT", f"{ROLES}/readers/grants", {"grant": one}) == 201
    listed = done(root.send("GET", f"{ROLES}/readers/grants"))["grants"]
    assert sorted(listed, key=str) == sorted(grants, key=str)
    ann = world.open(world.credentials)
    assert ann.status("GET", "v1/namespaces/db/tables/t") == 200
    assert root.status("POST", f"{ROLES}/readers/grants", {"grant": grants[2]}) == 201
    assert ann.status("GET", "v1/namespaces/db/tables/t") == 404
    assert root.status("DELETE", f"{M}/principal-roles/one/catalog-roles/polaris/readers") == 204
    assert ann.status("GET", "v1/namespaces/db/views/v") == 404
    version = done(root.send("GET", f"{ROLES}/readers"))["entityVersion"]
    change = {"currentEntityVersion": version, "properties": {"k": "v"}}
    assert done(root.send("PUT", f"{ROLES}/readers", change))["properties"] == {"k": "v"}
    assert root.status("DELETE", f"{ROLES}/readers") == 204
    assert root.status("GET", f"{ROLES}/readers") == 404


@pytest.mark.parametrize(
    ("grant", "status"),
    [
        ({"type": "policy", "namespace": ["db"], "policyName": "p", "privilege": "POLICY_LIST"}, 400),
        ({"type": "table", "namespace": ["db"], "privilege": "TABLE_READ_DATA"}, 400),
        ({"type": "table", "namespace": ["db"], "tableName": "none", "privilege": "TABLE_READ_DATA"}, 404),
        ({"type": "table", "namespace": ["db"], "tableName": "t", "privilege": "TABLE_ADD_SNAPSHOT"}, 400),
        ({"type": "namespace", "namespace": ["db"], "privilege": "PRINCIPAL_CREATE"}, 400),
    ],
)
def test_grants_that_cannot_be_made_are_refused(root: User, grant: dict[str, Any], status: int) -> None:
    done(root.send("POST", ROLES, {"catalogRole": {"name": "readers"}}), 201)
    assert root.status("PUT", f"{ROLES}/readers/grants", {"grant": grant}) == status
    assert done(root.send("GET", f"{ROLES}/readers/grants")) == {"grants": []}


def test_a_revocation_that_should_cascade_is_refused(root: User) -> None:
    done(root.send("POST", ROLES, {"catalogRole": {"name": "readers"}}), 201)
    grant = {"grant": {"type": "catalog", "privilege": "TABLE_LIST"}}
    assert root.send("POST", f"{ROLES}/readers/grants", grant, {"cascade": "true"})[0] == 400


def test_roles_of_another_catalog_are_managed_by_its_name(world: World, root: User, tmp_path: Path) -> None:
    other = root.session.catalogs.create("other", {"warehouse": str(tmp_path / "other")})
    place = f"{M}/catalogs/other/catalog-roles"
    assert root.status("POST", place, {"catalogRole": {"name": "readers"}}) == 201
    assert done(root.send("GET", ROLES)) == {"roles": []}
    grant = {"grant": {"type": "catalog", "privilege": "TABLE_READ_DATA"}}
    assert root.status("PUT", f"{place}/readers/grants", grant) == 201
    rules = root.session.access.required()
    (role,) = rules.catalog_roles(other.row.entity_id)
    assert rules.grants[role.entity_id] == {securables.catalog(other.row.entity_id): {"TABLE_READ_DATA"}}
    world.grant(["CATALOG_MANAGE_ACCESS"])  # in the default catalog only
    ann = world.open(world.credentials)
    assert ann.status("GET", ROLES) == 200
    hidden, missing = (ann.send("GET", f"{M}/catalogs/{name}/catalog-roles") for name in ("other", "nothing"))
    assert hidden[0] == missing[0] == 404
    assert str(hidden[1]).replace("other", "nothing") == str(missing[1])


REQUESTS: list[tuple[str, str, Any, str]] = [
    ("GET", "principals", None, "PRINCIPAL_LIST"),
    ("POST", "principals", {"principal": {"name": "new"}}, "PRINCIPAL_CREATE"),
    ("GET", "principals/bob", None, "PRINCIPAL_READ_PROPERTIES"),
    ("PUT", "principals/bob", {"currentEntityVersion": 0, "properties": {}}, "PRINCIPAL_WRITE_PROPERTIES"),
    ("DELETE", "principals/nobody", None, "PRINCIPAL_DROP"),
    ("POST", "principals/nobody/reset", None, "PRINCIPAL_RESET_CREDENTIALS"),
    ("PUT", "principals/bob/principal-roles", {"principalRole": {"name": "none"}}, "SERVICE_MANAGE_ACCESS"),
    ("DELETE", "principals/bob/principal-roles/none", None, "SERVICE_MANAGE_ACCESS"),
    ("GET", "principal-roles", None, "PRINCIPAL_ROLE_LIST"),
    ("POST", "principal-roles", {"principalRole": {"name": "new"}}, "PRINCIPAL_ROLE_CREATE"),
    ("GET", "principal-roles/one", None, "PRINCIPAL_ROLE_LIST"),
    (
        "PUT",
        "principal-roles/one",
        {"currentEntityVersion": 0, "properties": {}},
        "PRINCIPAL_ROLE_FULL_METADATA",
    ),
    ("DELETE", "principal-roles/none", None, "PRINCIPAL_ROLE_DROP"),
    ("GET", "principal-roles/one/catalog-roles/polaris", None, "CATALOG_MANAGE_ACCESS"),
    (
        "PUT",
        "principal-roles/one/catalog-roles/polaris",
        {"catalogRole": {"name": "x"}},
        "CATALOG_MANAGE_ACCESS",
    ),
    ("DELETE", "principal-roles/one/catalog-roles/polaris/x", None, "CATALOG_MANAGE_ACCESS"),
    ("GET", "catalogs/polaris/catalog-roles", None, "CATALOG_MANAGE_ACCESS"),
    ("POST", "catalogs/polaris/catalog-roles", {"catalogRole": {"name": "new"}}, "CATALOG_MANAGE_ACCESS"),
    ("GET", "catalogs/polaris/catalog-roles/x", None, "CATALOG_MANAGE_ACCESS"),
    (
        "PUT",
        "catalogs/polaris/catalog-roles/x",
        {"currentEntityVersion": 0, "properties": {}},
        "CATALOG_MANAGE_ACCESS",
    ),
    ("DELETE", "catalogs/polaris/catalog-roles/x", None, "CATALOG_MANAGE_ACCESS"),
    ("GET", "catalogs/polaris/catalog-roles/x/principal-roles", None, "CATALOG_MANAGE_ACCESS"),
    ("GET", "catalogs/polaris/catalog-roles/x/grants", None, "CATALOG_MANAGE_ACCESS"),
    (
        "PUT",
        "catalogs/polaris/catalog-roles/x/grants",
        {"grant": {"type": "catalog", "privilege": "TABLE_LIST"}},
        "CATALOG_MANAGE_ACCESS",
    ),
    (
        "POST",
        "catalogs/polaris/catalog-roles/x/grants",
        {"grant": {"type": "catalog", "privilege": "TABLE_LIST"}},
        "CATALOG_MANAGE_ACCESS",
    ),
]
"""Requests, and the one privilege that each needs."""
OTHERS = {
    "principals/{principal}/rotate",
    "principals/{principal}/principal-roles",
    "principal-roles/{role}/principals",
}
"""Routes that need no privilege or two."""


def test_every_route_needs_its_privilege(world: World) -> None:
    world.principal("bob")
    world.grant(["CATALOG_LIST"])
    ann = world.open(world.credentials)
    wrong = []
    for privilege in PRIVILEGES:
        world.revoke_all()
        world.grant(["CATALOG_LIST", privilege])
        held = implied(frozenset((privilege, "CATALOG_LIST")))
        for method, path, body, needed in REQUESTS:
            status, _ = ann.send(method, f"{M}/{path}", body)
            if (status != 403) is not (needed in held):
                wrong.append((privilege, method, path, status))
        for path in ("principals/new", "principal-roles/new", "catalogs/polaris/catalog-roles/new"):
            world.root.status("DELETE", f"{M}/{path}")
    assert wrong == []


def test_every_route_has_a_case(world: World) -> None:
    shapes = {(method, path.count("/"), path.split("/")[0]) for method, path, _, _ in REQUESTS}
    missing = [
        (one.method, one.path)
        for one in ROUTES
        if one.path not in OTHERS and (one.method, one.path.count("/"), one.path.split("/")[0]) not in shapes
    ]
    assert missing == []


def test_a_realm_without_access_control_refuses_the_routes(tmp_path: Path) -> None:
    with polaris_spark.connect(store="memory:", warehouse=str(tmp_path)) as session:
        for method, path, body, _ in REQUESTS:
            text = None if body is None else json.dumps(body)
            status, _, answer = session.request(method, f"{M}/{path}", body=text)
            assert status == 403, (method, path)
            assert "no access control" in answer


def test_grants_of_dropped_tables_and_branches_are_left_out(world: World, root: User) -> None:
    done(root.send("POST", ROLES, {"catalogRole": {"name": "readers"}}), 201)
    grant = {"type": "table", "namespace": ["db"], "tableName": "t", "privilege": "TABLE_READ_DATA"}
    done(root.send("PUT", f"{ROLES}/readers/grants", {"grant": grant}), 201)
    assert world.entity("db", "t", kind=TABLE)
    root.call("grant", privileges="TABLE_LIST", role="polaris.readers", on="branch", name="main")
    assert done(root.send("GET", f"{ROLES}/readers/grants")) == {"grants": [grant]}
    assert root.status("DELETE", "v1/namespaces/db/tables/t") == 204
    assert done(root.send("GET", f"{ROLES}/readers/grants")) == {"grants": []}
