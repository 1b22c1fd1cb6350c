"""A refresh by an administrator does not read for the owner of a materialized view what the owner may not read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from polaris_spark.access.changes import RoleName
from polaris_spark.access.grant_changes import Grant
from polaris_spark.access.principal_changes import AlterPrincipal
from polaris_spark.access.securables import REALM
from polaris_spark.catalog.entities.entities import TableName
from polaris_spark.catalog.materialized.outside_sources import ICEBERG_LOCATION
from polaris_spark.catalog.materialized.query_pinning import pin
from polaris_spark.catalog.materialized.stored_views import materialized
from polaris_spark.catalog.materialized.view_sources import PinnedQuery, query_of
from polaris_spark.catalog.rows import TABLE, VIEW
from polaris_spark.errors import ForbiddenError
from polaris_spark.jobs.materialized_views.rights import require_owner_reads
from tests.access.world import SCHEMA, VIEW_VERSION, World
from tests.rest.materialized import create_materialized_view, refresh


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    for namespace in ("db", "hidden"):
        made.namespace(namespace)
        made.table(namespace, "t")
    yield made
    made.close()


def create(world: World, name: str, sql: str, *, owner: str = "ann") -> None:
    create_materialized_view(world.root.session.catalog, name, sql, replace=True)
    assert world.root.call("set_owner", owner=owner, on="view", name=f"db.{name}")[0] == 200


def plain_view(world: World, name: str, sql: str) -> None:
    representation = {"type": "sql", "sql": sql, "dialect": "spark"}
    version = {**VIEW_VERSION, "representations": [representation]}
    body = {"name": name, "schema": SCHEMA, "view-version": version, "properties": {}}
    assert world.root.status("POST", "v1/namespaces/db/views", body) == 200


def check(world: World, name: str = "mv", *, outside: bool = False) -> None:
    """Check a refresh by the administrator."""
    session, view = world.root.session, TableName(("db",), name)
    state = session.catalog.view()

    def query() -> PinnedQuery:
        of_view = query_of(state, materialized(state, view))
        found = pin(state, "polaris", of_view, view, stored=lambda *_: "stored")
        if outside:  # as Spark finds it by its location
            found = found._replace(tables=tuple(one._replace(type=ICEBERG_LOCATION) for one in found.tables))
        return found

    require_owner_reads(session, view, query)


@pytest.mark.parametrize(
    "sql", ["SELECT a FROM hidden.t", "SELECT a FROM hidden.t.branch_main", "SELECT a FROM v"]
)
def test_the_owner_must_be_allowed_to_read_the_sources(world: World, sql: str) -> None:
    plain_view(world, "v", "SELECT a FROM hidden.t")
    world.grant(["VIEW_READ_PROPERTIES"], world.entity("db", "v", kind=VIEW))
    create(world, "mv", sql)
    hidden = world.entity("hidden", "t", kind=TABLE)
    with pytest.raises(
        ForbiddenError, match=r"owner 'ann' needs the privilege TABLE_READ_DATA on table hidden\.t"
    ):
        check(world)
    world.grant(["TABLE_READ_DATA"], hidden)
    check(world)
    world.change(Grant, RoleName("one"), hidden, [], described="it", revoke=True)
    assert world.root.call("set_owner", owner="root", on="view", name="db.mv")[0] == 200
    check(world)


def test_the_owner_needs_only_the_rows_of_another_materialized_view(world: World) -> None:
    create(world, "below", "SELECT a FROM hidden.t", owner="root")
    create(world, "mv", "SELECT a FROM below")
    with pytest.raises(ForbiddenError, match=r"VIEW_READ_PROPERTIES on view db\.below"):
        check(world)
    world.grant(["VIEW_READ_PROPERTIES"], world.entity("db", "below", kind=VIEW))
    check(world)


def test_sources_outside_of_the_catalog_need_the_privilege_on_the_realm(world: World) -> None:
    create(world, "mv", "SELECT a FROM t")
    world.grant(["TABLE_READ_DATA"])
    check(world)
    with pytest.raises(ForbiddenError, match="TABLE_READ_DATA on the realm"):
        check(world, outside=True)
    world.grant(["TABLE_READ_DATA"], REALM)
    check(world, outside=True)


def test_the_owner_must_be_active(world: World) -> None:
    create(world, "mv", "SELECT a FROM t")
    world.grant(["TABLE_READ_DATA"])
    world.change(AlterPrincipal, "ann", state="revoked")
    with pytest.raises(ForbiddenError, match=r"'ann' is not active.*set_owner"):
        check(world)


def test_a_view_tells_its_author_nothing_about_tables_that_the_author_may_not_read(world: World) -> None:
    """Neither in the explanation of its refresh, nor by whether its rows are fresh."""
    world.grant(["VIEW_READ_PROPERTIES"], world.entity("db"))
    ann = world.open(world.credentials)
    answers = []
    for name, sql in (("mv1", "SELECT a FROM hidden.t"), ("mv2", "SELECT a FROM hidden.none")):
        create(world, name, sql)
        uuid = world.root.send("GET", f"v1/namespaces/db/views/{name}")[1]["metadata"]["view-uuid"]
        base = {"type": "iceberg-metastore", "identifier": sql.split()[-1], "snapshot-reference": 7}
        commit = refresh(uuid, 1, 1, **{"base-tables": [base]})
        assert world.root.status("POST", f"v1/namespaces/db%1F{name}/tables/storage", commit) == 200
        status, explained = ann.call("explain_refresh", view=f"db.{name}")
        assert status == 403, explained
        _, described = ann.call("describe_materialized_view", view=f"db.{name}")
        [reason] = [row[1] for row in described["rows"] if row[0] == "reason"]
        shown = [
            row[-2]
            for row in ann.call("show_materialized_views", namespace="db")[1]["rows"]
            if row[1] == name
        ]
        answers.append((str(explained).replace(name, ""), reason, shown))
    assert answers[0] == answers[1]
    world.grant(["TABLE_READ_DATA"], world.entity("hidden", "t", kind=TABLE))
    assert ann.call("explain_refresh", view="db.mv1")[0] == 200
