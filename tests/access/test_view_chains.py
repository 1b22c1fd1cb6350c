"""Reads of tables through views, with the rights of those who made the views."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.access.principal_changes import AlterPrincipal
from polaris_spark.catalog.entities.entities import TableName
from polaris_spark.catalog.rows import TABLE, VIEW
from polaris_spark.catalog.tables.view_changes import CreateView
from polaris_spark.jobs.registry import call
from tests.access.world import SCHEMA, VIEW_VERSION, User, World

T = "v1/namespaces/db/tables/t"


def version(sql: str, id: int = 1, dialect: str = "spark", **more: Any) -> dict[str, Any]:
    query = {"type": "sql", "sql": sql, "dialect": dialect}
    return {**VIEW_VERSION, "version-id": id, "representations": [query], **more}


def create(user: User, name: str, sql: str, namespace: str = "views", **more: Any) -> None:
    body = {"name": name, "schema": SCHEMA, "view-version": version(sql, **more), "properties": {}}
    status, answer = user.send("POST", f"v1/namespaces/{namespace}/views", body)
    assert status == 200, answer


def replace(user: User, name: str, sql: str, id: int = 2) -> None:
    updates = [
        {"action": "add-view-version", "view-version": version(sql, id)},
        {"action": "set-current-view-version", "view-version-id": -1},
    ]
    status, answer = user.send(
        "POST", f"v1/namespaces/views/views/{name}", {"requirements": [], "updates": updates}
    )
    assert status == 200, answer


def load(user: User, *views: str, path: str = T) -> tuple[int, str]:
    """Load a table through views of the namespace `views`, the outermost first."""
    chain = ",".join(view if "\x1f" in view else f"views\x1f{view}" for view in views)
    status, answer = user.send("GET", path, query={"referenced-by": chain})
    return status, "" if status == 200 else answer["error"]["message"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    for namespace in ("db", "views"):
        made.namespace(namespace)
    for table in ("t", "u"):
        made.table("db", table)
    made.grant(["VIEW_READ_PROPERTIES"], made.entity("views"))
    yield made
    made.close()


@pytest.fixture
def ann(world: World) -> User:
    return world.open(world.credentials)


def test_a_table_is_read_through_a_view_of_somebody_who_may_read_it(world: World, ann: User) -> None:
    create(world.root, "v", "SELECT a FROM db.t")
    assert ann.status("GET", T) == 404
    assert load(ann, "v") == (200, "")
    assert ann.status("GET", T) == 404
    for method, body in (("POST", {"requirements": [], "updates": []}), ("DELETE", None)):
        assert ann.send(method, T, body, {"referenced-by": "views\x1fv"})[0] == 404


def test_a_view_gives_nothing_that_its_query_does_not_name(world: World, ann: User) -> None:
    create(world.root, "v", "SELECT a FROM db.t -- db.u")
    status, message = load(ann, "v", path="v1/namespaces/db/tables/u")
    assert (status, "does not name db.u" in message) == (403, True)
    create(world.root, "names", "SELECT 'db.t' AS a, t.a FROM (SELECT 1 AS a) AS t")
    assert load(ann, "names")[0] == 403


def test_a_view_that_the_caller_may_not_read_gives_nothing(world: World, ann: User) -> None:
    create(world.root, "v", "SELECT a FROM db.t", namespace="db")
    without = ann.send("GET", T)
    assert ann.send("GET", T, query={"referenced-by": "db\x1fv"}) == without
    assert ann.send("GET", T, query={"referenced-by": "db\x1fnone"}) == without
    assert without[0] == 404


def test_nobody_gives_rights_to_itself_by_making_a_view(world: World, ann: User) -> None:
    world.grant(["VIEW_CREATE"], world.entity("views"))
    create(ann, "mine", "SELECT a FROM db.t UNION SELECT a FROM db.none")
    status, message = load(ann, "mine")
    assert (status, "'ann'" in message) == (403, True)
    missing = load(ann, "mine", path="v1/namespaces/db/tables/none")
    assert missing == (403, message.replace("db.t", "db.none"))  # so it does not say whether a table exists


def test_whoever_changes_a_view_becomes_its_definer(world: World, ann: User) -> None:
    create(world.root, "v", "SELECT a FROM db.u")
    world.grant(["VIEW_WRITE_PROPERTIES"], world.entity("views", "v", kind=VIEW))
    replace(ann, "v", "SELECT a FROM db.t")
    assert load(ann, "v")[0] == 403
    body = {"requirements": [], "updates": [{"action": "set-current-view-version", "view-version-id": 1}]}
    assert ann.status("POST", "v1/namespaces/views/views/v", body) == 200
    assert load(ann, "v", path="v1/namespaces/db/tables/u")[0] == 403
    replace(world.root, "v", "SELECT a FROM db.t WHERE a > 0", 3)
    properties = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": "v"}}]}
    assert ann.status("POST", "v1/namespaces/views/views/v", properties) == 200
    assert load(ann, "v")[0] == 200  # the query is still that of root


def test_a_definer_that_may_no_longer_read_gives_nothing(world: World, ann: User) -> None:
    credentials = world.principal("eve", "three")
    world.grant(["VIEW_CREATE"], world.entity("views"), role="three")
    world.grant(["TABLE_READ_DATA"], world.entity("db", "t", kind=TABLE), role="three")
    eve = world.open(credentials)
    create(eve, "v", "SELECT a FROM db.t")
    assert load(ann, "v")[0] == 200
    world.change(AlterPrincipal, "eve", state="revoked")
    assert load(ann, "v")[0] == 403
    world.change(AlterPrincipal, "eve", state="active")
    assert load(ann, "v")[0] == 200
    world.revoke_all("three")
    assert load(ann, "v")[0] == 403


def test_every_view_of_a_chain_is_checked(world: World, ann: User) -> None:
    create(world.root, "deep", "SELECT a FROM db.t", namespace="db")
    create(world.root, "outer", "SELECT a FROM db.deep")
    assert load(ann, "outer", "db\x1fdeep") == (200, "")
    assert ann.status("GET", "v1/namespaces/db/views/deep") == 404
    assert load(ann, "outer", path="v1/namespaces/db/views/deep") == (200, "")
    assert load(ann, "outer")[0] == 403  # it does not name the table itself
    assert load(ann, "db\x1fdeep", "outer")[0] == 404
    create(world.root, "other", "SELECT 1 AS a")
    assert load(ann, "other", "db\x1fdeep")[0] == 403


def test_names_that_cannot_be_resolved_with_certainty_give_nothing(world: World, ann: User) -> None:
    create(world.root, "default", "SELECT a FROM t", **{"default-namespace": ["db"]})
    assert load(ann, "default") == (200, "")
    create(world.root, "catalog", "SELECT a FROM polaris.db.t", **{"default-catalog": "polaris"})
    assert load(ann, "catalog") == (200, "")
    create(world.root, "other", "SELECT a FROM db.t", **{"default-catalog": "another"})
    assert "another" in load(ann, "other")[1]
    create(world.root, "trino", "SELECT a FROM db.t", dialect="trino")
    assert "dialect spark" in load(ann, "trino")[1]
    create(world.root, "hidden", "WITH t AS (SELECT 1 AS a) SELECT a FROM t", **{"default-namespace": ["db"]})
    assert load(ann, "hidden")[0] == 403


def test_earlier_states_and_branches_are_not_read_through_views(world: World, ann: User) -> None:
    create(world.root, "v", "SELECT a FROM db.t")
    call(world.root.session, "create_branch", name="dev")
    replace(world.root, "v", "SELECT a FROM db.u")
    assert load(ann, "v")[0] == 403
    for state in ("dev", "main#1", "1"):
        status, _ = ann.send("GET", T, query={"referenced-by": "views\x1fv"}, polaris_state=state)
        assert status in (403, 404), state
    assert load(ann, "v", path="v1/namespaces/db/tables/u@dev")[0] in (403, 404)


@pytest.mark.parametrize("text", ["", "v", "views\x1f", ",", "views\x1fv,", "\x1fv"])
def test_malformed_chains_are_refused(world: World, ann: User, text: str) -> None:
    create(world.root, "v", "SELECT a FROM db.t")
    assert ann.send("GET", T, query={"referenced-by": text})[0] == 400


def test_names_that_are_escaped_twice_are_understood(world: World, ann: User) -> None:
    create(world.root, "v,w", "SELECT a FROM db.t")
    assert ann.send("GET", T, query={"referenced-by": "views%1Fv%2Cw"})[0] == 200


def test_views_from_before_access_control_give_nothing(world: World, ann: User) -> None:
    catalog = world.root.session.catalog
    before = catalog.context._replace(has_owners=False)
    request = {"schema": SCHEMA, "view-version": version("SELECT a FROM db.t"), "properties": {}}
    operation = world.root.session.operation()
    catalog.commit(CreateView(before, operation, TableName(("views",), "old"), request))
    assert "not known who made" in load(ann, "old")[1]


def test_whoever_registers_a_view_is_not_its_definer(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.namespace("db")
    world.namespace("views")
    world.table("db", "t")
    root = world.open(world.administrator, metadata_files="every-commit")
    create(root, "v", "SELECT a FROM db.t")
    location = root.send("GET", "v1/namespaces/views/views/v")[1]["metadata-location"]
    assert root.status("DELETE", "v1/namespaces/views/views/v") == 204
    body = {"name": "copy", "metadata-location": location}
    assert root.status("POST", "v1/namespaces/views/register-view", body) == 200
    world.grant(["VIEW_READ_PROPERTIES"], world.entity("views"))
    assert "not known who made" in load(world.open(world.credentials), "copy")[1]
    world.close()
