"""Servers of a realm whose requests Open Policy Agent decides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import ForbiddenError, NoSuchTableError
from pyiceberg.schema import Schema

from polaris_spark.access.decisions import VARIABLE
from polaris_spark.jobs.registry import call
from tests.access import authorizing
from tests.access.test_opa import POLICY
from tests.server.realms import CREDENTIALS, Realm, new_realm
from tests.server.servers import Server
from tests.servers.opa import OpenPolicyAgent


@pytest.fixture
def opa(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenPolicyAgent]:
    """A server of OPA whose policy lets the role `reader` read the namespace `shop`."""
    with OpenPolicyAgent({"polaris.rego": POLICY.replace("analysts", "reader")}) as server:
        monkeypatch.setenv("OPA_TOKEN", server.token)
        yield server


@pytest.fixture
def realm(tmp_path: Path, opa: OpenPolicyAgent, monkeypatch: pytest.MonkeyPatch) -> Realm:
    """A realm that uses the server of OPA, with the tables `shop.orders` and `hr.pay`."""
    company = {
        "type": "opa",
        "url": opa.url,
        "path": "polaris/authz",
        "token": "env:OPA_TOKEN",
        "timeout": "1 min",
    }
    authorizing.settings(tmp_path, monkeypatch, company=company)
    made = new_realm(tmp_path)
    with made.session() as session:
        assert call(session, "set_authorizer", name="company") == [(None, "company")]
    return made


def logged_in(server: Server, scope: str) -> RestCatalog:
    catalog = load_catalog(
        "shop",
        type="rest",
        uri=server.uri,
        credential=CREDENTIALS["ann"].text(),
        scope=f"PRINCIPAL_ROLE:{scope}",
    )
    assert isinstance(catalog, RestCatalog)
    return catalog


def test_clients_of_a_server_may_do_what_the_policy_says(realm: Realm) -> None:
    with realm.server() as server:
        everything = logged_in(server, "ALL")
        for namespace, name in (("shop", "orders"), ("hr", "pay")):
            everything.create_namespace(namespace)
            everything.create_table(f"{namespace}.{name}", Schema())
        assert everything.list_namespaces() == [("hr",), ("shop",)]
        reader = logged_in(server, "reader")
        assert reader.list_namespaces() == [("shop",)]
        assert reader.load_table("shop.orders").name() == ("shop", "orders")
        with pytest.raises(NoSuchTableError):
            reader.load_table("hr.pay")
        with pytest.raises(ForbiddenError, match="the authorizer 'company' of this realm does not allow it"):
            reader.drop_table("shop.orders")
        assert server.stop() == 0


def test_a_server_without_the_settings_refuses_requests(
    realm: Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    with realm.server() as server:
        with pytest.raises(ForbiddenError, match="this process cannot use it"):
            logged_in(server, "ALL").load_table("shop.orders")
        assert server.stop() == 0
