"""Exchanges of tokens for new tokens."""

from __future__ import annotations

import base64
import time
from pathlib import Path

import jwt

from polaris_spark.access.changes import Assign, RoleName
from polaris_spark.access.credentials import Credentials
from polaris_spark.access.principal_changes import CreatePrincipal, ReplaceCredentials
from polaris_spark.jobs.registry import call
from polaris_spark.store_uris import Secret
from tests.server.issuers import Issuer
from tests.server.logins.tokens import STATIC
from tests.server.realms import CREDENTIALS, Realm, ask, exchange_form, new_realm, status_of, token_of
from tests.server.servers import Server


def test_a_token_is_exchanged_for_a_new_one(server: Server) -> None:
    """As Iceberg's clients refresh a token, with the default scope."""
    old = token_of(server, scope="PRINCIPAL_ROLE:reader PRINCIPAL_ROLE:writer")
    status, _, answer = ask(server, exchange_form(old, scope="catalog"), {"Authorization": f"Bearer {old}"})
    assert (status, answer["scope"]) == (200, "PRINCIPAL_ROLE:reader PRINCIPAL_ROLE:writer")
    assert answer["access_token"] != old
    assert status_of(server, answer["access_token"]) == 200
    status, _, answer = ask(server, exchange_form(old, scope="PRINCIPAL_ROLE:reader"))
    assert (status, answer["scope"]) == (200, "PRINCIPAL_ROLE:reader")
    narrow = answer["access_token"]
    for scope in ("PRINCIPAL_ROLE:writer", "PRINCIPAL_ROLE:reader PRINCIPAL_ROLE:writer"):
        status, _, answer = ask(server, exchange_form(narrow, scope=scope))
        assert (status, answer["error"]) == (400, "invalid_scope")
    # ALL means all roles of the token
    assert (
        ask(server, exchange_form(narrow, scope="PRINCIPAL_ROLE:ALL"))[2]["scope"] == "PRINCIPAL_ROLE:reader"
    )


def test_wrong_exchanges_are_refused(server: Server, issuer: Issuer) -> None:
    old = token_of(server)
    bobs = token_of(server, "bob")
    own = {"Authorization": "Basic " + base64.b64encode(CREDENTIALS["ann"].text().encode()).decode()}
    wrong = {"Authorization": "Basic " + base64.b64encode(b"ann-id:wrong").decode()}
    for form, headers, error in (
        (exchange_form("x"), {}, "invalid_grant"),
        (exchange_form(""), {}, "invalid_request"),
        (exchange_form(old, subject_token_type="saml2"), {}, "invalid_request"),
        (exchange_form(old, requested_token_type="refresh"), {}, "invalid_request"),
        (exchange_form(old, actor_token="x"), {}, "invalid_grant"),
        (exchange_form(STATIC), {}, "invalid_grant"),
        (exchange_form(bobs), own, "invalid_grant"),
        (exchange_form(old), wrong, "invalid_client"),
        (exchange_form(issuer.token(aud="x")), {}, "invalid_grant"),
        (exchange_form(issuer.token(sub="nobody")), {}, "invalid_grant"),
        (exchange_form(issuer.token(groups=["others"])), {}, "invalid_scope"),
    ):
        status, _, answer = ask(server, form, headers)
        assert (status, answer["error"]) == (401 if error == "invalid_client" else 400, error), (form, answer)


def test_a_client_exchanges_its_expired_token(server: Server) -> None:
    """As Iceberg's Java client does if a token expired while it slept."""
    own = {"Authorization": "Basic " + base64.b64encode(CREDENTIALS["ann"].text().encode()).decode()}
    for subject in ("expired.and.gone", token_of(server)):
        status, _, answer = ask(server, exchange_form(subject, scope="catalog"), own)
        assert (status, answer["scope"]) == (200, "PRINCIPAL_ROLE:ALL")


def test_a_token_of_an_issuer_is_exchanged_until_it_expires(server: Server, issuer: Issuer) -> None:
    expires = int(time.time()) + 100
    foreign = issuer.token(exp=expires, groups=["readers"])
    assert status_of(server, foreign) == 200
    form = exchange_form(foreign, subject_token_type="urn:ietf:params:oauth:token-type:id_token")
    for _ in range(2):
        status, _, answer = ask(server, form)
        assert (status, answer["scope"]) == (200, "PRINCIPAL_ROLE:reader")
        assert answer["expires_in"] <= 130 + 1
        claims = jwt.decode(answer["access_token"], options={"verify_signature": False})
        assert claims["exp"] <= expires + 30
        form = exchange_form(answer["access_token"])


def test_principals_of_static_and_foreign_tokens_must_exist(server: Server, issuer: Issuer) -> None:
    assert status_of(server, STATIC) == 200
    assert status_of(server, "static-token-of-nobody") == 401
    assert status_of(server, issuer.token(sub="bob")) == 200
    assert status_of(server, issuer.token(sub="nobody")) == 401


def test_an_exchange_gives_no_more_time_and_no_revoked_roles(server: Server, realm: Realm) -> None:
    old, new = (Credentials("brief-id", Secret(f"{text}-secret-of-brief")) for text in ("old", "new"))
    realm.change(CreatePrincipal, "brief", old)
    for role in ("reader", "writer"):
        realm.change(Assign, RoleName(role), principal="brief")
    form = {"grant_type": "client_credentials", "client_id": "brief-id", "client_secret": old.secret.reveal()}
    both = ask(server, {**form, "scope": "PRINCIPAL_ROLE:reader PRINCIPAL_ROLE:writer"})[2]["access_token"]
    realm.change(Assign, RoleName("writer"), principal="brief", revoke=True)
    realm.change(ReplaceCredentials, "brief", new, keep_old_ms=60_000)
    status, _, answer = ask(server, exchange_form(both))
    assert (status, answer["scope"]) == (200, "PRINCIPAL_ROLE:reader")
    assert answer["expires_in"] <= 60
    status, _, answer = ask(server, exchange_form(both, scope="PRINCIPAL_ROLE:writer"))
    assert (status, answer["error"]) == (400, "invalid_scope")
    realm.change(Assign, RoleName("reader"), principal="brief", revoke=True)
    status, _, answer = ask(server, exchange_form(both))
    assert (status, answer["error"]) == (400, "invalid_scope")


def test_a_token_that_was_just_revoked_is_not_exchanged(tmp_path: Path) -> None:
    """A server uses rules that it read up to a second ago. An exchange must not make a new token by them."""
    realm = new_realm(tmp_path)
    with realm.server() as server:
        token = token_of(server, "ann")
        assert status_of(server, token) == 200
        with realm.session() as session:
            assert call(session, "revoke_tokens") == [(1,)]
        status, _, answer = ask(server, exchange_form(token))
        assert (status, answer["error"]) == (400, "invalid_grant")
