"""A realm with a principal of few privileges, and the configurations of clients that the documentation shows."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path

from polaris_spark.access.changes import Assign, CreateRole, RoleName
from polaris_spark.access.control import REFRESH_MS
from polaris_spark.access.credentials import Credentials
from polaris_spark.access.principal_changes import CreatePrincipal
from polaris_spark.jobs.registry import call
from polaris_spark.testing.waiting import wait_until
from tests.server.realms import Realm, ask, status_of
from tests.server.servers import Server

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "rest-clients.md"
ROLE = "clerks"

GRANTS = (
    ("TABLE_READ_DATA", "table", "shop.orders"),
    ("TABLE_WRITE_DATA", "table", "shop.stock"),
    ("VIEW_READ_PROPERTIES", "view", "shop.items"),
    ("VIEW_READ_PROPERTIES", "view", "shop.total"),
    ("TABLE_CREATE", "namespace", "work"),
    ("VIEW_CREATE", "namespace", "work"),
    ("NAMESPACE_READ_PROPERTIES", "namespace", "work"),  # Trino reads them before it creates something
)
"""The privileges of the role, on what `CONTENT` makes."""

CONTENT = (
    "CREATE SCHEMA {0}shop",
    "CREATE SCHEMA {0}work",
    "CREATE SCHEMA {0}hidden",
    "CREATE TABLE {0}shop.orders AS SELECT 1 AS id, 'tea' AS item",
    "CREATE TABLE {0}shop.stock AS SELECT 1 AS id",
    "CREATE TABLE {0}shop.salaries AS SELECT 1 AS id",
    "CREATE TABLE {0}hidden.t AS SELECT 1 AS id",
    "CREATE VIEW {0}shop.items AS SELECT item FROM {0}shop.orders",
    "CREATE VIEW {0}shop.paid AS SELECT id FROM {0}shop.salaries",
    "CREATE VIEW {0}shop.total AS SELECT sum(id) AS total FROM {0}shop.salaries",
    "CREATE VIEW {0}hidden.v AS SELECT id FROM {0}hidden.t",
)
"""Statements of the administrator, in the SQL of Spark and Trino; `{0}` is nothing, or the catalog and a point."""

HIDDEN = {"table": "shop.salaries", "inside": "hidden.t", "view": "shop.paid", "namespace": "hidden"}
"""Names that the role does not see."""
ABSENT = {"table": "shop.nothing1", "inside": "absent.t", "view": "shop.zero", "namespace": "absent"}
"""Names of the same lengths that do not exist."""


def at(catalog: str, names: Mapping[str, str]) -> dict[str, str]:
    """Return names below a catalog."""
    return {key: f"{catalog}.{name}" for key, name in names.items()}


def without_names(text: str, names: Mapping[str, str]) -> str:
    """Return an error's message without the names of a statement, and without the numbers of Spark's columns."""
    for key, name in names.items():
        for word in set(name.split(".")) - {"shop", "t"}:
            text = text.replace(word, f"<{key}>")
    return re.sub(r"#\d+", "", text)


def new_principal(realm: Realm, name: str) -> Credentials:
    """Create a principal with the role `clerks`, which is created if it does not exist."""
    made = Credentials.new()
    realm.change(CreatePrincipal, name, made)
    realm.change(CreateRole, RoleName(ROLE), if_missing=True)
    realm.change(Assign, RoleName(ROLE), principal=name)
    return made


def grant_all(realm: Realm) -> None:
    """Give the role `clerks` its privileges, and wait until every server uses them."""
    with realm.session() as session:
        for privilege, kind, name in GRANTS:
            call(session, "grant", privileges=privilege, role=ROLE, on=kind, name=name)
    time.sleep(REFRESH_MS / 1_000)


def documented(prefix: str, uri: str, credentials: Credentials) -> Mapping[str, str]:
    """Return a configuration that the documentation shows.

    Args:
        prefix: the beginning of the keys of the client's configuration; other keys are left out, and so is the prefix.
        uri: the server's URI, in place of the one that is shown.
        credentials: the credentials, in place of those that are shown.
    """
    shown = "\n".join(re.findall(r"```properties\n(.*?)```", PAGE.read_text(), re.DOTALL))
    found = dict(re.findall(rf"^{re.escape(prefix)}([^=\n]*)=(.*)$", shown, re.MULTILINE))
    assert found, prefix
    assert "CLIENT_ID:SECRET" in found.values()
    return {
        key: text.replace("http://127.0.0.1:8181", uri).replace("CLIENT_ID:SECRET", credentials.text())
        for key, text in found.items()
    }


def expire(server: Server, credentials: Credentials) -> None:
    """Wait until the tokens that have been issued by now have expired."""
    given = {"client_id": credentials.client_id, "client_secret": credentials.secret.reveal()}
    token = ask(server, {"grant_type": "client_credentials", **given})[2]["access_token"]
    assert status_of(server, token) == 200
    wait_until(lambda: status_of(server, token) == 401, "the token expires")
