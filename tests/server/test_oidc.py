"""Tokens of OpenID Connect issuers: whom they name, and which are refused."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from polaris_spark.errors import InputError, NotAuthorizedError, TryAgainError
from polaris_spark.server import oidc
from polaris_spark.server.authentication import authenticators_in
from polaris_spark.server.oidc import AGAIN_SECONDS, KEPT_SECONDS, STALE_SECONDS, OidcAuthenticator, Settings
from polaris_spark.testing.waiting import PATIENCE_S
from tests.server.issuers import AUDIENCE, Issuer, part
from tests.server.servers import Remote, Server, client, error_of


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    """An issuer of its own for each test."""
    made = Issuer()
    yield made
    made.close()


class Elapsed:
    """A monotonic clock."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


def accepting(issuer: Issuer, elapsed: Elapsed | None = None, **more: Any) -> OidcAuthenticator:
    """An authenticator for the tokens of an issuer."""
    settings = Settings(**{"issuer": issuer.uri, "audience": AUDIENCE, **more})
    return OidcAuthenticator(settings, elapsed=elapsed or time.monotonic)


def test_tokens_of_every_kind_of_key_name_the_principal(issuer: Issuer) -> None:
    authenticator = accepting(issuer)
    for key in issuer.keys:
        login = authenticator.authenticate(issuer.token(key))
        assert login is not None
        assert (login.principal, login.roles, login.method) == ("ann", None, "oidc")
    assert issuer.requests == ["/.well-known/openid-configuration", "/keys"]


def test_claims_are_mapped_to_a_name_and_roles(issuer: Issuer) -> None:
    authenticator = accepting(
        issuer,
        principal_claim="https://example.org/user.name",
        principal_prefix="idp:",
        roles_claim="realm_access.roles",
        roles={"data-eng": "engineer", "Data Admins": "service_admin"},
    )

    def login(roles: object) -> frozenset[str] | None:
        token = issuer.token(
            **{"https://example.org/user.name": "bob"}, realm_access={"roles": roles}, sub="4711"
        )
        found = authenticator.authenticate(token)
        assert found is not None
        assert found.principal == "idp:bob"
        return found.roles

    assert login(["data-eng", "other", "service_admin", 5]) == {"engineer"}
    assert login(["Data Admins"]) == {"service_admin"}
    assert login("data-eng other") == {"engineer"}
    assert login(None) == login([]) == frozenset()
    with pytest.raises(NotAuthorizedError, match="not a list"):
        login({"data-eng": True})
    with pytest.raises(NotAuthorizedError, match="is missing or is not text"):
        authenticator.authenticate(issuer.token(sub="4711"))


def test_tokens_of_others_are_left_to_other_authenticators(issuer: Issuer) -> None:
    authenticator = accepting(issuer)
    for token in ("", "abc", "a.b.c", "....", issuer.token(iss="https://other.example"), issuer.token()[:40]):
        assert authenticator.authenticate(token) is None
    assert issuer.requests == []


