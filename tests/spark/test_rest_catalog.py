"""Spark with Iceberg's own catalog of REST servers, as a principal of few privileges that logs in by OAuth2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from polaris_spark.access.credentials import Credentials
from polaris_spark.access.principal_changes import AlterPrincipal
from polaris_spark.jobs.registry import call
from polaris_spark.store_uris import Secret
from polaris_spark.testing.waiting import wait_until
from tests.server.limited import (
    ABSENT,
    CONTENT,
    HIDDEN,
    ROLE,
    at,
    documented,
    expire,
    grant_all,
    new_principal,
    without_names,
)
from tests.server.realms import CREDENTIALS, Realm, counted, new_realm
from tests.server.servers import Server
from tests.spark.catalogs import new_name

pytestmark = pytest.mark.spark

REFUSED = {
    "INSERT INTO {0}.shop.orders VALUES (2, 'milk')": "TABLE_WRITE_PROPERTIES on table shop.orders",
    "DELETE FROM {0}.shop.orders": "TABLE_WRITE_PROPERTIES on table shop.orders",
    "ALTER TABLE {0}.shop.orders ADD COLUMN note STRING": "TABLE_WRITE_PROPERTIES on table shop.orders",
    "DROP TABLE {0}.shop.orders": "TABLE_DROP on table shop.orders",
    "DROP TABLE {0}.shop.stock": "TABLE_DROP on table shop.stock",
    "CREATE OR REPLACE TABLE {0}.shop.orders AS SELECT 1 AS a": "TABLE_WRITE_PROPERTIES on table shop.orders",
    "ALTER TABLE {0}.shop.orders CREATE TAG audited": "TABLE_WRITE_PROPERTIES on table shop.orders",
    "DROP VIEW {0}.shop.items": "VIEW_DROP on view shop.items",
    "CREATE OR REPLACE VIEW {0}.shop.items AS SELECT 1 AS a": "VIEW_WRITE_PROPERTIES on view shop.items",
    "CREATE TABLE {0}.shop.mine (a INT)": "TABLE_CREATE on namespace shop",
    "CREATE VIEW {0}.shop.mine AS SELECT 1 AS a": "VIEW_CREATE on namespace shop",
    "DESCRIBE NAMESPACE {0}.shop": "NAMESPACE_READ_PROPERTIES on namespace shop",
    "DROP NAMESPACE {0}.shop": "NAMESPACE_DROP on namespace shop",
    "CREATE NAMESPACE {0}.mine": "NAMESPACE_CREATE on the parent namespace or the catalog",
}
"""Statements about what the principal sees, and the privilege that it lacks."""

ON_NAMES = [
    "SELECT * FROM {table}",
    "SELECT * FROM {inside}",
    "SELECT * FROM {view}",
    "SELECT * FROM {table}.snapshots",
    "SELECT * FROM {table} VERSION AS OF 1",
    "DESCRIBE TABLE {table}",
    "DESCRIBE TABLE EXTENDED {view}",
    "SHOW CREATE TABLE {table}",
    "SHOW COLUMNS IN {table}",
    "INSERT INTO {table} VALUES (2)",
    "ALTER TABLE {table} ADD COLUMN note STRING",
    "ALTER TABLE {table} RENAME TO work.mine",
    "DROP TABLE {table}",
    "DROP TABLE {inside}",
    "DROP VIEW {view}",
    "CREATE TABLE {table} (a INT)",
    "CREATE TABLE {inside} (a INT)",
    "CREATE VIEW {view} AS SELECT 1 AS a",
    "CREATE OR REPLACE TABLE {table} AS SELECT 1 AS a",
    "CREATE OR REPLACE VIEW {view} AS SELECT 1 AS a",
    "CALL {0}.system.expire_snapshots('{table}')",
    "USE {namespace}",
    "SHOW TABLES IN {namespace}",
    "SHOW VIEWS IN {namespace}",
    "DESCRIBE NAMESPACE {namespace}",
    "DROP NAMESPACE {namespace}",
    "CREATE NAMESPACE {namespace}",
]
"""Statements that name something, which the principal may not see or which does not exist."""


def add_rest_catalog(spark: SparkSession, server: Server, credentials: Credentials, **properties: str) -> str:
    """Configure a catalog as documented, with further properties, under a new name. Return the name."""
    name = new_name()
    shown = documented("spark.sql.catalog.shop", server.uri, credentials)
    more = {f".{key.replace('_', '-')}": text for key, text in properties.items()}
    for key, text in {**shown, **more}.items():
        spark.conf.set(f"spark.sql.catalog.{name}{key}", text)
    return name


def rows(spark: SparkSession, statement: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in spark.sql(statement).collect()]


def refusal(spark: SparkSession, statement: str) -> str:
    """Run a statement that must fail. Return the error's class and message, without the stack."""
    with pytest.raises((AnalysisException, Py4JJavaError)) as raised:
        spark.sql(statement).collect()
    error = raised.value
    return str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Realm:
    return new_realm(tmp_path_factory.mktemp("realm"))


