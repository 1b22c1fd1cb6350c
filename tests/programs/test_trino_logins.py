"""Trino as principals that log in by OAuth2, in a realm with access control."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import pytest

from polaris_spark.access.credentials import Credentials
from polaris_spark.access.principal_changes import AlterPrincipal
from polaris_spark.errors import StateError
from polaris_spark.jobs.registry import call
from polaris_spark.store_uris import Secret
from polaris_spark.testing.waiting import wait_until
from tests.programs.trino import Trino, messages
from tests.server.limited import (
    ABSENT,
    CONTENT,
    HIDDEN,
    at,
    documented,
    expire,
    grant_all,
    new_principal,
    without_names,
)
from tests.server.realms import CREDENTIALS, Realm, counted, new_realm
from tests.server.servers import Server
from tests.servers.versitygw import VersityGateway
from tests.stores import start, unavailable

pytestmark = pytest.mark.programs

REFUSED = {
    "INSERT INTO {0}.shop.orders VALUES (2, 'milk')": "TABLE_WRITE_PROPERTIES on table shop.orders",
    "DELETE FROM {0}.shop.orders": "TABLE_WRITE_PROPERTIES on table shop.orders",
    "ALTER TABLE {0}.shop.orders ADD COLUMN note VARCHAR": "TABLE_WRITE_PROPERTIES on table shop.orders",
    "DROP TABLE {0}.shop.orders": "TABLE_DROP on table shop.orders",
    "DROP VIEW {0}.shop.items": "VIEW_DROP on view shop.items",
    "CREATE TABLE {0}.shop.mine (a INTEGER)": "NAMESPACE_READ_PROPERTIES on namespace shop",
    "CREATE VIEW {0}.shop.mine AS SELECT 1 AS a": "NAMESPACE_READ_PROPERTIES on namespace shop",
    "CREATE SCHEMA {0}.mine": "NAMESPACE_CREATE on the parent namespace or the catalog",
}
"""Statements about what the principal sees, and the privilege that it lacks."""

ON_NAMES = [
    "SELECT * FROM {table}",
    "SELECT * FROM {inside}",
    "SELECT * FROM {view}",
    "DESCRIBE {table}",
    "SHOW CREATE TABLE {table}",
    "SHOW CREATE VIEW {view}",
    "INSERT INTO {table} VALUES (2)",
    "ALTER TABLE {table} ADD COLUMN note VARCHAR",
    "DROP TABLE {table}",
    "DROP VIEW {view}",
    "CREATE TABLE {table} (a INTEGER)",
    "CREATE TABLE {inside} (a INTEGER)",
    "CREATE VIEW {view} AS SELECT 1 AS a",
    "CREATE OR REPLACE TABLE {table} AS SELECT 1 AS a",
    "CREATE OR REPLACE VIEW {view} AS SELECT 1 AS a",
    "SHOW TABLES FROM {namespace}",
    "DROP SCHEMA {namespace}",
    "CREATE SCHEMA {namespace}",
]
"""Statements that name something, which the principal may not see or which does not exist."""


class Place(NamedTuple):
    """A realm on S3 with its server, a second server with short-lived tokens, and Trino with a catalog per login."""

    realm: Realm
    server: Server
    short: Server
    trino: Trino
    eve: Credentials


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("trino")
    with ExitStack() as ends:
        bucket = ends.enter_context(start(VersityGateway))
        reached = {"s3.endpoint": bucket.endpoint, "s3.region": "us-east-1"}
        keys = {"s3.access-key-id": bucket.user, "s3.secret-access-key": bucket.secret}
        realm = new_realm(folder, properties={"warehouse": "s3://catalogs/logins", **reached, **keys})
        given = {**reached, "s3.access-key-id": "env:USER_ID", "s3.secret-access-key": "env:SECRET"}
        options = [word for name, text in given.items() for word in ("--property", f"{name}={text}")]
        environment = {"USER_ID": bucket.user, "SECRET": bucket.secret}
        server = ends.enter_context(realm.server(*options, environment=environment))
        short = ends.enter_context(realm.server(*options, "--token-lifetime", "5 s", environment=environment))
        eve = new_principal(realm, "eve")
        files = {
            "fs.native-s3.enabled": "true",
            **reached,
            "s3.path-style-access": "true",
            "s3.aws-access-key": bucket.user,
            "s3.aws-secret-key": bucket.secret,
        }

        def catalog(to: Server, credentials: Credentials, **more: str) -> dict[str, str]:
            changed = {f"iceberg.rest-catalog.{name}": text for name, text in more.items()}
            return {
                "connector.name": "iceberg",
                **{
                    f"iceberg.{key}": text
                    for key, text in documented("iceberg.", to.uri, credentials).items()
                },
                **changed,
                **files,
            }

        catalogs = {
            "root": catalog(server, CREDENTIALS["root"]),
            "eve": catalog(server, eve),
            "eve_on_branch": catalog(server, eve, warehouse="polaris@dev"),
            "lasting": catalog(short, eve),
            "unrefreshed": catalog(short, eve, **{"oauth2.token-refresh-enabled": "false"}),
            "leaver": catalog(server, new_principal(realm, "leaver")),
            "wrong": catalog(server, Credentials("eve", Secret("wrong"))),
            "scoped": catalog(server, eve, **{"oauth2.scope": "PRINCIPAL_ROLE:service_admin"}),
        }
        try:
            trino = ends.enter_context(Trino(catalogs))
        except StateError as error:
            unavailable(f"this test needs Trino: {error}")
            raise
        for statement in CONTENT:
            trino.execute(statement.format("root."))
        grant_all(realm)
        yield Place(realm, server, short, trino, eve)


def test_lists_show_what_the_principal_may_see(place: Place) -> None:
    run = place.trino.execute
    assert run("SHOW SCHEMAS FROM eve") == [["information_schema"], ["shop"], ["system"], ["work"]]
    assert run("SHOW TABLES FROM eve.shop") == [["items"], ["orders"], ["stock"], ["total"]]
    for table in ("tables", "columns"):
        listed = f"SELECT DISTINCT table_schema, table_name FROM eve.information_schema.{table}"
        found = run(f"{listed} WHERE table_schema <> 'information_schema' ORDER BY 2")
        assert [row for row in found if row[0] != "system"] == [
            ["shop", name] for name in ("items", "orders", "stock", "total")
        ]


def test_the_principal_reads_and_writes_what_it_may(place: Place) -> None:
    run = place.trino.execute
    assert run("SELECT * FROM eve.shop.orders") == [[1, "tea"]]
    assert run("INSERT INTO eve.shop.stock VALUES (2)") == [[1]]
    assert run("DELETE FROM eve.shop.stock WHERE id = 1") == [[1]]
    for catalog in ("eve", "root"):
        assert run(f"SELECT * FROM {catalog}.shop.stock") == [[2]]


@pytest.mark.parametrize("user", ["root", "eve", "zoe"])
def test_all_users_of_trino_are_the_principal_of_the_catalog(place: Place, user: str) -> None:
    assert place.trino.run("SELECT * FROM eve.shop.orders", user) == ([[1, "tea"]], None)
    _, error = place.trino.run("SELECT * FROM eve.shop.salaries", user)
    assert "salaries' does not exist" in messages(error)
    assert place.trino.run("SELECT * FROM root.shop.salaries", user) == ([[1]], None)


def test_the_principal_owns_what_it_creates(place: Place) -> None:
    run = place.trino.execute
    assert run("CREATE TABLE eve.work.mine AS SELECT 1 AS a") == [[1]]
    assert run("INSERT INTO eve.work.mine VALUES 2") == [[1]]
    run("CREATE VIEW eve.work.sums AS SELECT sum(a) AS a FROM eve.work.mine")
    run("ALTER TABLE eve.work.mine ADD COLUMN b INTEGER")
    assert run("SELECT * FROM eve.work.sums") == [[3]]
    assert run("SHOW TABLES FROM eve.work") == [["mine"], ["sums"]]
    run("DROP VIEW eve.work.sums")
    run("DROP TABLE eve.work.mine")
    assert run("SHOW TABLES FROM eve.work") == []


def test_refusals_of_what_is_seen_name_the_privilege(place: Place) -> None:
    found = {statement: place.trino.refusal(statement.format("eve")) for statement in REFUSED}
    for statement, text in found.items():
        assert f"needs the privilege {REFUSED[statement]};" in text, statement


def test_what_is_hidden_looks_like_what_does_not_exist(place: Place) -> None:
    found = {
        statement: [
            without_names(place.trino.refusal(statement.format(**at("eve", names))), names)
            for names in (HIDDEN, ABSENT)
        ]
        for statement in ON_NAMES
    }
    assert {statement: texts for statement, texts in found.items() if texts[0] != texts[1]} == {}


@pytest.mark.parametrize(
    ("catalog", "expected"),
    [
        ("wrong", "the credentials are not valid"),
        ("scoped", "invalid_scope: the principal does not have the role 'service_admin'"),
    ],
)
def test_wrong_credentials_and_roles_are_refused(place: Place, catalog: str, expected: str) -> None:
    for statement in (f"SHOW SCHEMAS FROM {catalog}", f"SELECT * FROM {catalog}.shop.orders"):
        assert expected in place.trino.refusal(statement)


def test_a_view_that_names_another_catalog_reads_with_its_credentials(place: Place) -> None:
    """The view of the administrator names the catalog `root`."""
    assert "salaries" in place.trino.refusal("SELECT * FROM eve.shop.salaries")
    assert place.trino.execute("SELECT * FROM eve.shop.total") == [[1]]


def test_a_branch_is_chosen_by_the_warehouse(place: Place) -> None:
    run = place.trino.execute
    with place.realm.session() as session:
        call(session, "create_branch", name="dev")
    run("INSERT INTO eve_on_branch.shop.stock VALUES 7")
    assert [7] in run("SELECT * FROM eve_on_branch.shop.stock")
    assert [7] not in run("SELECT * FROM eve.shop.stock")
    assert run("SHOW TABLES FROM eve_on_branch.shop") == [["items"], ["orders"], ["stock"], ["total"]]
    assert "salaries" in place.trino.refusal("SELECT * FROM eve_on_branch.shop.salaries")


def works(place: Place, catalog: str) -> bool:
    """Return whether Trino reads in a catalog. The server refuses tokens that have expired.

    Raises:
        AssertionError: another error.
    """
    rows, error = place.trino.run(f"SELECT * FROM {catalog}.shop.orders")
    if error is None:
        return rows == [[1, "tea"]]
    text = messages(error)
    assert "Not authorized" in text, text
    return False


def test_trino_outlives_its_first_token(place: Place) -> None:
    """Trino logs in for each statement."""
    catalogs = ("lasting", "unrefreshed")
    for catalog in catalogs:
        # A slow statement can use a token that has expired.
        wait_until(partial(works, place, catalog), "Trino has logged in")
    expire(place.short, place.eve)
    for catalog in catalogs:
        before = counted(place.short, "client-credentials")
        wait_until(partial(works, place, catalog), "Trino has a new token")
        assert counted(place.short, "client-credentials") > before


def test_statements_of_a_revoked_principal_are_refused(place: Place) -> None:
    assert works(place, "leaver")
    place.realm.change(AlterPrincipal, "leaver", state="revoked")
    wait_until(lambda: not works(place, "leaver"), "the server refuses the principal")
    for statement in ("SHOW SCHEMAS FROM leaver", "INSERT INTO leaver.shop.stock VALUES 9"):
        assert "the credentials are not valid" in place.trino.refusal(statement)
