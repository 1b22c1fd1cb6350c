"""Tokens of OpenID Connect issuers, such as Keycloak, Okta and Entra ID. The issuer's public keys come from its
discovery document (OpenID Connect Discovery 1.0), from the URL of a key set, or from a file."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import requests
from jwt import PyJWK
from urllib3.exceptions import HTTPError

from polaris_spark.access.jwts import (
    ALGORITHMS,
    check_times,
    has_audience,
    public_key,
    unverified,
    verified_claims,
)
from polaris_spark.errors import InputError, NotAuthorizedError, TryAgainError
from polaris_spark.rest.access import is_loopback
from polaris_spark.rest.opening import check_principal
from polaris_spark.server.logins import Login

log = logging.getLogger("polaris_spark.server")

KEPT_SECONDS: Final = 600.0
"""Keys are fetched again when they are older than this. So a key that the issuer has revoked is accepted for at most
this time, unless the issuer cannot be reached."""
STALE_SECONDS: Final = 3_600.0
"""If the issuer cannot be reached, its keys are used until they are older than this."""
AGAIN_SECONDS: Final = 10.0
"""Minimum time between two attempts to fetch keys, so that tokens with unknown keys cause no flood of requests."""

WAIT_SECONDS: Final = 1.0
"""Time since the beginning of a fetch for which other threads wait for it. So an issuer that does not answer takes up
one of the threads that verify the tokens of all issuers and realms, and not all."""

_TIMEOUT_SECONDS: Final = (3.0, 5.0)
_TOTAL_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05
_MAX_BYTES: Final = 2**20
_MAX_KEYS: Final = 200
_MAX_SKEW: Final = 300
_MAX_ROLES: Final = 1_000


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab", kw_only=True):
    """Settings of one issuer, read from the file of the option `--authentication`."""

    issuer: str
    """The claim `iss` of the issuer's tokens, which is also the base of its discovery document's URL."""
    audience: str | list[str]
    """Accepted values of the claim `aud`."""
    jwks: str | None = None
    """URL or file of the key set. By default, the discovery document names it."""
    algorithms: tuple[str, ...] = ("RS256", "PS256", "ES256", "EdDSA")
    principal_claim: str = "sub"
    """Claim with the principal's name. Dots separate the names of nested claims."""
    principal_prefix: str = ""
    """Text before the principal's name, such as `okta:`."""
    roles_claim: str | None = None
    """Claim with the names of groups or roles: a list of texts, or one text with spaces between the names."""
    roles: dict[str, str] = {}
    """Principal role for each value of the claim `roles_claim`. Other values are ignored."""
    clock_skew: int = 30
    """Maximum difference between the issuer's clock and this machine's, in seconds."""


