"""Tokens of clients in tests of logins."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from polaris_spark.access.token_keys import token_keys
from tests.server.issuers import part
from tests.server.realms import Realm

STATIC = "static-token-of-ann"


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
