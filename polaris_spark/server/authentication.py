"""Authentication of requests: ask the authenticators in turn, and limit failed logins."""

from __future__ import annotations

import asyncio
import importlib.metadata
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import Request

from polaris_spark.access.jwts import MAX_TOKEN, ExpiredTokenError
from polaris_spark.errors import InputError, NotAuthorizedError, TooManyRequestsError, TryAgainError
from polaris_spark.server.listener import source_of
from polaris_spark.server.login_limits import FailureLimit, Remembered
from polaris_spark.server.logins import GROUP, Authenticator, Login, described, log
from polaris_spark.server.metrics import Metrics
from polaris_spark.server.oidc import OidcAuthenticator, Settings

KEPT_SECONDS: Final = 1.0
"""Time for which a verified token is cached. A revoked token can be accepted for this time plus the time of the
property `access-refresh`."""

FAILURES_PER_ADDRESS: Final = 60
"""Default maximum number of failed attempts from one address per minute."""

_THREADS: Final = 4
_WAITING: Final = 256
"""Maximum number of tokens and secrets that wait for verification. Further ones get status 503."""

_UNKNOWN: Final = "unknown"

V = TypeVar("V")


class Verifications:
    """Threads that verify tokens or secrets, so that slow or many logins do not hinder other requests. Only the thread
    of the event loop may use it."""

    def __init__(self, threads: int, most: int, name: str) -> None:
        """
        Args:
            most: maximum number of verifications in progress or waiting.
        """
        self._pool = ThreadPoolExecutor(threads, name)
        self._most = most
        self._waiting = 0

    async def run(self, work: Callable[[], V]) -> V:
        """Call a function in a thread, and return its result.

        Raises:
            TryAgainError: too many verifications are in progress.
        """
        if self._waiting >= self._most:
            raise TryAgainError(
                f"{self._waiting} logins are being verified, the maximum of this server; try again"
            )
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Authentication:
    """Identifies the senders of requests with the authenticators of a server. Only the thread of the event loop may use
    it."""

    def __init__(
        self,
        authenticators: Sequence[Authenticator],
        metrics: Metrics,
        *,
        admit: Callable[[Login], None] = lambda _: None,
        failures_per_address: int = FAILURES_PER_ADDRESS,
        elapsed: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            authenticators: authenticators, in the order in which they are asked.
            admit: function that raises `NotAuthorizedError` if a principal may not log in, even with a valid token.
            failures_per_address: maximum number of failed attempts per minute from one IPv4 address or one IPv6
                network of 64 bits; 0 for no limit.
            elapsed: function that returns a monotonic time, in seconds.
            now: function that returns the seconds since 1970.
        """
        self._authenticators = tuple(authenticators)
        self._admit = admit
        self._metrics = metrics
        self.addresses = FailureLimit(failures_per_address, 60.0, elapsed)
        self._verified: Remembered[Login] = Remembered(KEPT_SECONDS, elapsed)
        self._seen: Remembered[bool] = Remembered(float("inf"), elapsed)
        self._now = now
        self.tokens = Verifications(_THREADS, _WAITING, "polaris-logins")

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
        login = self._verified.get(token)
        if login is None:
            login = await self._verify(token, address)
        if login.expires <= self._now():
            raise ExpiredTokenError(EXPIRED)
        return login

    async def try_token(self, token: str) -> Login | None:
        """Return the login that a token proves; None if the token is not accepted. A refusal is not counted."""
        try:
            return await self.tokens.run(lambda: self._ask(token))
        except NotAuthorizedError:
            return None

    def require_allowed(self, address: str, method: str) -> None:
        """Raise an error if too many attempts from an address have failed.

        Raises:
            TooManyRequestsError: too many attempts have failed; try again later.
        """
        wait = self.addresses.wait_seconds(address)
        if wait:
            self.limited(method)
            raise TooManyRequestsError(
                f"too many logins from this address failed; try again in {wait} s", retry_after=wait
            )

    def limited(self, method: str) -> None:
        """Count a login that was refused because too many logins failed before it."""
        self._metrics.login(method, "limited")

    def failed(self, address: str, method: str, reason: str, **more: str | None) -> None:
        """Count and log a refused login."""
        self.addresses.fail(address)
        self._metrics.login(method, "refused")
        log.warning("login refused: %s", described(method, address, reason=reason, **more))

    def succeeded(self, address: str, login: Login, **more: str | None) -> None:
        """Count and log a login."""
        self._metrics.login(login.method, "succeeded")
        roles = None if login.roles is None else " ".join(sorted(login.roles))
        found = described(login.method, address, principal=login.principal, roles=roles, **more)
        log.info("login succeeded: %s", found)

    async def _verify(self, token: str, address: str) -> Login:
        self.require_allowed(address, _UNKNOWN)
        try:
            login = await self.tokens.run(lambda: self._ask(token))
        except NotAuthorizedError as error:
            self.failed(address, "token", str(error))
            # A client learns that its token has expired, because then the token was right.
            if isinstance(error, ExpiredTokenError):
                raise ExpiredTokenError(EXPIRED) from None
            raise NotAuthorizedError(REFUSED) from None
        except TryAgainError:
            self._metrics.login(_UNKNOWN, "unavailable")
            raise
        self._verified.put(token, login)
        # The login of an issued token was logged when the token was issued.
        if login.method != "issued-token" and self._seen.get(token) is None:
            self._seen.put(token, value=True)
            self.succeeded(address, login)
        return login

    def _ask(self, token: str) -> Login:
        if len(token) <= MAX_TOKEN:
            for one in self._authenticators:
                login = one.authenticate(token)
                if login is not None:
                    self._admit(login)
                    return login
        raise NotAuthorizedError("this server does not accept this kind of token")

    def close(self) -> None:
        """End the threads."""
        self.tokens.close()


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
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"the file {path} of --authentication cannot be read: {error}") from None
    authenticators = [_authenticator(one, path) for one in found.authenticators]
    issuers = [one.issuer for one in authenticators if isinstance(one, OidcAuthenticator)]
    twice = {one for one in issuers if issuers.count(one) > 1}
    if twice:
        raise InputError(f"the file {path} has the issuer {min(twice)!r} twice")
    return authenticators


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
