"""JSON Web Tokens (RFC 7519): the parts of their verification that do not depend on the issuer. The rules come from RFC
8725 (best current practices).

Only asymmetric algorithms are supported. So no token is accepted without a signature, and nobody can use a public key
as the secret of a symmetric signature.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from polaris_spark.errors import MissingLibraryError, NotAuthorizedError

try:
    import jwt
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
except ImportError as error:
    raise MissingLibraryError(
        f"signed tokens need libraries that are not installed ({error.name}): pip install 'polaris-spark[server]'"
    ) from error

MAX_TOKEN: Final = 16 * 1024
"""Maximum length of a token, in characters."""

ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip  # grouped by family
"""Algorithms of signatures (RFC 7518, RFC 8037) that can be allowed."""

_RSA_BITS: Final = 2_048
_TYPES: Final = (None, "jwt", "at+jwt", "application/at+jwt")
"""Values of the header `typ` of access tokens, in lower case. Tokens of other types, such as `logout+jwt`, have another
purpose."""


class Unverified(NamedTuple):
    """Unverified contents of a token. They are used only to choose the key that verifies the token."""

    algorithm: str
    key_id: str | None
    issuer: str


def unverified(token: str) -> Unverified | None:
    """Return the unverified contents of a token; None if the text is not a signed JWT in compact form."""
    if len(token) > MAX_TOKEN or token.count(".") != 2:
        return None
    try:
        found = jwt.api_jwt.decode_complete(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError, OverflowError):
        return None
    header, claims = found["header"], found["payload"]
    algorithm, key_id, issuer = header.get("alg"), header.get("kid"), claims.get("iss")
    if not isinstance(algorithm, str) or not isinstance(issuer, str):
        return None
    if key_id is not None and not isinstance(key_id, str):
        return None
    return Unverified(algorithm, key_id, issuer)


def verified_claims(token: str, key: jwt.PyJWK, algorithm: str) -> dict[str, Any]:
    """Verify the signature of a token, and return its claims. The claims themselves are not checked.

    Args:
        key: the public key, which is bound to one algorithm.
        algorithm: the only algorithm that is allowed.
    Raises:
        NotAuthorizedError: the signature is wrong, or the token is not in a form that can be verified.
    """
    if algorithm not in ALGORITHMS:
        raise NotAuthorizedError(
            f"the token is signed with the algorithm {algorithm[:20]!r}; allowed are: {', '.join(ALGORITHMS)}"
        )
    if isinstance(key.key, RSAPublicKey) and key.key.key_size < _RSA_BITS:
        raise NotAuthorizedError(
            f"the RSA key {str(key.key_id)[:80]!r} has fewer than {_RSA_BITS} bits; the issuer must sign with a "
            "longer key"
        )
    try:
        header = jwt.get_unverified_header(token)
        if "crit" in header or "b64" in header:
            raise NotAuthorizedError(
                "the token has the header 'crit' or 'b64', which changes how a token is verified and is not "
                "supported"
            )
        kind = header.get("typ")
        if (kind.lower() if isinstance(kind, str) else kind) not in _TYPES:
            raise NotAuthorizedError(
                "the token is not an access token: its header 'typ' is neither JWT nor at+jwt"
            )
        found = jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            options={
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
                "verify_aud": False,
                "verify_iss": False,
                "verify_sub": False,
                "verify_jti": False,
            },
        )
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError, OverflowError) as error:
        raise NotAuthorizedError(f"the token cannot be verified: {type(error).__name__}") from None
    assert isinstance(found, dict)
    return found


class ExpiredTokenError(NotAuthorizedError):
    """The signature of a token is valid, but the token has expired."""


def check_times(claims: Mapping[str, Any], now: float, skew: float) -> float:
    """Check the times in a token's claims (RFC 7519, 4.1), and return when the token expires, in seconds since 1970.

    Args:
        now: seconds since 1970.
        skew: tolerated difference of the issuer's clock, in seconds.
    Raises:
        ExpiredTokenError: the token has expired.
        NotAuthorizedError: the token has no expiry time, is not valid yet, or was issued in the future.
    """
    expires = _time(claims, "exp")
    if expires is None:
        raise NotAuthorizedError("the token has no claim 'exp', the time at which it expires")
    if now >= expires + skew:
        raise ExpiredTokenError("the token has expired; get a new one")
    for name in ("nbf", "iat"):
        begins = _time(claims, name)
        if begins is not None and begins > now + skew:
            raise NotAuthorizedError(
                f"the token is not valid yet: its claim {name!r} is {begins:.0f}, but the time is {now:.0f} (seconds "
                "since 1970); compare the clocks of the issuer and of this server"
            )
    return expires


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise NotAuthorizedError(f"the claim {name!r} of the token is not a time in seconds since 1970")


def has_audience(claims: Mapping[str, Any], accepted: frozenset[str]) -> bool:
    """Whether a token's claim `aud` names one of the accepted audiences."""
    found = claims.get("aud")
    named = found if isinstance(found, list) else [found]
    return any(isinstance(one, str) and one in accepted for one in named)


def public_key(jwk: Mapping[str, Any], algorithm: str) -> jwt.PyJWK | None:
    """Return the public key of a JSON Web Key (RFC 7517) for an algorithm. Return None if the key is for another use or
    another algorithm, or is malformed."""
    if jwk.get("use", "sig") != "sig" or jwk.get("alg", algorithm) != algorithm:
        return None
    operations = jwk.get("key_ops")
    if isinstance(operations, list) and "verify" not in operations:
        return None
    if jwk.get("kty") not in _KEY_TYPES[algorithm[:2]] or "d" in jwk:
        return None
    try:
        key = jwt.PyJWK(dict(jwk), algorithm)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    curve = _CURVES.get(algorithm)
    return None if curve is not None and jwk.get("crv") not in curve else key


_KEY_TYPES: Final = {"RS": ("RSA",), "PS": ("RSA",), "ES": ("EC",), "Ed": ("OKP",)}
_CURVES: Final = {
    "ES256": ("P-256",), "ES384": ("P-384",), "ES512": ("P-521",), "EdDSA": ("Ed25519", "Ed448"),
}  # fmt: skip  # a table
