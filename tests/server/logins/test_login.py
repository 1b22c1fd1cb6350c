"""Logins to a realm with access control by client credentials and by tokens."""

from __future__ import annotations

import base64
import time
from pathlib import Path

import jwt
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import OAuthError

import polaris_spark
from polaris_spark.access.reading import find_principal
from polaris_spark.access.rows import ACCESS
from polaris_spark.access.token_keys import ServerKey, token_keys
from polaris_spark.access.tokens import TokenIssuer
from polaris_spark.commits.change import Operation
from polaris_spark.errors import InputError, NotAuthorizedError
from polaris_spark.rest.session import Session
from polaris_spark.store_uris import Secret
from polaris_spark.testing.waiting import wait_until
from tests.server.issuers import Issuer
from tests.server.logins.tokens import STATIC, forged
from tests.server.realms import (
    CREDENTIALS,
    FORM,
    KEY,
    Realm,
    ask,
    credentials_form,
    new_realm,
    status_of,
    token_of,
)
from tests.server.servers import Remote, Server, client, refused, refused_options


def test_client_credentials_give_a_token_that_names_the_principal(server: Server) -> None:
    status, headers, answer = ask(server, credentials_form("ann"))
    assert status == 200
    assert headers["cache-control"] == "no-store"
    token = answer.pop("access_token")
    assert answer == {
        "token_type": "bearer",
        "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "expires_in": 3600,
        "scope": "PRINCIPAL_ROLE:ALL",
    }
    client(server, token).namespace("of_ann")
    client(server, token_of(server, "bob")).namespace("of_bob")
    claims = jwt.decode(token, options={"verify_signature": False})
    assert (claims["sub"], claims["iss"]) == ("ann", "polaris-spark:default")
    assert claims["exp"] - claims["iat"] == 3600


def test_the_client_id_and_secret_may_come_in_a_header(server: Server) -> None:
    own = base64.b64encode(CREDENTIALS["ann"].text().encode()).decode()
    status, _, answer = ask(server, {"grant_type": "client_credentials"}, {"Authorization": f"Basic {own}"})
    assert status == 200
    assert status_of(server, answer["access_token"]) == 200


def test_metrics_need_no_token_only_on_a_loopback_host(server: Server) -> None:
    """A web page can reach the server by another name of the loopback address."""
    assert Remote(server.uri).raw("GET", "/metrics")[0] == 200
    foreign = {"Host": "evil.example"}
    assert Remote(server.uri).raw("GET", "/metrics", None, foreign)[0] == 401
    own = {**foreign, "Authorization": f"Bearer {STATIC}"}
    assert Remote(server.uri).raw("GET", "/metrics", None, own)[0] == 200


def test_an_old_token_that_is_sent_along_does_not_hinder_a_login(server: Server) -> None:
    assert ask(server, credentials_form("ann"), {"Authorization": "Bearer expired"})[0] == 200


def test_scopes_name_roles_of_the_principal(server: Server) -> None:
    for scope, answered in (
        ("catalog", "PRINCIPAL_ROLE:ALL"),
        ("", "PRINCIPAL_ROLE:ALL"),
        ("PRINCIPAL_ROLE:reader", "PRINCIPAL_ROLE:reader"),
        ("PRINCIPAL_ROLE:writer PRINCIPAL_ROLE:reader", "PRINCIPAL_ROLE:reader PRINCIPAL_ROLE:writer"),
    ):
        status, _, answer = ask(server, credentials_form("ann", scope=scope))
        assert (status, answer.get("scope")) == (200, answered), answer
    for scope in (
        "PRINCIPAL_ROLE:",
        "admin",
        "PRINCIPAL_ROLE:none",
        "PRINCIPAL_ROLE:reader x",
        "catalog openid",
    ):
        status, _, answer = ask(server, credentials_form("ann", scope=scope))
        assert (status, answer["error"]) == (400, "invalid_scope"), scope
    status, _, answer = ask(server, credentials_form("bob", scope="PRINCIPAL_ROLE:reader"))
    assert (status, answer["error"]) == (400, "invalid_scope")