def test_hostile_tokens_are_refused(issuer: Issuer) -> None:
    """An attacker's list: each token is refused, and none is taken for one of nobody."""
    authenticator = accepting(issuer)
    other = Issuer()
    now = int(time.time())
    right = issuer.token()
    head, body, signature = right.split(".")
    public = issuer.keys["RS256"].public_key()  # type: ignore[union-attr]
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def by_secret(secret: bytes, kid: str = "RS256") -> str:
        signed = f"{part({'alg': 'HS256', 'kid': kid, 'typ': 'JWT'})}.{part(issuer.claims())}"
        return f"{signed}.{part(hmac.digest(secret, signed.encode(), hashlib.sha256))}"

    def without_signature(alg: str) -> str:
        return f"{part({'alg': alg, 'kid': 'RS256'})}.{part(issuer.claims())}."

    def embedded() -> str:
        key = ed25519.Ed25519PrivateKey.generate()
        jwk = json.loads(jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key()))
        headers = {"jwk": jwk, "jku": f"{other.uri}/keys", "x5u": other.uri}
        return jwt.encode(issuer.claims(), key, algorithm="EdDSA", headers=headers)

    changed = json.loads(jwt.utils.base64url_decode(body))
    hostile = {
        "alg none": without_signature("none"),
        "alg None": without_signature("None"),
        "no signature": f"{head}.{body}.",
        "HS256 with the public key": by_secret(pem),
        "HS256 with the key set": by_secret(json.dumps(issuer.public_keys()[0]).encode()),
        "HS256 with nothing": by_secret(b""),
        "another issuer's key": jwt.encode(
            issuer.claims(),
            other.keys["RS256"],  # type: ignore[arg-type]
            algorithm="RS256",
            headers={"kid": "RS256"},
        ),
        "a key of its own": embedded(),
        "changed claims": f"{head}.{part({**changed, 'sub': 'root'})}.{signature}",
        "changed header": f"{part({'alg': 'PS256', 'kid': 'RS256'})}.{body}.{signature}",
        "another algorithm of the key": jwt.encode(
            issuer.claims(),
            issuer.keys["RS256"],  # type: ignore[arg-type]
            algorithm="RS512",
            headers={"kid": "RS256"},
        ),
        "kid of another key": issuer.token("RS256", headers={"kid": "ES256"}),
        "kid unknown": issuer.token(headers={"kid": "none"}),
        "kid path": issuer.token(headers={"kid": "../../../../dev/null"}),
        "kid SQL": issuer.token(headers={"kid": "x' UNION SELECT 'secret"}),
        "kid long": issuer.token(headers={"kid": "k" * 10_000}),
        "typ": issuer.token(headers={"typ": "logout+jwt"}),
        "typ of a number": issuer.token(headers={"typ": "7"}),
        "expired": issuer.token(exp=now - 60),
        "no expiry": issuer.token(exp=None),
        "expiry as text": issuer.token(exp=str(now + 60)),
        "expiry true": issuer.token(exp=True),
        "expiry without end": issuer.token(exp=float("inf")),
        "expiry without number": issuer.token(exp=float("nan")),
        "expiry too large": issuer.token(exp=10**400),
        "not yet valid": issuer.token(nbf=now + 300),
        "issued in the future": issuer.token(iat=now + 300),
        "no audience": issuer.token(aud=None),
        "another audience": issuer.token(aud="warehouse"),
        "other audiences": issuer.token(aud=["lakes", "LAKE", "", 5, None]),
        "part of an audience": issuer.token(aud={"lake": 1}),
        "no name": issuer.token(sub=None),
        "empty name": issuer.token(sub=""),
        "name with a line break": issuer.token(sub="ann\nroot"),
        "name of a number": issuer.token(sub=5),
        "name too long": issuer.token(sub="a" * 600),
    }
    for what, token in hostile.items():
        with pytest.raises(NotAuthorizedError):
            print(what, authenticator.authenticate(token))
    other.close()
    for token in ("a" * 100_000, f"{head}.{part({**changed, 'x': 'a' * 20_000})}.{signature}", right + ".x"):
        assert authenticator.authenticate(token) is None
    nested = part(b'{"iss":' + b"[" * 5_000 + b"]" * 5_000 + b"}")
    junk = part(b"\xff")
    critical = issuer.token(headers={"crit": ["exp"], "exp": 0})
    for token in (
        critical,
        f"{head}.{nested}.{signature}",
        f"{head}.{part([1])}.{signature}",
        f"{junk}.{body}.x",
    ):
        assert authenticator.authenticate(token) is None


def test_the_issuers_clock_may_differ_a_little(issuer: Issuer) -> None:
    now, authenticator = int(time.time()), accepting(issuer, clock_skew=100)
    for claims in ({"exp": now - 50}, {"nbf": now + 50}, {"iat": now + 50}):
        assert authenticator.authenticate(issuer.token(**claims))
        with pytest.raises(NotAuthorizedError):
            accepting(issuer, clock_skew=0).authenticate(issuer.token(**claims))


def test_a_weak_key_is_refused(issuer: Issuer) -> None:
    issuer.keys["RS256"] = rsa.generate_private_key(65537, 1024)
    with pytest.raises(NotAuthorizedError, match="fewer than 2048 bits"):
        accepting(issuer).authenticate(issuer.token())


def test_new_keys_are_found_and_withdrawn_keys_are_forgotten(issuer: Issuer) -> None:
    elapsed = Elapsed()
    authenticator = accepting(issuer, elapsed)
    old = issuer.token("ES256")
    assert authenticator.authenticate(old)
    issuer.keys["new"] = ed25519.Ed25519PrivateKey.generate()
    del issuer.keys["ES256"]
    with pytest.raises(NotAuthorizedError):  # too soon after the last look
        authenticator.authenticate(issuer.token("new"))
    elapsed.seconds += AGAIN_SECONDS
    assert authenticator.authenticate(issuer.token("new"))
    with pytest.raises(NotAuthorizedError):
        authenticator.authenticate(old)


def test_keys_that_arrive_byte_by_byte_are_not_waited_for(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "_TOTAL_SECONDS", 0.2)
    issuer.documents["/keys"] = b" " * 10_000
    issuer.pause = 0.05
    with pytest.raises(TryAgainError):
        accepting(issuer).authenticate(issuer.token())
    assert issuer.requests.count("/keys") == 1


