"""Authentication of requests: ask the authenticators in turn, and limit failed logins."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from starlette.requests import Request

from polaris_spark.access.jwts import MAX_TOKEN, ExpiredTokenError
from polaris_spark.errors import InputError, NotAuthorizedError, TooManyRequestsError, TryAgainError
from polaris_spark.server.listener import source_of
from polaris_spark.server.login_limits import LoginMemory, VerifyingThreads
from polaris_spark.server.logins import GROUP, Authenticator, Login, described, log
from polaris_spark.server.metrics import Metrics
from polaris_spark.server.oidc import OidcAuthenticator, Settings

FAILURES_PER_ADDRESS: Final = 60
"""Default maximum number of failed attempts from one address per minute."""

_UNKNOWN: Final = "unknown"


class RealmName(NamedTuple):
    """A realm to which callers log in."""

    name: str
    key: str
    """Instance id of the realm; empty if the realm is not served."""
    logged: str | None = None
    """Name of the realm for the log of logins; None if the server serves only one realm."""
    label: str | None = None
    """Name of the realm for metrics; None if the server serves only one realm, or the realm is not served."""


class Authentication:
    """Identifies the senders of requests with the authenticators of a server. Only the thread of the event loop may use
    it."""

    def __init__(
        self,
        authenticators: Sequence[Authenticator],
        metrics: Metrics,
        threads: VerifyingThreads,
        memory: LoginMemory,
        realm: RealmName,
        *,
        admit: Callable[[Login], None] = lambda _: None,
        is_served: Callable[[], bool] = lambda: True,
        now: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            authenticators: authenticators, in the order in which they are asked.
            threads: threads that verify tokens.
            memory: the failed and verified logins that the server remembers.
            realm: the realm to which callers log in.
            admit: function that raises `NotAuthorizedError` if a principal may not log in, even with a valid token.
            is_served: function that returns whether the realm can still be used. It may read the database.
            now: function that returns the seconds since 1970.
        """
        self._authenticators = tuple(authenticators)
        self._admit = admit
        self.is_served = is_served
        self._metrics = metrics
        self.threads = threads
        self.memory = memory
        self.realm = realm
        self._now = now

    async def login(self, request: Request) -> Login:
        """Return the login of the sender of a request.

        Raises:
            NotAuthorizedError: the request has no token, or one that is not accepted.
            TooManyRequestsError: too many attempts from this address failed.
            TryAgainError: the token cannot be verified now.
        """
        return await self.login_of(
            bearer_token(request.headers.getlist("authorization")), address_of(request)
        )

    async def login_of(self, token: str, address: str) -> Login:
        """Return the login that a token proves.

        Raises:
            NotAuthorizedError: the token is not accepted.
            TooManyRequestsError: too many attempts from this address failed.
            TryAgainError: the token cannot be verified now.
        """
        login: Login | None = self.memory.tokens.get(self.key(token))
        if login is None:
            login = await self._verify(token, address)
        if login.expires <= self._now():
            raise ExpiredTokenError(EXPIRED)
        return login

    async def try_token(self, token: str) -> Login | None:
        """Return the login that a token proves; None if the token is not accepted. A refusal is not counted."""
        try:
            return await self.threads.tokens.run(lambda: self._ask(token))
        except NotAuthorizedError:
            return None

    def require_allowed(self, address: str, method: str) -> None:
        """Raise an error if too many attempts from an address have failed.

        Raises:
            TooManyRequestsError: too many attempts have failed; try again later.
        """
        wait = max(
            self.memory.addresses.wait_seconds((self.realm.name, address)),
            self.memory.everywhere.wait_seconds(address),
        )
        if wait:
            self.limited(method)
            raise TooManyRequestsError(
                f"too many logins from this address failed; try again in {wait} s", retry_after=wait
            )

    def limited(self, method: str) -> None:
        """Count a login that was refused because too many earlier logins had failed."""
        self._metrics.login(method, "limited", self.realm.label)

    def failed(self, address: str, method: str, reason: str, **more: str | None) -> None:
        """Count and log a refused login."""
        self.memory.addresses.fail((self.realm.name, address))
        self.memory.everywhere.fail(address)
        self._metrics.login(method, "refused", self.realm.label)
        log.warning(
            "login refused: %s", described(method, address, reason=reason, realm=self.realm.logged, **more)
        )

    def succeeded(self, address: str, login: Login, **more: str | None) -> None:
        """Count and log a login."""
        self._metrics.login(login.method, "succeeded", self.realm.label)
        roles = None if login.roles is None else " ".join(sorted(login.roles))
        found = described(
            login.method, address, principal=login.principal, roles=roles, realm=self.realm.logged, **more
        )
        log.info("login succeeded: %s", found)

    async def _verify(self, token: str, address: str) -> Login:
        self.require_allowed(address, _UNKNOWN)
        try:
            login = await self.threads.tokens.run(lambda: self._ask(token))
        except NotAuthorizedError as error:
            self.failed(address, "token", str(error))
            # A client learns that its token has expired, because then the token was right.
            if isinstance(error, ExpiredTokenError):
                raise ExpiredTokenError(EXPIRED) from None
            raise NotAuthorizedError(REFUSED) from None
        except TryAgainError:
            self._metrics.login(_UNKNOWN, "unavailable", self.realm.label)
            raise
        self.memory.tokens.put(self.key(token), login)
        # The login of an issued token was logged when the token was issued.
        if login.method != "issued-token" and self.memory.seen.get(self.key(token)) is None:
            self.memory.seen.put(self.key(token), value=True)
            self.succeeded(address, login)
        return login

    def _ask(self, token: str) -> Login:
        if len(token) > MAX_TOKEN:
            raise NotAuthorizedError(f"the token has more than {MAX_TOKEN} characters")
        if not self.is_served():
            raise NotAuthorizedError("this server does not serve the realm")
        for one in self._authenticators:
            login = one.authenticate(token)
            if login is not None:
                self._admit(login)
                return login
        raise NotAuthorizedError("no authenticator of this server knows this kind of token")

    def key(self, secret: str) -> str:
        """Return the key under which the server remembers a token or secret."""
        return f"{self.realm.key}\0{secret}"