@pytest.fixture(scope="module")
def server(realm: Realm) -> Iterator[Server]:
    with realm.server() as started:
        yield started


@pytest.fixture(scope="module")
def root(spark: SparkSession, realm: Realm, server: Server) -> str:
    """The administrator's catalog, with content."""
    name = add_rest_catalog(spark, server, CREDENTIALS["root"])
    spark.sql(f"USE {name}")  # views then name no catalog, and are read with the credentials of their reader
    for statement in CONTENT:
        spark.sql(statement.format(""))
    spark.sql("USE spark_catalog.default")
    return name


@pytest.fixture(scope="module")
def eve(spark: SparkSession, realm: Realm, server: Server, root: str) -> str:
    """The catalog of a principal of few privileges."""
    credentials = new_principal(realm, "eve")
    grant_all(realm)
    return add_rest_catalog(spark, server, credentials)


def content(spark: SparkSession, root: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of all tables and views that Spark lists. The keys name kind and path: `TABLES shop.orders`."""
    found = {}
    for (namespace,) in rows(spark, f"SHOW NAMESPACES IN {root}"):
        for kind in ("TABLES", "VIEWS"):
            listed = sorted(name for _, name, _ in rows(spark, f"SHOW {kind} IN {root}.{namespace}"))
            for name in listed:
                where = f"{namespace}.{name}"
                found[f"{kind} {where}"] = sorted(rows(spark, f"SELECT * FROM {root}.{where}"))
    return found


def test_lists_show_what_the_principal_may_see(spark: SparkSession, eve: str) -> None:
    assert rows(spark, f"SHOW NAMESPACES IN {eve}") == [("shop",), ("work",)]
    assert sorted(name for _, name, _ in rows(spark, f"SHOW TABLES IN {eve}.shop")) == ["orders", "stock"]
    assert sorted(name for _, name, _ in rows(spark, f"SHOW VIEWS IN {eve}.shop")) == ["items", "total"]


def test_the_principal_reads_and_writes_what_it_may(spark: SparkSession, eve: str, root: str) -> None:
    assert rows(spark, f"SELECT * FROM {eve}.shop.orders") == [(1, "tea")]
    assert rows(spark, f"SELECT * FROM {eve}.shop.items") == [("tea",)]
    spark.sql(f"USE {eve}.shop")
    assert rows(spark, "SELECT * FROM orders") == [(1, "tea")]
    spark.sql("USE spark_catalog.default")
    assert rows(spark, f"DESCRIBE TABLE {eve}.shop.orders")[:2] == [
        ("id", "int", None),
        ("item", "string", None),
    ]
    assert len(rows(spark, f"SELECT * FROM {eve}.shop.orders.snapshots")) == 1
    spark.sql(f"INSERT INTO {eve}.shop.stock VALUES (2)")
    spark.sql(f"DELETE FROM {eve}.shop.stock WHERE id = 1")
    for catalog in (eve, root):
        assert rows(spark, f"SELECT * FROM {catalog}.shop.stock") == [(2,)]


def test_a_view_does_not_let_the_principal_read_its_tables(spark: SparkSession, eve: str) -> None:
    text = refusal(spark, f"SELECT * FROM {eve}.shop.total")
    assert "TABLE_OR_VIEW_NOT_FOUND" in text
    assert "salaries" in text


def test_a_view_that_names_another_catalog_reads_with_its_credentials(
    spark: SparkSession, realm: Realm, eve: str, root: str
) -> None:
    assert "salaries" in refusal(spark, f"SELECT * FROM {eve}.shop.salaries")
    spark.sql(f"CREATE VIEW {root}.shop.named AS SELECT id FROM {root}.shop.salaries")
    with realm.session() as session:
        call(session, "grant", privileges="VIEW_READ_PROPERTIES", role=ROLE, on="view", name="shop.named")
    listed = f"SHOW VIEWS IN {eve}.shop"
    wait_until(
        lambda: "named" in [name for _, name, _ in rows(spark, listed)], "the server applies the grant"
    )
    assert rows(spark, f"SELECT * FROM {eve}.shop.named") == [(1,)]
    spark.sql(f"DROP VIEW {root}.shop.named")


def test_the_principal_owns_what_it_creates(spark: SparkSession, eve: str) -> None:
    spark.sql(f"CREATE TABLE {eve}.work.mine AS SELECT 1 AS a")
    spark.sql(f"INSERT INTO {eve}.work.mine VALUES (2)")
    spark.sql(f"CREATE VIEW {eve}.work.sums AS SELECT sum(a) AS a FROM {eve}.work.mine")
    spark.sql(f"ALTER TABLE {eve}.work.mine ADD COLUMN b INT")
    assert rows(spark, f"SELECT * FROM {eve}.work.sums") == [(3,)]
    assert [name for _, name, _ in rows(spark, f"SHOW TABLES IN {eve}.work")] == ["mine"]
    spark.sql(f"DROP VIEW {eve}.work.sums")
    spark.sql(f"DROP TABLE {eve}.work.mine")
    assert rows(spark, f"SHOW TABLES IN {eve}.work") == []


def test_refusals_of_what_is_seen_name_the_privilege(spark: SparkSession, eve: str, root: str) -> None:
    before = content(spark, root)
    found = {statement: refusal(spark, statement.format(eve)) for statement in REFUSED}
    assert content(spark, root) == before
    for statement, text in found.items():
        assert "ForbiddenException" in text, statement
        assert f"needs the privilege {REFUSED[statement]};" in text, statement


def test_what_is_hidden_looks_like_what_does_not_exist(spark: SparkSession, eve: str, root: str) -> None:
    before = content(spark, root)
    found = {
        statement: [
            without_names(refusal(spark, statement.format(eve, **at(eve, names))), names)
            for names in (HIDDEN, ABSENT)
        ]
        for statement in ON_NAMES
    }
    assert {statement: texts for statement, texts in found.items() if texts[0] != texts[1]} == {}
    assert content(spark, root) == before


@pytest.mark.parametrize("known", [True, False], ids=["known client", "unknown client"])
def test_wrong_credentials_are_refused(
    spark: SparkSession, realm: Realm, server: Server, known: bool
) -> None:
    id = CREDENTIALS["ann"].client_id if known else "nobody"
    catalog = add_rest_catalog(spark, server, Credentials(id, Secret("wrong")))
    text = refusal(spark, f"SHOW NAMESPACES IN {catalog}")
    assert "NotAuthorizedException" in text
    assert "the credentials are not valid" in text


def test_a_role_that_the_principal_does_not_have_is_refused(
    spark: SparkSession, realm: Realm, server: Server
) -> None:
    made = new_principal(realm, "narrow")
    catalog = add_rest_catalog(spark, server, made, scope="PRINCIPAL_ROLE:service_admin")
    text = refusal(spark, f"SHOW NAMESPACES IN {catalog}")
    assert "invalid_scope" in text
    assert "does not have the role 'service_admin'" in text


def test_statements_of_a_revoked_principal_are_refused(
    spark: SparkSession, realm: Realm, server: Server, eve: str
) -> None:
    catalog = add_rest_catalog(spark, server, new_principal(realm, "leaver"))
    read = f"SELECT * FROM {catalog}.shop.orders"
    assert rows(spark, read) == [(1, "tea")]
    realm.change(AlterPrincipal, "leaver", state="revoked")

    def is_refused() -> bool:
        try:
            rows(spark, read)
        except Py4JJavaError as error:
            return "NotAuthorizedException" in str(error.java_exception)
        return False

    wait_until(is_refused, "the server refuses the token")
    for statement in (
        f"SHOW NAMESPACES IN {catalog}",
        f"INSERT INTO {catalog}.shop.stock VALUES (9)",
        f"SELECT * FROM {catalog}.shop.absent",
    ):
        assert "NotAuthorizedException" in refusal(spark, statement)


def works(spark: SparkSession, catalog: str) -> bool:
    """Return whether a catalog's session can read. Its server refuses tokens that have expired.

    Raises:
        Py4JJavaError: another error.
    """
    try:
        return rows(spark, f"SELECT * FROM {catalog}.shop.orders") == [(1, "tea")]
    except Py4JJavaError as error:
        if "NotAuthorizedException" not in str(error.java_exception):
            raise
        return False


@pytest.mark.parametrize("exchanges", [True, False], ids=["token exchange", "new login"])
def test_a_session_outlives_its_first_token(
    spark: SparkSession, realm: Realm, eve: str, exchanges: bool
) -> None:
    credentials = new_principal(realm, f"stayer-{exchanges}")
    with realm.server("--token-lifetime", "5 s") as short:
        more = {} if exchanges else {"token_exchange_enabled": "false"}
        catalog = add_rest_catalog(spark, short, credentials, **more)
        # A slow session can use a token for a moment after it has expired, and then gets another.
        wait_until(lambda: works(spark, catalog), "the session has logged in")
        expire(short, credentials)
        wait_until(lambda: works(spark, catalog), "the session has a new token")
        if exchanges:
            wait_until(
                lambda: counted(short, "token-exchange") > 0, "the session exchanges a token", every_s=0.1
            )
        else:
            assert counted(short, "token-exchange") == 0


def test_without_refresh_a_session_ends_with_its_token(spark: SparkSession, realm: Realm, eve: str) -> None:
    credentials = new_principal(realm, "visitor")
    catalogs: list[str] = []

    def new_session_works() -> bool:
        catalogs.append(add_rest_catalog(spark, short, credentials, token_refresh_enabled="false"))
        return works(spark, catalogs[-1])

    with realm.server("--token-lifetime", "10 s") as short:
        wait_until(new_session_works, "a session reads before its token expires")
        expire(short, credentials)
        assert "NotAuthorizedException" in refusal(spark, f"SELECT * FROM {catalogs[-1]}.shop.orders")
        wait_until(new_session_works, "another session reads")