def test_unknown_keys_cause_few_requests(issuer: Issuer) -> None:
    elapsed = Elapsed()
    authenticator = accepting(issuer, elapsed)
    for _ in range(100):
        elapsed.seconds += AGAIN_SECONDS / 50
        with pytest.raises(NotAuthorizedError):
            authenticator.authenticate(issuer.token(headers={"kid": "unknown"}))
    assert issuer.requests.count("/keys") <= 3


def test_an_issuer_that_does_not_answer_takes_up_one_thread(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    elapsed, answers, asked = Elapsed(), threading.Event(), threading.Event()
    authenticator, token, read = accepting(issuer, elapsed), issuer.token(), oidc._read_keys

    def slow(settings: Settings) -> Any:
        asked.set()
        assert answers.wait(PATIENCE_S)
        return read(settings)

    monkeypatch.setattr(oidc, "_read_keys", slow)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(authenticator.authenticate, token)
        try:
            assert asked.wait(PATIENCE_S)
            elapsed.seconds += oidc.WAIT_SECONDS
            others = [pool.submit(authenticator.authenticate, token) for _ in range(20)]
            for one in others:
                assert isinstance(one.exception(PATIENCE_S), TryAgainError)
            assert not first.done()
        finally:
            answers.set()
        assert first.result(PATIENCE_S) is not None
    assert authenticator.authenticate(token) is not None


def test_keys_are_used_for_a_while_when_the_issuer_is_gone(issuer: Issuer) -> None:
    elapsed = Elapsed()
    authenticator = accepting(issuer, elapsed)
    token = issuer.token()
    assert authenticator.authenticate(token)
    issuer.status = 500
    elapsed.seconds += KEPT_SECONDS
    assert authenticator.authenticate(token)
    elapsed.seconds += STALE_SECONDS
    with pytest.raises(TryAgainError):
        authenticator.authenticate(token)
    issuer.status = 200
    elapsed.seconds += AGAIN_SECONDS
    assert authenticator.authenticate(token)


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/.well-known/openid-configuration", {"issuer": "https://other.example", "jwks_uri": "/keys"}),
        ("/.well-known/openid-configuration", {}),
        ("/.well-known/openid-configuration", b"<html>"),
        ("/keys", {"keys": {}}),
        ("/keys", []),
        ("/keys", b"[" * 100_000),
        ("/keys", b" " * (2**20 + 1)),
        ("/keys", {"keys": [{"kty": "RSA"}] * 201}),
    ],
)
def test_wrong_documents_of_an_issuer_are_refused(issuer: Issuer, path: str, document: Any) -> None:
    issuer.documents[path] = document
    with pytest.raises(TryAgainError, match="try again"):
        accepting(issuer).authenticate(issuer.token())


def test_malformed_keys_hide_no_others(issuer: Issuer) -> None:
    junk = [{"kty": "RSA", "kid": "RS256"}, {"kid": 5}, {"kty": "oct", "k": "AAAA", "kid": "RS256"}, "x", {}]
    encryption = [{**one, "use": "enc"} for one in issuer.public_keys()]
    issuer.documents["/keys"] = {"keys": [*junk, *encryption, *issuer.public_keys()]}
    assert accepting(issuer).authenticate(issuer.token())


def test_a_token_without_a_key_id_needs_an_only_key(issuer: Issuer) -> None:
    token = jwt.encode(issuer.claims(), issuer.keys["EdDSA"], algorithm="EdDSA")  # type: ignore[arg-type]
    assert accepting(issuer).authenticate(token)
    issuer.keys["second"] = ed25519.Ed25519PrivateKey.generate()
    with pytest.raises(NotAuthorizedError):
        accepting(issuer).authenticate(token)