REFUSED: Final = "this server does not accept the bearer token; check the token"
EXPIRED: Final = "the bearer token has expired; get a new one"


def bearer_token(given: Sequence[str]) -> str:
    """Return the bearer token (RFC 6750) in the values of a request's `Authorization` headers.

    Raises:
        NotAuthorizedError: there is not exactly one header, it has another scheme, or its token is too long.
    """
    if len(given) != 1:
        raise NotAuthorizedError("the request must have exactly one header Authorization: Bearer TOKEN")
    scheme, _, token = given[0].partition(" ")
    if scheme.lower() != "bearer":
        raise NotAuthorizedError(
            "the Authorization header has another scheme than Bearer; send Authorization: Bearer TOKEN"
        )
    token = token.strip()
    if not token or len(token) > MAX_TOKEN:
        raise NotAuthorizedError(REFUSED)
    return token


def address_of(request: Request) -> str:
    """Return the address for which a failed login of this request is counted."""
    return source_of(request.client.host) if request.client else _UNKNOWN


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    authenticators: list[dict[str, Any]]


def authenticators_in(path: Path) -> list[Authenticator]:
    """Return the authenticators that a file describes: JSON, `{"authenticators": [{"type": "oidc", ...}, ...]}`.

    Raises:
        InputError: the file is not in this form, a type is unknown, or a setting cannot be used.
    """
    authenticators = [_authenticator(one, path) for one in _settings_in(path)]
    _refuse_repeated_issuers(authenticators, path)
    return authenticators


def authenticators_by_realm(path: Path) -> dict[str, list[Authenticator]]:
    """Return the authenticators that a file describes, by realm. Each has a field `realms`, the names of the realms for
    which it accepts tokens.

    Raises:
        InputError: as for `authenticators_in`, or an authenticator has no realms.
    """
    found: dict[str, list[Authenticator]] = {}
    for settings in _settings_in(path):
        realms = settings.pop("realms", None)
        if not isinstance(realms, list) or not realms or not all(isinstance(one, str) for one in realms):
            raise InputError(
                f"an authenticator in {path} has no realms; with --realms, each needs a field 'realms', a list of names"
            )
        made = _authenticator(settings, path)
        for realm in dict.fromkeys(realms):
            found.setdefault(realm, []).append(made)
    for authenticators in found.values():
        _refuse_repeated_issuers(authenticators, path)
    return found


def _settings_in(path: Path) -> list[dict[str, Any]]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_File).authenticators
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"the file {path} of --authentication cannot be read: {error}") from None


def _refuse_repeated_issuers(authenticators: Sequence[Authenticator], path: Path) -> None:
    issuers = [one.issuer for one in authenticators if isinstance(one, OidcAuthenticator)]
    twice = {one for one in issuers if issuers.count(one) > 1}
    if twice:
        raise InputError(f"the file {path} has the issuer {min(twice)!r} twice")


def _authenticator(settings: dict[str, Any], path: Path) -> Authenticator:
    kind = settings.pop("type", None)
    if kind == "oidc":
        try:
            return OidcAuthenticator(msgspec.convert(settings, Settings))
        except msgspec.ValidationError as error:
            raise InputError(f"an authenticator of type 'oidc' in {path} cannot be used: {error}") from None
    known = {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}
    if kind not in known:
        names = ", ".join(sorted({"oidc", *known}))
        raise InputError(f"an authenticator in {path} has the type {kind!r}; known types are {names}")
    made: Authenticator = known[kind].load()(settings)
    return made
