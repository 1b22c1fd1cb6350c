"""Logins to a realm with access control: tokens by client credentials and by exchange, and which are refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import OAuthError

import polaris_spark
from polaris_spark.access.changes import (
    AlterPrincipal,
    Assign,
    CreatePrincipal,
    DropPrincipal,
    ReplaceCredentials,
    RoleName,
)
from polaris_spark.access.credentials import Credentials
from polaris_spark.access.rows import ACCESS
from polaris_spark.access.token_keys import token_keys
from polaris_spark.commits.change import Operation
from polaris_spark.config import Secret
from polaris_spark.errors import InputError, NotAuthorizedError
from polaris_spark.jobs.registry import call
from polaris_spark.rest.session import Session
from polaris_spark.testing.waiting import wait_until
from tests.server.issuers import AUDIENCE, Issuer, part
from tests.server.realms import (
    CREDENTIALS,
    FORM,
    KEY,
    Realm,
    ask,
    credentials_form,
    exchange_form,
    new_realm,
    status_of,
    token_of,
)
from tests.server.servers import Remote, Server, client, refused, token_file

STATIC = "static-token-of-ann"


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.close()


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Realm:
    return new_realm(tmp_path_factory.mktemp("realm"))


@pytest.fixture(scope="module")
def server(realm: Realm, issuer: Issuer) -> Iterator[Server]:
    """A server with all kinds of authenticators and no limit on failures from one address."""
    tokens = token_file(realm.folder, {"ann": STATIC, "nobody": "static-token-of-nobody"})
    settings = realm.folder / "authentication.json"
    oidc = {
        "type": "oidc",
        "issuer": issuer.uri,
        "audience": AUDIENCE,
        "roles-claim": "groups",
        "roles": {"readers": "reader", "writers": "writer", "others": "unassigned"},
    }
    settings.write_text(json.dumps({"authenticators": [oidc]}))
    options = ["--token-file", str(tokens), "--authentication", str(settings)]
    with realm.server(*options, "--max-failures-per-address", "0") as started:
        yield started


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


def forged(realm: Realm, right: str) -> dict[str, str]:
    """Tokens of an attacker who has the public keys, valid tokens, and keys of their own."""
    head, body, signature = right.split(".")
    header = json.loads(jwt.utils.base64url_decode(head))
    claims: dict[str, Any] = jwt.decode(right, options={"verify_signature": False})
    with realm.references() as references:
        row = token_keys(references.read("access"))[-1]
    public = jwt.algorithms.OKPAlgorithm.from_jwk(
        {"kty": "OKP", "crv": "Ed25519", "x": base64.urlsafe_b64encode(row.public).rstrip(b"=").decode()}
    )
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[union-attr]
    own = Ed25519PrivateKey.generate()

    def by_secret(secret: bytes) -> str:
        signed = f"{part({**header, 'alg': 'HS256'})}.{part(claims)}"
        return f"{signed}.{part(hmac.digest(secret, signed.encode(), hashlib.sha256))}"

    def by_own_key(headers: dict[str, Any], **more: Any) -> str:
        return jwt.encode({**claims, **more}, own, algorithm="EdDSA", headers={**header, **headers})

    return {
        "alg none": f"{part({**header, 'alg': 'none'})}.{body}.",
        "alg None with a signature": f"{part({**header, 'alg': 'None'})}.{body}.{signature}",
        "no signature": f"{head}.{body}.",
        "half a signature": f"{head}.{body}.{signature[:40]}",
        "HS256 with the public key as PEM": by_secret(pem),
        "HS256 with the raw public key": by_secret(row.public),
        "HS256 with the id of the key": by_secret(row.id.encode()),
        "another key with the right id": by_own_key({}),
        "another key with no id": by_own_key({"kid": ""}),
        "another key with an unknown id": by_own_key({"kid": "ffffffffffffffff"}),
        "another key with a path as id": by_own_key({"kid": "../../dev/null"}),
        "another key with a wildcard": by_own_key({"kid": "%"}),
        "another key that the token brings": by_own_key(
            {"jwk": json.loads(jwt.algorithms.OKPAlgorithm.to_jwk(own.public_key()))}
        ),
        "no expiry": by_own_key({}, exp=None),
        "another principal": f"{head}.{part({**claims, 'sub': 'root'})}.{signature}",
        "more roles": f"{head}.{part({**claims, 'scope': 'PRINCIPAL_ROLE:service_admin'})}.{signature}",
        "a longer life": f"{head}.{part({**claims, 'exp': claims['exp'] + 10_000})}.{signature}",
        "another realm": by_own_key({}, iss="polaris-spark:other", aud="polaris-spark:other"),
        "oversized": f"{head}.{part({**claims, 'x': 'x' * 20_000})}.{signature}",
        "oversized id": by_own_key({"kid": "k" * 12_000}),
        "the right one twice": f"{right}.{right}",
        "the right one and a rest": right + "A",
        "a rest in the payload": f"{head}.{body}AAAA.{signature}",
        "not base64": f"{head}.{body}!.{signature}",
        "encrypted": f"{part({'alg': 'dir', 'enc': 'A256GCM'})}..{part(b'0' * 12)}.{body}.{part(b'0' * 16)}",
    }


def test_forged_tokens_are_refused(server: Server, realm: Realm) -> None:
    right = token_of(server)
    assert status_of(server, right) == 200
    for what, token in forged(realm, right).items():
        assert token != right
        assert status_of(server, token) == 401, what
        assert ask(server, exchange_form(token))[0] == 400, what
    assert status_of(server, right) == 200


def test_tokens_of_another_realm_are_refused(server: Server, realm: Realm) -> None:
    other = new_realm(realm.folder, "other")
    with other.server() as second:
        theirs, ours = token_of(second), token_of(server)
        assert (status_of(second, theirs), status_of(server, ours)) == (200, 200)
        assert (status_of(server, theirs), status_of(second, ours)) == (401, 401)
        assert ask(server, exchange_form(theirs))[0] == 400


def test_tokens_end_with_the_credentials(server: Server, realm: Realm) -> None:
    """Rotation, reset, revocation and dropping end tokens that were issued before, within a stated time."""
    for name, cls, options in (
        ("rotated", ReplaceCredentials, {}),
        ("reset", ReplaceCredentials, {"is_reset": True, "keep_old_ms": 60_000}),
        ("revoked", AlterPrincipal, {"state": "revoked"}),
        ("expired", AlterPrincipal, {"expires": 1}),
        ("dropped", DropPrincipal, {}),
    ):
        old = Credentials(f"{name}-id", Secret("old-secret-old-secret"))
        new = Credentials(f"{name}-id", Secret("new-secret-new-secret"))
        realm.change(CreatePrincipal, name, old)
        form = {"grant_type": "client_credentials", "client_id": old.client_id}
        token = ask(server, {**form, "client_secret": old.secret.reveal()})[2]["access_token"]
        assert status_of(server, token) == 200
        arguments = [name, new] if cls is ReplaceCredentials else [name]
        realm.change(cls, *arguments, **options)
        changed = time.monotonic()
        wait_until(lambda token=token: status_of(server, token) == 401, "the change holds")
        assert (
            time.monotonic() - changed < 10
        )  # two seconds are promised; the machine of the test may be slow
        assert ask(server, exchange_form(token))[0] == 400
        kept = options.get("keep_old_ms", 0) > 0
        old_status = ask(server, {**form, "client_secret": old.secret.reveal()})[0]
        new_status = ask(server, {**form, "client_secret": new.secret.reveal()})[0]
        assert old_status == (200 if kept else 401), name
        assert new_status == (200 if cls is ReplaceCredentials else 401), name


def test_a_rotation_that_keeps_the_old_secret_keeps_its_tokens(server: Server, realm: Realm) -> None:
    old, new = (Credentials("kept-id", Secret(f"{text}-secret-of-kept")) for text in ("old", "new"))
    realm.change(CreatePrincipal, "kept", old)
    form = {"grant_type": "client_credentials", "client_id": "kept-id"}
    before = ask(server, {**form, "client_secret": old.secret.reveal()})[2]
    realm.change(ReplaceCredentials, "kept", new, keep_old_ms=60_000)
    wait_until(
        lambda: ask(server, {**form, "client_secret": new.secret.reveal()})[0] == 200, "the change holds"
    )
    time_left = ask(server, {**form, "client_secret": old.secret.reveal()})[2]["expires_in"]
    assert 0 < time_left <= 60
    assert status_of(server, before["access_token"]) == 200


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


def test_all_tokens_can_be_revoked(tmp_path: Path) -> None:
    realm = new_realm(tmp_path)
    with realm.server() as server:
        tokens = [token_of(server, who) for who in ("ann", "bob")]
        assert [status_of(server, token) for token in tokens] == [200, 200]
        with realm.session() as session:
            assert call(session, "revoke_tokens") == [(1,)]
        wait_until(lambda: [status_of(server, token) for token in tokens] == [401, 401], "the change holds")
        assert status_of(server, token_of(server)) == 200


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


def test_a_token_that_was_just_revoked_does_not_rotate_the_credentials(tmp_path: Path) -> None:
    """Whoever has an old token must not take the principal over while a server still accepts the token."""
    realm = new_realm(tmp_path)
    new = Credentials("ann-id", Secret("ann-new-secret-" + "y" * 20))
    with realm.server() as server:
        token = token_of(server, "ann")
        assert status_of(server, token) == 200
        with realm.references() as references:
            change = ReplaceCredentials(references.clock, Operation(b"", "root"), "ann", new, is_reset=True)
            references.commit(ACCESS, change)
        body = json.dumps({"arguments": {}, "wait-seconds": 10})
        procedure = "polaris-spark/v1/procedures/rotate_credentials"
        answer = Remote(server.uri, token).request("POST", procedure, None, body)
        assert "have changed since the login" in answer[2] or answer[0] == 401, answer
        form = {**credentials_form("ann"), "client_secret": new.secret.reveal()}
        assert ask(server, form)[0] == 200


def test_only_a_login_with_the_newest_secret_and_all_roles_rotates_it(server: Server, realm: Realm) -> None:
    """Otherwise, it could log in for longer, or with more roles."""
    old, new = (Credentials("thrice-id", Secret(f"{text}-secret-of-thrice")) for text in ("old", "new"))
    realm.change(CreatePrincipal, "thrice", old)
    realm.change(Assign, RoleName("reader"), principal="thrice")
    realm.change(Assign, RoleName("service_admin"), principal="thrice")
    realm.change(ReplaceCredentials, "thrice", new, keep_old_ms=60_000)
    body = json.dumps({"arguments": {}, "wait-seconds": 10})

    def rotate(token: str) -> tuple[int, str]:
        procedure = "polaris-spark/v1/procedures/rotate_credentials"
        status, _, answer = Remote(server.uri, token).request("POST", procedure, None, body)
        return status, answer

    def token(of: Credentials, **more: str) -> str:
        given = {"client_id": of.client_id, "client_secret": of.secret.reveal()}
        status, _, answer = ask(server, {"grant_type": "client_credentials", **given, **more})
        assert status == 200, answer
        return str(answer["access_token"])

    status, answer = rotate(token(old))
    assert (status, "only a login with the newest secret" in answer) == (401, True), answer
    status, answer = rotate(token(new, scope="PRINCIPAL_ROLE:reader"))
    assert (status, "all roles of the principal" in answer) == (403, True), answer
    assert rotate(token(new))[0] == 200


def test_concurrent_logins_of_a_client_are_limited(tmp_path: Path) -> None:
    realm = new_realm(tmp_path)
    with realm.server("--max-failures-per-address", "0") as server, ThreadPoolExecutor(40) as threads:
        forms = [credentials_form("bob", client_secret=f"wrong-{number}") for number in range(40)]
        begun = time.monotonic()
        statuses = [status for status, _, _ in threads.map(lambda form: ask(server, form), forms)]
        allowed = (
            12 + (time.monotonic() - begun) / 6
        )  # two threads verify secrets; one failure is forgiven in 6 s
    assert set(statuses) == {401, 429}
    assert statuses.count(401) <= allowed


def test_a_long_client_id_is_refused_before_it_is_remembered(server: Server) -> None:
    status, _, answer = ask(server, credentials_form("ann", client_id="x" * 513))
    assert (status, answer["error"]) == (401, "invalid_client")
    assert "512 characters" in answer["error_description"]


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


def test_pyiceberg_logs_in_again_when_its_token_has_expired(tmp_path: Path) -> None:
    realm = new_realm(tmp_path)
    with realm.server("--token-lifetime", "1 s") as server:
        catalog = load_catalog("shop", type="rest", uri=server.uri, credential=CREDENTIALS["ann"].text())
        first = catalog._session.auth.auth_manager.auth_header()  # type: ignore[attr-defined]
        wait_until(lambda: status_of(server, first.split()[1]) == 401, "the change holds")
        catalog.create_namespace("later")
        assert catalog.list_namespaces() == [("later",)]
        expired = Remote(server.uri).raw("GET", "/v1/config", None, {"Authorization": first})
    assert "has expired" in expired[2]
    assert 'error="invalid_token"' in expired[1]["www-authenticate"]


def until_locked_out(server: Server, form: dict[str, str], seconds: int) -> int:
    """Fail to log in until logins are refused without verification for some seconds more. Return the number of
    failures."""
    failures = 0
    while True:
        status, headers, answer = ask(server, form)
        if status == 429:
            assert answer["error"] == "temporarily_unavailable"
            if int(headers["retry-after"]) > seconds:
                return failures
            time.sleep(0.1)  # until one more failure is allowed, which makes the time longer
        else:
            assert status == 401
            failures += 1
            assert failures < 200


def test_failed_logins_of_a_client_are_limited(tmp_path: Path) -> None:
    realm = new_realm(tmp_path)
    logins = tmp_path / "logins"
    with realm.server("--login-log", str(logins), "--max-failures-per-address", "0") as server:
        token_of(server, "bob")
        refusals = until_locked_out(server, credentials_form("bob", client_secret="wrong"), 4)
        refusals += until_locked_out(server, credentials_form("ann", client_secret="wrong"), 4)
        assert refusals >= 20
        assert ask(server, credentials_form("ann"))[0] == 429
        # A client whose secret was verified a short time ago is not locked out by others.
        assert ask(server, credentials_form("bob"))[0] == 200
        metrics = Remote(server.uri).raw("GET", "/metrics")[2]
        assert server.stop() == 0
    assert f'{{method="client-credentials",outcome="refused"}} {refusals}.0' in metrics
    assert 'polaris_spark_logins_total{method="client-credentials",outcome="succeeded"} 2.0' in metrics
    lines = logins.read_text().splitlines()
    found = [json.loads(line[line.index("{") :]) for line in lines if "login refused" in line]
    assert len(found) == refusals
    assert found[0] == {
        "method": "client-credentials",
        "address": "127.0.0.1",
        "reason": "wrong credentials",
        "client_id": "bob-id",
    }
    assert server.errors.count("login refused") <= 11  # as all records
    assert CREDENTIALS["bob"].secret.reveal() not in logins.read_text() + server.errors
    assert any("login succeeded" in line and '"principal": "bob"' in line for line in lines)


def test_failed_logins_from_an_address_are_limited(tmp_path: Path) -> None:
    realm = new_realm(tmp_path)
    with realm.server("--max-failures-per-address", "2") as server:  # one more failure is allowed after 30 s
        token_of(server, "bob")
        for name in ("x1", "x2"):
            assert ask(server, credentials_form("ann", client_id=name))[0] == 401
        status, headers, _ = ask(server, credentials_form("root"))
        assert status == 429
        assert 0 < int(headers["retry-after"]) <= 30
        assert ask(server, credentials_form("bob"))[0] == 200


def test_private_keys_and_secrets_are_not_in_the_rows(realm: Realm, server: Server) -> None:
    token_of(server)
    content = b"".join(path.read_bytes() for path in realm.folder.glob("store.db*"))
    assert KEY.encode() not in content
    assert all(own.secret.reveal().encode() not in content for own in CREDENTIALS.values())


def test_servers_that_do_not_fit_the_realm_do_not_start(realm: Realm, tmp_path: Path) -> None:
    own = ["--property", "credential=env:CREDENTIAL", "--port", "0"]
    env = {"CREDENTIAL": CREDENTIALS["root"].text(), "KEY": KEY, "SHORT": "short"}
    told = refused(realm.store, "--insecure", *own, env=env)
    assert "has access control, so --insecure is not allowed" in told
    plain = f"sqlite://{tmp_path / 's.db'}"
    for part_, arguments in {
        "run polaris-spark bootstrap first": ["--token-key", "env:KEY"],
        "at least 32 characters": ["--token-key", "env:SHORT"],
        "is not set": ["--token-key", "env:NO_SUCH_VARIABLE"],
        "--token-key takes env:NAME": ["--token-key", KEY],
    }.items():
        told = refused(plain, "--warehouse", str(tmp_path / "w"), "--port", "0", *arguments, env=env)
        assert part_ in told
        assert KEY not in told
    told = refused(realm.store, "--token-key", "env:KEY", "--token-lifetime", "25 h", *own, env=env)
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