@pytest.mark.parametrize(
    ("change", "status", "error"),
    [
        ({"client_secret": "wrong"}, 401, "invalid_client"),
        ({"client_secret": ""}, 401, "invalid_client"),
        ({"client_id": ""}, 401, "invalid_client"),
        ({"client_id": "unknown"}, 401, "invalid_client"),
        ({"client_id": "ann"}, 401, "invalid_client"),
        ({"client_id": "bob-id"}, 401, "invalid_client"),
        ({"client_id": "\x00"}, 401, "invalid_client"),
        ({"client_id": "a" * 5_000}, 401, "invalid_client"),
        ({"client_secret": "a" * 5_000}, 401, "invalid_client"),
        ({"grant_type": "password"}, 400, "unsupported_grant_type"),
        ({"grant_type": "refresh_token"}, 400, "unsupported_grant_type"),
        ({"grant_type": ""}, 400, "invalid_request"),
    ],
)
def test_wrong_requests_for_a_token_are_refused(
    server: Server, change: dict[str, str], status: int, error: str
) -> None:
    found, headers, answer = ask(server, {**credentials_form("ann"), **change})
    assert (found, answer["error"]) == (status, error)
    assert answer.keys() == {"error", "error_description"}
    assert CREDENTIALS["ann"].secret.reveal() not in str(answer)
    assert ("www-authenticate" in headers) == (status == 401)


def test_malformed_requests_for_a_token_are_refused(server: Server) -> None:
    right = "&".join(f"{name}={value}" for name, value in credentials_form("ann").items()).encode()
    own = base64.b64encode(b"bob-id:x").decode()
    assert ask(server, right)[0] == 200
    for body, headers, status in (
        (b"", {}, 400),
        (b"\xff\xfe", {}, 400),
        (b"%ff=%ff", {}, 400),
        (right + b"&client_id=bob-id", {}, 400),
        (right + b"&a=1" * 40, {}, 400),
        (right + b"&a=" + b"a" * 70_000, {}, 413),
        (right, {"Content-Type": "application/json"}, 400),
        (right, {"Content-Type": ""}, 400),
        (right, {"Authorization": f"Basic {own}"}, 400),
        (right, {"Authorization": "Basic !!!"}, 401),
    ):
        assert ask(server, body, headers)[0] == status, (body[:100], headers)
    for method in ("GET", "DELETE", "HEAD"):
        headers = {**FORM, "Authorization": f"Bearer {STATIC}"}
        assert Remote(server.uri).raw(method, "/v1/oauth/tokens", None, headers)[0] >= 400


def test_servers_of_a_realm_share_keys(tmp_path: Path) -> None:
    realm = new_realm(tmp_path)
    with realm.server() as one, realm.server() as two, realm.server(key=KEY[::-1]) as three:
        token = token_of(one)
        assert [status_of(each, token) for each in (one, two, three)] == [200, 200, 200]
        assert status_of(one, token_of(two)) == 200
        with realm.references() as references:
            assert len(token_keys(references.read("access"))) == 1
        # A server with another server key cannot use the key, so it makes one of its own.
        other = token_of(three)
        assert [status_of(each, other) for each in (three, two)] == [200, 200]
        with realm.references() as references:
            rows = token_keys(references.read("access"))
        assert len(rows) == 2
    with realm.server() as again:
        assert status_of(again, token) == 200
        token_of(again)
        with realm.references() as references:
            assert token_keys(references.read("access")) == rows


def test_pyiceberg_logs_in(server: Server) -> None:
    own = CREDENTIALS["ann"]
    legacy = {
        "credential": own.text(),
        "scope": "PRINCIPAL_ROLE:ALL",
        "oauth2-server-uri": f"{server.uri}/v1/oauth/tokens",
    }
    manager = {
        "auth": {
            "type": "oauth2",
            "oauth2": {
                "client_id": own.client_id,
                "client_secret": own.secret.reveal(),
                "token_url": f"{server.uri}/v1/oauth/tokens",
            },
        }
    }
    for number, properties in enumerate((legacy, {"credential": own.text()}, manager)):
        catalog = load_catalog("shop", type="rest", uri=server.uri, **properties)  # type: ignore[arg-type]
        catalog.create_namespace(f"py{number}")
        assert (f"py{number}",) in catalog.list_namespaces()
    with pytest.raises(OAuthError, match="check client id and client secret"):
        load_catalog("shop", type="rest", uri=server.uri, credential=f"{own.client_id}:wrong")


def expired_token(realm: Realm) -> str:
    """Return a token of `ann` as a server of the realm signed it an hour before it expired."""
    with realm.references() as references:
        head = references.read(ACCESS)
        principal = find_principal(head, "ann")
        assert principal is not None
        issuer = TokenIssuer(references, realm.name, ServerKey(Secret(KEY)), Operation(b"", "root"))
        return issuer.issue(head, principal, None, secret=None, until=time.time() - 3_600)[0]


