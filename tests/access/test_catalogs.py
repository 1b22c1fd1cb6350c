"""Catalogs of a realm with access control: who may create, see, change, drop and restore them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.access import securables
from polaris_spark.access.control import changed
from polaris_spark.catalog.catalogs import realm_catalogs
from polaris_spark.errors import AlreadyExistsError, ForbiddenError, NotFoundError
from tests.access.world import SCHEMA, User, World

MANAGED = "api/management/v1/catalogs"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "main")
    yield made
    made.close()


@pytest.fixture
def ann(world: World) -> User:
    world.grant(["CATALOG_LIST"])
    return world.open(world.credentials)


def create(world: World, name: str, folder: Path) -> bytes:
    """Create a catalog as the administrator, and return its securable."""
    found = world.root.session.catalogs.create(name, {"warehouse": str(folder / name), "gc.enabled": "false"})
    return securables.catalog(found.row.entity_id)


def names(user: User) -> list[str]:
    return [row[0] for row in rows(user.call("show_catalogs"))]


def rows(answer: tuple[int, Any]) -> list[list[Any]]:
    status, body = answer
    assert status == 200, body
    return [list(row) for row in body["rows"]]


def test_nobody_creates_catalogs_without_the_privilege(world: World, ann: User, tmp_path: Path) -> None:
    place = {"name": "new", "warehouse": str(tmp_path / "new")}
    body = {"catalog": {"name": "new", "properties": {"default-base-location": str(tmp_path / "new")}}}
    assert ann.call("create_catalog", **place)[0] == 403
    assert ann.status("POST", MANAGED, body) == 403
    with pytest.raises(ForbiddenError, match="CATALOG_CREATE on the realm"):
        ann.session.catalogs.create("new", {"warehouse": str(tmp_path / "new")})
    world.grant(["CATALOG_CREATE"], securables.REALM)
    assert ann.call("create_catalog", **place)[0] == 200
    with pytest.raises(AlreadyExistsError):
        ann.session.catalogs.create("new", {"warehouse": str(tmp_path / "new2")})


def test_a_creator_owns_the_new_catalog(world: World, ann: User, tmp_path: Path) -> None:
    world.grant(["CATALOG_CREATE"], securables.REALM)
    ann.session.catalogs.create("mine", {"warehouse": str(tmp_path / "mine")})
    world.revoke_all()
    world.grant(["CATALOG_LIST"])
    own = world.open(world.credentials, catalog="mine", warehouse=str(tmp_path / "mine"))
    assert own.status("POST", "v1/namespaces", {"namespace": ["db"]}) == 200
    assert ann.session.catalogs.described("mine").row.properties["warehouse"].endswith("mine")
    ann.session.catalogs.rename("mine", "ours")
    ann.session.catalogs.drop("ours", cascade=True)
    assert ann.session.catalogs.undrop("ours").row.name == "ours"
    own.session.close()


def test_nobody_owns_a_catalog_whose_creator_dies_before_it_is_the_owner(
    world: World, ann: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    world.grant(["CATALOG_CREATE"], securables.REALM)
    with monkeypatch.context() as dying:
        dying.setattr("polaris_spark.rest.catalog_rules.CatalogRules.own", die)
        with pytest.raises(KeyboardInterrupt):
            ann.session.catalogs.create("lost", {"warehouse": str(tmp_path / "lost")})
    world.revoke_all()
    world.grant(["TABLE_LIST"])
    with pytest.raises(NotFoundError):
        ann.session.catalogs.described("lost")
    opened = world.open(world.administrator, catalog="lost", warehouse=str(tmp_path / "lost"))
    assert opened.status("GET", "v1/namespaces") == 200
    assert opened.call("show_owner")[1]["rows"] == [["catalog lost", None]]
    assert opened.call("set_owner", owner="ann")[0] == 200
    assert ann.session.catalogs.described("lost").row.name == "lost"
    opened.session.close()


def test_hidden_catalogs_are_answered_as_missing_ones(world: World, ann: User, tmp_path: Path) -> None:
    world.revoke_all()
    world.grant(["TABLE_LIST"])  # in the default catalog only
    create(world, "secret", tmp_path)
    assert names(ann) == ["polaris"]
    found = [ann.send("GET", f"{MANAGED}/{name}") for name in ("secret", "nothing")]
    assert [status for status, _ in found] == [404, 404]
    assert str(found[0][1]).replace("secret", "nothing") == str(found[1][1])
    for procedure in ("describe_catalog", "drop_catalog", "undrop_catalog"):
        hidden, missing = (ann.call(procedure, name=name) for name in ("secret", "nothing"))
        assert hidden[0] == missing[0] == 404
        assert "secret" not in str(missing)
        assert str(hidden[1]).replace("secret", "nothing") == str(missing[1])
    assert ann.call("rename_catalog", name="secret", to="known")[0] == 404
    assert ann.status("DELETE", f"{MANAGED}/secret") == 404
    world.root.session.catalogs.drop("secret")
    assert ann.call("undrop_catalog", name="secret")[0] == 404
    assert [row[0] for row in rows(ann.call("show_catalogs", dropped=True))] == ["polaris"]


def test_properties_are_shown_only_to_those_who_may_read_them(
    world: World, ann: User, tmp_path: Path
) -> None:
    world.revoke_all()
    other = create(world, "other", tmp_path)
    world.grant(["TABLE_READ_DATA"], other)
    (shown,) = rows(ann.call("show_catalogs"))
    assert shown[0] == "other"
    assert shown[3] is None
    assert shown[-1] == "{}"
    assert ann.call("describe_catalog", name="other")[0] == 403
    assert ann.status("GET", f"{MANAGED}/other") == 403
    (managed,) = ann.send("GET", MANAGED)[1]["catalogs"]
    assert managed["properties"] == {"default-base-location": ""}
    world.grant(["CATALOG_READ_PROPERTIES"], other)
    (shown,) = rows(ann.call("describe_catalog", name="other"))
    assert shown[3].endswith("other")
    assert ann.status("GET", f"{MANAGED}/other") == 200


@pytest.mark.parametrize(
    ("privilege", "procedure", "arguments"),
    [
        ("CATALOG_WRITE_PROPERTIES", "rename_catalog", {"name": "other", "to": "renamed"}),
        ("CATALOG_DROP", "drop_catalog", {"name": "other"}),
    ],
)
def test_changes_need_their_privilege_on_the_named_catalog(
    world: World, ann: User, tmp_path: Path, privilege: str, procedure: str, arguments: dict[str, Any]
) -> None:
    other = create(world, "other", tmp_path)
    world.grant(["CATALOG_LIST"], other)
    world.grant([privilege])  # on the default catalog, which is another one
    assert ann.call(procedure, **arguments)[0] == 403
    world.grant([privilege], other)
    assert ann.call(procedure, **arguments)[0] == 200


def test_a_restored_catalog_keeps_its_grants(world: World, ann: User, tmp_path: Path) -> None:
    other = create(world, "other", tmp_path)
    world.grant(["CATALOG_DROP", "CATALOG_LIST"], other)
    assert ann.call("drop_catalog", name="other")[0] == 200
    create(world, "other", tmp_path / "second")  # has none of the grants
    assert "other" in [row[0] for row in rows(ann.call("show_catalogs", dropped=True))]
    assert ann.call("undrop_catalog", name="other", to="first")[0] == 200
    assert "first" in names(ann)
    with pytest.raises(NotFoundError):
        ann.session.catalogs.get("other")


def test_a_catalog_that_another_principal_creates_meanwhile_keeps_its_owner(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = world.principal("bob", "two")
    for role in ("one", "two"):
        world.grant(["CATALOG_CREATE"], securables.REALM, role)
    find = realm_catalogs.read_catalog

    def find_before_bob(references: Any, name: str) -> Any:
        found = find(references, name)
        monkeypatch.setattr(realm_catalogs, "read_catalog", find)
        world.open(bob, catalog="new", warehouse=str(tmp_path / "new"))
        return found

    monkeypatch.setattr(realm_catalogs, "read_catalog", find_before_bob)
    ann = world.open(world.credentials, catalog="new", warehouse=str(tmp_path / "other"))
    id = securables.catalog(ann.session.catalog.row.entity_id)
    changed()
    assert world.root.session.access.required().owner(id) == "bob"


def test_a_catalog_that_is_dropped_meanwhile_is_not_created_without_the_privilege(
    world: World, ann: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = create(world, "other", tmp_path)
    world.grant(["CATALOG_READ_PROPERTIES"], other)
    find = realm_catalogs.read_catalog

    def find_before_drop(references: Any, name: str) -> Any:
        found = find(references, name)
        monkeypatch.setattr(realm_catalogs, "read_catalog", find)
        world.root.session.catalogs.drop("other")
        return found

    monkeypatch.setattr(realm_catalogs, "read_catalog", find_before_drop)
    with pytest.raises(NotFoundError):
        world.open(world.credentials, catalog="other", warehouse=str(tmp_path / "other"))
    assert [one.row.name for one in world.root.session.catalogs.all()] == ["polaris"]


def test_the_error_for_a_missing_catalog_does_not_list_others(
    world: World, ann: User, tmp_path: Path
) -> None:
    create(world, "secret", tmp_path)
    with pytest.raises(NotFoundError) as refused:
        world.open(world.credentials, catalog="nothing", create=False)
    assert "secret" not in str(refused.value)


def test_the_error_for_an_overlapping_warehouse_does_not_name_hidden_catalogs(
    world: World, ann: User, tmp_path: Path
) -> None:
    world.grant(["CATALOG_DROP", "CATALOG_READ_PROPERTIES"], create(world, "mine", tmp_path))
    world.grant(["CATALOG_READ_PROPERTIES"])
    world.grant(["CATALOG_CREATE"], securables.REALM)
    catalogs = world.root.session.catalogs
    catalogs.drop("mine")
    catalogs.create("hidden", {"warehouse": str(tmp_path / "mine" / "within")})
    for status, body in (
        ann.call("undrop_catalog", name="mine"),
        ann.call("create_catalog", name="new", warehouse=str(tmp_path / "mine")),
    ):
        assert status == 403
        assert "another catalog" in str(body)
        assert "hidden" not in str(body)
        assert "within" not in str(body)
    with pytest.raises(ForbiddenError, match="hidden"):
        catalogs.undrop("mine")


def test_only_an_administrator_creates_a_catalog_over_the_locations_of_others(
    world: World, ann: User, tmp_path: Path
) -> None:
    """The owner of such a catalog could register or read the tables of other catalogs."""
    world.grant(["CATALOG_CREATE"], securables.REALM)
    shared = {"shared-locations": "allow"}
    place = str(tmp_path / "main" / "hidden")
    properties = {"default-base-location": place, **shared}
    asked: dict[str, Any] = {"name": "new", "warehouse": place, "properties": shared}
    assert ann.call("create_catalog", **asked)[0] == 403
    assert ann.status("POST", MANAGED, {"catalog": {"name": "new", "properties": properties}}) == 403
    with pytest.raises(ForbiddenError, match="SERVICE_MANAGE_ACCESS on the realm"):
        ann.session.catalogs.create("new", {"warehouse": place, **shared})
    with pytest.raises(ForbiddenError, match="SERVICE_MANAGE_ACCESS"):
        world.open(world.credentials, catalog="new", warehouse=place, shared_locations="allow")
    assert world.root.call("create_catalog", **asked)[0] == 200


def test_a_catalog_over_one_that_shares_locations_needs_an_administrator(
    world: World, ann: User, tmp_path: Path
) -> None:
    world.grant(["CATALOG_CREATE"], securables.REALM)
    place = tmp_path / "shared"
    world.root.session.catalogs.create("shared", {"warehouse": str(place), "shared-locations": "allow"})
    for folder in (place, place / "within"):
        with pytest.raises(ForbiddenError, match="another catalog"):
            ann.session.catalogs.create("new", {"warehouse": str(folder)})
    assert ann.session.catalogs.create("new", {"warehouse": str(tmp_path / "beside")})
    assert world.root.session.catalogs.create("over", {"warehouse": str(place / "within")})


def test_the_error_for_a_location_names_no_other_catalog(world: World, ann: User, tmp_path: Path) -> None:
    create(world, "secret", tmp_path)
    world.namespace("db")
    world.grant(["TABLE_CREATE"])
    body = {"name": "t", "schema": SCHEMA, "location": str(tmp_path / "secret" / "inside")}
    status, answer = ann.send("POST", "v1/namespaces/db/tables", body)
    message = answer["error"]["message"]
    assert (status, "of another catalog" in message) == (403, True), message
    assert "catalog 'secret'" not in message


def test_no_request_tells_whether_a_hidden_catalog_exists(world: World, ann: User) -> None:
    """Also requests that every principal may send."""
    world.root.call("create_branch", name="dev")
    world.revoke_all()
    for method, path, body in (
        ("GET", "polaris-spark/v1/NAME/procedures", None),
        ("GET", "polaris-spark/v1/NAME/runs", None),
        ("GET", "polaris-spark/v1/NAME/views", None),
        ("GET", "v1/NAME/namespaces/db/functions", None),
        ("POST", "polaris-spark/v1/NAME/procedures/show_roles", {"arguments": {}}),
        (
            "POST",
            "polaris-spark/v1/NAME/procedures/explain_access",
            {"arguments": {"privilege": "TABLE_LIST"}},
        ),
    ):
        found, missing = (ann.send(method, path.replace("NAME", name), body) for name in ("polaris", "none"))
        assert found[0] == missing[0] == 404, (path, found, missing)
        assert str(found[1]).replace("polaris", "none") == str(missing[1])
    path = "polaris-spark/v1/procedures"
    assert ann.status("GET", path) == 200
    states = [ann.send("GET", path, polaris_state=state) for state in ("dev", "none")]
    assert states[0] == states[1]
    assert states[0][0] == 404
    asked = [
        ann.call("explain_access", privilege="BRANCH_LIST", on="branch", name=name)
        for name in ("dev", "none")
    ]
    assert asked[0] == asked[1]
    assert asked[0][0] == 404
    assert ann.call("show_roles")[0] == 200