class OidcAuthenticator:
    """Accepts the tokens of one issuer. Thread-safe."""

    def __init__(
        self,
        settings: Settings,
        *,
        now: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            now: function that returns the seconds since 1970.
            elapsed: function that returns a monotonic time, in seconds.
        Raises:
            InputError: a setting cannot be used.
        """
        self.settings = settings
        self.issuer = settings.issuer
        audience = settings.audience
        self._audience = frozenset([audience] if isinstance(audience, str) else audience)
        if not self._audience or "" in self._audience:
            raise InputError(f"the issuer {settings.issuer!r} needs a setting 'audience' that is not empty")
        wrong = [name for name in settings.algorithms if name not in ALGORITHMS]
        if wrong or not settings.algorithms:
            raise InputError(
                f"the algorithms of the issuer {settings.issuer!r} are {list(settings.algorithms)}; they must be some "
                f"of {', '.join(ALGORITHMS)}"
            )
        if not 0 <= settings.clock_skew <= _MAX_SKEW:
            raise InputError(f"clock-skew is {settings.clock_skew} s; it must be from 0 to {_MAX_SKEW} s")
        if bool(settings.roles) != bool(settings.roles_claim):
            raise InputError("roles-claim and roles must be given together, or neither of them")
        if settings.jwks is None or "://" in settings.jwks:
            _check_url(settings.jwks or settings.issuer)
        self._keys = _Keys(settings, elapsed)
        self._now = now

    def authenticate(self, token: str) -> Login | None:
        """Return the login that a token proves; None if another issuer issued the token.

        Raises:
            NotAuthorizedError: the token is not accepted.
            TryAgainError: the issuer's keys cannot be read now.
        """
        said = unverified(token)
        if said is None or said.issuer != self.issuer:
            return None
        if said.algorithm not in self.settings.algorithms:
            raise NotAuthorizedError(
                f"the token is signed with the algorithm {said.algorithm[:20]!r}; allowed are: "
                f"{', '.join(self.settings.algorithms)}"
            )
        key = self._keys.find(said.key_id, said.algorithm)
        if key is None:
            raise NotAuthorizedError(f"the issuer has no key {said.key_id!r:.80} for {said.algorithm}")
        claims = verified_claims(token, key, said.algorithm)
        expires = check_times(claims, self._now(), self.settings.clock_skew)
        if claims.get("iss") != self.issuer:
            raise NotAuthorizedError(
                f"the token was issued by {str(claims.get('iss'))[:200]!r}, not by {self.issuer!r}"
            )
        if not has_audience(claims, self._audience):
            raise NotAuthorizedError(
                "the token is for another audience: its claim 'aud' does not name this server"
            )
        expires += self.settings.clock_skew
        return Login(
            self._principal(claims),
            self._roles(claims),
            method="oidc",
            expires=expires,
            exchangeable_until=expires,
        )

    def _principal(self, claims: Mapping[str, Any]) -> str:
        name = _claim(claims, self.settings.principal_claim)
        if not isinstance(name, str) or not name:
            raise NotAuthorizedError(
                f"the claim {self.settings.principal_claim!r} of the token, which names the principal, is missing "
                "or is not text"
            )
        try:
            return check_principal(self.settings.principal_prefix + name)
        except InputError as error:
            raise NotAuthorizedError(str(error)) from None

    def _roles(self, claims: Mapping[str, Any]) -> frozenset[str] | None:
        if self.settings.roles_claim is None:
            return None
        found = _claim(claims, self.settings.roles_claim)
        names = found.split() if isinstance(found, str) else found
        if names is None:
            return frozenset()
        if not isinstance(names, list) or len(names) > _MAX_ROLES:
            raise NotAuthorizedError(
                f"the claim {self.settings.roles_claim!r} of the token is not a list of at most {_MAX_ROLES} names"
            )
        mapped = (self.settings.roles.get(name) for name in names if isinstance(name, str))
        return frozenset(role for role in mapped if role is not None)


class _Keys:
    """The public keys of an issuer. They are fetched when a token first needs them, and then periodically."""

    def __init__(self, settings: Settings, elapsed: Callable[[], float]) -> None:
        self._settings = settings
        self._elapsed = elapsed
        self._guard = threading.Lock()
        self._set: tuple[Mapping[str, Any], ...] = ()
        self._read_at = float("-inf")
        self._tried_at = float("-inf")
        self._fetching_since: float | None = None

    def find(self, id: str | None, algorithm: str) -> PyJWK | None:
        """Return the key with this id for an algorithm. If a token names no key, return the only key for the
        algorithm. Return None if there is no such key.

        Raises:
            TryAgainError: the keys cannot be read now.
        """
        age = self._elapsed() - self._read_at
        found = self._known(id, algorithm) if age < STALE_SECONDS else None
        if found is not None and age < KEPT_SECONDS:
            return found
        # A thread that has a usable key does not wait for another one that fetches keys.
        if not (self._guard.acquire(blocking=False) or (found is None and self._waited())):
            if found is None:
                raise self._unread()
            return found
        try:
            self._refresh(id, algorithm)
        finally:
            self._guard.release()
        if self._elapsed() - self._read_at >= STALE_SECONDS:
            raise self._unread()
        return self._known(id, algorithm)

    def _waited(self) -> bool:
        """Wait for the lock `guard`, but not as long as a slow fetch takes. Return whether this thread now holds the
        lock."""
        while True:
            since = self._fetching_since
            if since is not None and self._elapsed() - since >= WAIT_SECONDS:
                return False
            if self._guard.acquire(timeout=_POLL_SECONDS):
                return True

    def _unread(self) -> TryAgainError:
        return TryAgainError(f"the keys of the issuer {self._settings.issuer} cannot be read now; try again")

    def _refresh(self, id: str | None, algorithm: str) -> None:
        now = self._elapsed()
        is_fresh = now - self._read_at < KEPT_SECONDS
        if now - self._tried_at < AGAIN_SECONDS or (is_fresh and self._known(id, algorithm) is not None):
            return
        self._tried_at = self._fetching_since = now
        try:
            self._set = _read_keys(self._settings)
        except (requests.RequestException, OSError, ValueError, RecursionError) as error:
            log.warning("the keys of the issuer %s cannot be read: %s", self._settings.issuer, error)
        else:
            self._read_at = self._elapsed()
        finally:
            self._fetching_since = None

    def _known(self, id: str | None, algorithm: str) -> PyJWK | None:
        if id is not None:
            named = [one for one in self._set if one.get("kid") == id]
            usable = [key for one in named if (key := public_key(one, algorithm)) is not None]
            return usable[0] if usable else None
        usable = [key for one in self._set if (key := public_key(one, algorithm)) is not None]
        return usable[0] if len(usable) == 1 else None


def _read_keys(settings: Settings) -> tuple[Mapping[str, Any], ...]:
    """Read the key set of an issuer.

    Raises:
        ValueError: a document is malformed.
        requests.RequestException: a document cannot be fetched.
        OSError: the file cannot be read.
    """
    where = settings.jwks
    if where is not None and "://" not in where:
        text = Path(where).read_bytes()
        if len(text) > _MAX_BYTES:
            raise ValueError(f"{where} has more than {_MAX_BYTES} bytes")
        found = json.loads(text)
    else:
        if where is None:
            document = _fetched(f"{settings.issuer.rstrip('/')}/.well-known/openid-configuration")
            if not isinstance(document, dict) or document.get("issuer") != settings.issuer:
                raise ValueError(f"the discovery document does not have the issuer {settings.issuer!r}")
            where = document.get("jwks_uri")
            if not isinstance(where, str):
                raise ValueError("the discovery document has no jwks_uri")
            _check_url(where)
        found = _fetched(where)
    keys = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(keys, list) or len(keys) > _MAX_KEYS:
        raise ValueError(f"the key set at {where} has no list 'keys' of at most {_MAX_KEYS} keys")
    return tuple(one for one in keys if isinstance(one, dict))


def _fetched(url: str) -> Any:
    until = time.monotonic() + _TOTAL_SECONDS
    with requests.Session() as session:
        session.trust_env = not is_loopback(urlsplit(url).hostname or "")
        headers = {"Accept": "application/json"}
        with session.get(
            url, timeout=_TIMEOUT_SECONDS, stream=True, allow_redirects=False, headers=headers
        ) as answer:
            if answer.status_code != 200:
                raise ValueError(f"{url} answers with status {answer.status_code}")
            body = bytearray()
            # In contrast to `iter_content`, this does not wait until it has received a whole chunk.
            try:
                while chunk := answer.raw.read1(16 * 1024, decode_content=True):
                    body += chunk
                    if len(body) > _MAX_BYTES:
                        raise ValueError(f"{url} has more than {_MAX_BYTES} bytes")
                    if time.monotonic() > until:
                        raise ValueError(f"{url} was not received within {_TOTAL_SECONDS:.0f} s")
            except HTTPError as error:
                raise ValueError(f"{url} was not received: {error}") from error
    return json.loads(bytes(body))


def _check_url(url: str) -> None:
    """Raise an error for a URL whose keys an attacker on the network could replace.

    Raises:
        InputError: the URL is neither https nor http on a loopback address.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        host = ""
        parts = urlsplit("")
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))):
        raise InputError(f"{url[:200]!r} must be an https URL; http is allowed only for loopback addresses")


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return the value of a claim. Dots separate the names of nested claims. A claim whose whole name contains dots
    takes precedence."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found