def test_keys_come_from_a_file(issuer: Issuer, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": issuer.public_keys()}))
    assert accepting(issuer, jwks=str(path)).authenticate(issuer.token())
    assert issuer.requests == []


def test_settings_are_checked(tmp_path: Path) -> None:
    right = {"type": "oidc", "issuer": "https://idp.example", "audience": "lake"}
    wrong: dict[str, object] = {
        "must be an https URL": {**right, "issuer": "http://idp.example"},
        "must be an https": {**right, "jwks": "ftp://idp.example/keys"},
        "needs a setting 'audience'": {**right, "audience": []},
        "they must be some of": {**right, "algorithms": ["HS256"]},
        "they must be": {**right, "algorithms": ["none"]},
        "clock-skew is 1000": {**right, "clock-skew": 1000},
        "must be given together": {**right, "roles-claim": "groups"},
        "unknown field": {**right, "audiences": "lake"},
        "missing required field `audience`": {"type": "oidc", "issuer": "https://idp.example"},
        "known types are oidc": {"type": "ldap"},
    }
    path = tmp_path / "authentication.json"
    for part_, settings in wrong.items():
        path.write_text(json.dumps({"authenticators": [settings]}))
        with pytest.raises(InputError, match=part_):
            authenticators_in(path)
    path.write_text(json.dumps({"authenticators": [right, right]}))
    with pytest.raises(InputError, match="twice"):
        authenticators_in(path)
    for text in ("", "[]", "{", '{"authenticators": [5]}'):
        path.write_text(text)
        with pytest.raises(InputError, match="cannot be read"):
            authenticators_in(path)
    path.write_text(json.dumps({"authenticators": [right]}))
    assert [one.issuer for one in authenticators_in(path)] == ["https://idp.example"]  # type: ignore[attr-defined]


def test_a_server_accepts_tokens_of_an_issuer(issuer: Issuer, tmp_path: Path) -> None:
    path = tmp_path / "authentication.json"
    path.write_text(
        json.dumps({"authenticators": [{"type": "oidc", "issuer": issuer.uri, "audience": AUDIENCE}]})
    )
    logins = tmp_path / "logins"
    arguments = [
        "--warehouse",
        str(tmp_path / "w"),
        "--authentication",
        str(path),
        "--login-log",
        str(logins),
    ]
    with Server(f"sqlite://{tmp_path / 's.db'}", *arguments, "--max-failures-per-address", "3") as server:
        token = issuer.token(sub="zoë")
        for _ in range(3):
            client(server, token).send("GET", "v1/config")
        client(server, token).namespace("of_zoe")
        expired = issuer.token(exp=int(time.time()) - 60)
        for wrong, message in (
            (expired, "expired"),
            (issuer.token(aud="x"), "does not accept"),
            ("x", "check"),
        ):
            answer = Remote(server.uri).raw("GET", "/v1/config", None, {"Authorization": f"Bearer {wrong}"})
            assert (answer[0], error_of(answer[2])["type"]) == (401, "NotAuthorizedException")
            assert message in answer[2]
        status, headers, body = Remote(server.uri).raw(
            "GET", "/v1/config", None, {"Authorization": "Bearer y"}
        )
        assert (status, error_of(body)["type"]) == (429, "TooManyRequestsException")
        assert 0 < int(headers["retry-after"]) <= 20
        metrics = Remote(server.uri).raw("GET", "/metrics")[2]
        assert server.stop() == 0
    assert 'polaris_spark_logins_total{method="oidc",outcome="succeeded"} 1.0' in metrics
    assert 'polaris_spark_logins_total{method="token",outcome="refused"} 3.0' in metrics
    assert 'polaris_spark_logins_total{method="unknown",outcome="limited"} 1.0' in metrics
    lines = logins.read_text().splitlines()
    assert sum("login succeeded" in line and "zo\\u00eb" in line for line in lines) == 1
    assert sum("login refused" in line for line in lines) == 3
    assert "the token is for another audience" in lines[2]
    assert (logins.stat().st_mode & 0o777) == 0o600
    assert not any(token[:40] in line or expired[:40] in line for line in lines)


def test_another_package_adds_a_kind_of_token(tmp_path: Path) -> None:
    installed = tmp_path / "other-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 0.1.0\n")
    (installed / "entry_points.txt").write_text("[polaris_spark.authenticators]\nbadge = badges:Badges\n")
    (tmp_path / "badges.py").write_text(
        """
from polaris_spark.errors import NotAuthorizedError
from polaris_spark.server import Login

class Badges:
    def __init__(self, settings):
        self.prefix = settings["prefix"]

    def authenticate(self, token):
        if not token.startswith(self.prefix):
            return None
        if token == self.prefix:
            raise NotAuthorizedError("the badge has no name")
        return Login(token.removeprefix(self.prefix), method="badge")
"""
    )
    path = tmp_path / "authentication.json"
    path.write_text(json.dumps({"authenticators": [{"type": "badge", "prefix": "badge-"}]}))
    arguments = ["--warehouse", str(tmp_path / "w"), "--authentication", str(path)]
    modules = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    with Server(f"sqlite://{tmp_path / 's.db'}", *arguments, env={"PYTHONPATH": modules}) as server:
        statuses = [
            client(server, token).send("GET", "v1/config").status for token in ("badge-eve", "badge-", "x")
        ]
        metrics = Remote(server.uri).raw("GET", "/metrics")[2]
    assert statuses == [200, 401, 401]
    assert 'polaris_spark_logins_total{method="other",outcome="succeeded"} 1.0' in metrics
