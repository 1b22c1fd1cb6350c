"""Access tokens that the servers of a realm issue: signed JWTs (RFC 9068) that name a principal and its roles.

A token is accepted as long as the key that signed it is in the realm's rows, it has not expired, and the principal is
active and has the secret with which it logged in for the token. So a token becomes invalid when the principal's
credentials are rotated or reset, or the principal is revoked or dropped. If a rotation keeps the old secret for some
time, then the tokens that were issued for the old secret become invalid when that secret does.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

import jwt

from polaris_spark.access.control import AccessControl
from polaris_spark.access.jwts import (
    MAX_TOKEN,
    ExpiredTokenError,
    check_times,
    has_audience,
    unverified,
    verified_claims,
)
from polaris_spark.access.reading import find_principal
from polaris_spark.access.rows import HashedSecret, Principal
from polaris_spark.access.token_keys import (
    ALGORITHM,
    MAX_LIFETIME_MS,
    ServerKey,
    SigningKey,
    signing_key,
    token_keys,
    verifying_key,
)
from polaris_spark.commits.change import Operation
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import BadRequestError, InputError, NotAuthorizedError
from polaris_spark.store_uris import Secret
from polaris_spark.system.registry import References

LIFETIME_SECONDS: Final = 3_600
"""Default lifetime of a token, in seconds."""

SCOPE_PREFIX: Final = "PRINCIPAL_ROLE:"
ALL: Final = "PRINCIPAL_ROLE:ALL"
"""Scope of a token with all roles of the principal."""
DEFAULT_SCOPE: Final = "catalog"
"""Scope that Iceberg's clients send if none is configured. It means the same as no scope."""

_UNQUOTED: Final = "!#$&'()*+,-./:;<=>?@[]^_`{|}~"
"""Characters other than letters and digits that a scope can contain (RFC 6749, 3.3), except the percent sign."""

_SKEW_SECONDS: Final = 5
_MAX_ROLES: Final = 100


class VerifiedToken(NamedTuple):
    """The verified contents of an access token."""

    principal: Principal
    roles: frozenset[str] | None
    """Names of the principal roles to which the token is limited; None for all roles of the principal."""
    expires: float
    """Time after which the token is not valid, in seconds since 1970."""
    until: float
    """Latest expiry time of tokens that are exchanged for this one, in seconds since 1970."""
    secret: int | None
    """`HashedSecret.created` of the secret with which the principal logged in, in milliseconds since 1970; None if it
    logged in without one, by a token of another issuer."""