def test_pyiceberg_logs_in_again_when_its_token_has_expired(server: Server, realm: Realm) -> None:
    catalog = load_catalog("shop", type="rest", uri=server.uri, credential=CREDENTIALS["ann"].text())
    expired = expired_token(realm)
    manager = catalog._session.auth.auth_manager  # type: ignore[attr-defined]
    manager._token = expired
    catalog.create_namespace("later")
    assert ("later",) in catalog.list_namespaces()
    assert manager._token != expired
    refused = Remote(server.uri).raw("GET", "/v1/config", None, {"Authorization": f"Bearer {expired}"})
    assert "has expired" in refused[2]
    assert 'error="invalid_token"' in refused[1]["www-authenticate"]


def test_private_keys_and_secrets_are_not_in_the_rows(realm: Realm, server: Server) -> None:
    token_of(server)
    content = b"".join(path.read_bytes() for path in realm.folder.glob("store.db*"))
    assert KEY.encode() not in content
    assert all(own.secret.reveal().encode() not in content for own in CREDENTIALS.values())


def test_servers_that_do_not_fit_the_realm_do_not_start(realm: Realm, tmp_path: Path) -> None:
    own = ["--property", "credential=env:CREDENTIAL"]
    env = {"CREDENTIAL": CREDENTIALS["root"].text(), "KEY": KEY, "SHORT": "short"}
    told = refused(realm.store, "--insecure", "--port", "0", *own, env=env)
    assert "has access control, so --insecure is not allowed" in told
    plain = f"sqlite://{tmp_path / 's.db'}"
    new = (plain, "--warehouse", str(tmp_path / "w"))
    told = refused(*new, "--port", "0", "--token-key", "env:KEY", env=env)
    assert "run polaris-spark bootstrap first" in told
    assert KEY not in told
    for part_, arguments in {
        "at least 32 characters": ["--token-key", "env:SHORT"],
        "is not set": ["--token-key", "env:NO_SUCH_VARIABLE"],
        "--token-key takes env:NAME": ["--token-key", KEY],
    }.items():
        told = refused_options(*new, *arguments, env=env)
        assert part_ in told
        assert KEY not in told
    told = refused_options(realm.store, "--token-key", "env:KEY", "--token-lifetime", "25 h", *own, env=env)
    assert "the lifetime of tokens" in told


def test_a_server_without_tokens_answers_nobody_once_the_realm_has_access_control(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path / 'store.db'}"
    arguments = ["--warehouse", str(tmp_path / "w-default"), "--insecure"]
    with Server(store, *arguments) as server:
        assert Remote(server.uri).raw("GET", "/v1/config")[0] == 200
        new_realm(tmp_path)
        wait_until(lambda: Remote(server.uri).raw("GET", "/v1/config")[0] == 401, "the change holds")


def opened(realm: Realm, **properties: str) -> Session:
    """Open the realm's catalog in this process."""
    return polaris_spark.connect(store=realm.store, catalog="polaris", **properties)


def test_a_token_opens_the_catalog_in_process(
    server: Server, realm: Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = token_of(server)
    with opened(realm, token=token) as session:
        assert (session.principal, session.roles) == ("ann", None)
        assert session.request("POST", "v1/namespaces", body='{"namespace": ["by_token"]}')[0] == 200
    monkeypatch.setenv("TOKEN", token_of(server, scope="PRINCIPAL_ROLE:service_admin"))
    with opened(realm, token="env:TOKEN") as session:
        assert (session.principal, session.roles) == ("ann", {"service_admin"})
        assert session.request("GET", "v1/namespaces")[0] == 200
    with pytest.raises(
        InputError, match="does not exist; existing catalogs: none"
    ):  # without the administrator's role, nothing is visible
        opened(realm, token=token_of(server, scope="PRINCIPAL_ROLE:reader"))


def test_wrong_tokens_open_nothing_in_process(server: Server, realm: Realm, issuer: Issuer) -> None:
    right = token_of(server)
    for token in ("", "x", STATIC, issuer.token(), right[:-9], *forged(realm, right).values()):
        with pytest.raises((NotAuthorizedError, InputError)) as raised:
            opened(realm, token=token)
        assert not token or token[-30:] not in str(raised.value)
    with pytest.raises(InputError, match="leave 'principal' out"):
        opened(realm, token=right, principal="bob")
    with pytest.raises(InputError, match="both set"):
        opened(realm, token=right, credential=CREDENTIALS["ann"].text())