class TokenIssuer:
    """Issues the access tokens of a realm. Thread-safe."""

    def __init__(
        self,
        references: References,
        realm: str,
        server_key: ServerKey,
        operation: Operation,
        *,
        lifetime_seconds: int = LIFETIME_SECONDS,
    ) -> None:
        """
        Args:
            operation: principal and notes for the log entries of new keys.
        Raises:
            InputError: the lifetime is out of range.
        """
        check_lifetime(lifetime_seconds)
        self._references = references
        self._realm = realm
        self._server_key = server_key
        self._operation = operation
        self._lifetime = lifetime_seconds

    def verify(self, head: CommitReader, token: str) -> VerifiedToken:
        """Return the verified contents of a token that a server of the realm has issued.

        Args:
            head: a commit of the reference `access`.
        Raises:
            NotAuthorizedError: the token is not accepted.
        """
        found = verify_token(head, self._realm, token, self._references.clock.now_ms())
        if found is None:
            raise NotAuthorizedError(
                "the token was not issued by a server of this realm; log in to this realm"
            )
        return found

    def issue(
        self,
        head: CommitReader,
        principal: Principal,
        roles: frozenset[str] | None,
        *,
        secret: int | None,
        until: float = math.inf,
    ) -> tuple[str, int]:
        """Issue a token.

        Args:
            head: a commit of the reference `access`.
            roles: names of the principal roles to which the token is limited; None for all.
            secret: `HashedSecret.created` of the secret with which the principal logged in, in milliseconds since
                1970; None if it logged in without one.
            until: latest expiry time of this token and of tokens that are exchanged for it, in seconds since 1970.
        Returns:
            the token, and its lifetime in seconds.
        Raises:
            BadRequestError: the token would have too many roles, or would be too long.
            NotAuthorizedError: the principal no longer has the secret.
        """
        if roles is not None and len(roles) > _MAX_ROLES:
            raise BadRequestError(f"the token would have more than {_MAX_ROLES} roles; ask for fewer roles")
        key = signing_key(self._references, head, self._server_key, self._operation)
        now = self._references.clock.now_ms() // 1_000
        expires = now + self._lifetime
        if until < expires:
            expires = int(until)
        ends = [principal.expires]
        if secret is not None:
            ends.append(_secret(principal, secret, now * 1_000).expires)
        expires = min([expires, *(one // 1_000 for one in ends if one)])
        token = _signed(
            key,
            {
                "iss": issuer_of(self._realm),
                "aud": issuer_of(self._realm),
                "sub": principal.name,
                "pid": f"{principal.entity_id:x}",
                "ver": principal.valid_from,
                "scope": scope_of(roles),
                "iat": now,
                "exp": expires,
                "jti": secrets.token_hex(16),
                **({} if until == math.inf else {"until": until}),
                **({} if secret is None else {"sec": secret}),
            },
        )
        if len(token) > MAX_TOKEN:
            raise BadRequestError("the token would be too long; ask for fewer roles")
        return token, max(0, expires - now)


def verify_token(head: CommitReader, realm: str, token: str, now_ms: int) -> VerifiedToken | None:
    """Return the verified contents of an access token; None if the text is not an access token of this realm.

    Args:
        head: a commit of the reference `access`.
        now_ms: the time, in milliseconds since 1970.
    Raises:
        ExpiredTokenError: the token has expired.
        NotAuthorizedError: the token is not accepted.
    """
    said, issuer = unverified(token), issuer_of(realm)
    if said is None or said.issuer != issuer:
        return None
    if said.algorithm != ALGORITHM:
        raise NotAuthorizedError(
            f"the token is signed with the algorithm {said.algorithm[:20]!r}; it must be {ALGORITHM}"
        )
    row = next((one for one in token_keys(head) if one.id == said.key_id), None)
    if row is None:
        raise NotAuthorizedError("the key that signed the token no longer exists; log in again")
    claims = verified_claims(token, verifying_key(row), ALGORITHM)
    now = now_ms / 1_000
    expires = check_times(claims, now, _SKEW_SECONDS)
    if claims.get("iss") != issuer or not has_audience(claims, frozenset([issuer])):
        raise NotAuthorizedError("the token is for another realm; log in to this realm")
    principal, secret = _principal(head, claims, now_ms), claims.get("sec")
    if isinstance(secret, int):
        _secret(principal, secret, now_ms)
    else:
        secret = None
    until = claims.get("until")
    # Without a secret, the token is of another issuer's login, which has an end, or of an earlier release.
    latest = math.inf if secret is not None else expires
    return VerifiedToken(
        principal,
        _roles(claims),
        expires,
        float(until) if isinstance(until, (int, float)) else latest,
        secret,
    )


def log_in_by_token(access: AccessControl, realm: str, token: Secret) -> VerifiedToken:
    """Return the verified contents of a token that a server of the realm issued.

    Raises:
        NotAuthorizedError: the token is not accepted, or no server of the realm issued it.
    """
    rules, now = access.newest(), access.references.clock.now_ms()
    found = None if rules is None else verify_token(rules.head, realm, token.reveal().strip(), now)
    if found is None:
        raise NotAuthorizedError(
            f"the property 'token' is not a token that a server of realm {realm!r} issued; sessions without a server "
            "accept only such tokens"
        )
    return found


def check_lifetime(seconds: int) -> None:
    """Check the lifetime of tokens.

    Raises:
        InputError: the lifetime is out of range.
    """
    if not 1 <= seconds <= MAX_LIFETIME_MS // 1_000:
        raise InputError(
            f"the lifetime of tokens is {seconds} s; it must be from 1 to {MAX_LIFETIME_MS // 1_000}"
        )


def issuer_of(realm: str) -> str:
    """Return the value of both claims `iss` and `aud` in a realm's tokens."""
    return f"polaris-spark:{realm}"


def scope_of(roles: frozenset[str] | None) -> str:
    """Return the claim `scope` of a token that is limited to the principal roles `roles` (None: all roles).

    Characters that a scope cannot contain are percent-encoded in the names of roles (RFC 3986). To distinguish a role
    named `ALL` from all roles, the first letter of its name is also percent-encoded.
    """
    return ALL if roles is None else " ".join(f"{SCOPE_PREFIX}{_quoted(role)}" for role in sorted(roles))


def _quoted(role: str) -> str:
    return "%41LL" if role == "ALL" else quote(role, _UNQUOTED)


def roles_in(scope: str) -> frozenset[str] | None:
    """Return the names of the principal roles in a scope; None if the scope stands for all roles of the principal.

    Raises:
        BadRequestError: the scope names too many roles, or a part of it does not name a role.
    """
    roles: set[str] = set()
    is_all = False
    for one in scope.split():
        if one == ALL:
            is_all = True
        elif one.startswith(SCOPE_PREFIX) and len(one) > len(SCOPE_PREFIX):
            roles.add(unquote(one.removeprefix(SCOPE_PREFIX)))
        elif one != DEFAULT_SCOPE:
            raise BadRequestError(
                f"the scope {one[:80]!r} is unknown; write {ALL}, or {SCOPE_PREFIX} and the name of a principal role"
            )
    if len(roles) > _MAX_ROLES:
        raise BadRequestError(f"the scope names more than {_MAX_ROLES} roles")
    return None if is_all or not roles else frozenset(roles)


def _signed(key: SigningKey, claims: Mapping[str, Any]) -> str:
    headers = {"kid": key.id, "typ": "at+jwt"}
    return jwt.encode(dict(claims), key.private, algorithm=ALGORITHM, headers=headers)


def _principal(head: CommitReader, claims: Mapping[str, Any], now_ms: int) -> Principal:
    name = claims.get("sub")
    found = find_principal(head, name) if isinstance(name, str) else None
    if found is None or claims.get("pid") != f"{found.entity_id:x}":
        raise NotAuthorizedError("the principal of the token does not exist")
    if not found.is_active(now_ms):
        raise NotAuthorizedError(f"the principal {found.name!r} is revoked or has expired")
    if claims.get("ver") != found.valid_from:
        raise NotAuthorizedError(
            f"the credentials of {found.name!r} have changed since the token was issued; log in again"
        )
    return found


def _secret(principal: Principal, created: int, now_ms: int) -> HashedSecret:
    """Return the secret of a principal that was made at the time `created`.

    Raises:
        NotAuthorizedError: the principal does not have this secret any more, or the secret has expired.
    """
    for one in principal.secrets:
        if one.created == created and not 0 < one.expires <= now_ms:
            return one
    raise NotAuthorizedError(
        f"the secret of {principal.name!r} has been replaced since the token was issued; log in with the new secret"
    )


def _roles(claims: Mapping[str, Any]) -> frozenset[str] | None:
    scope = claims.get("scope")
    return roles_in(scope) if isinstance(scope, str) and scope else frozenset()


__all__ = [
    "ALL",
    "ExpiredTokenError",
    "TokenIssuer",
    "VerifiedToken",
    "issuer_of",
    "log_in_by_token",
    "roles_in",
    "scope_of",
    "verify_token",
]
