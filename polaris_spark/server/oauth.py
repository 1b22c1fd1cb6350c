"""The token endpoint (`POST v1/oauth/tokens`): client credentials (RFC 6749, 4.4) and token exchange (RFC 8693), in the
forms that Iceberg's clients use."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request

from polaris_spark.access.credentials import matching
from polaris_spark.access.reading import access_head, find_client, find_principal, roles_of
from polaris_spark.access.rows import HashedSecret, Principal
from polaris_spark.access.tokens import ALL, TokenIssuer, roles_in, scope_of
from polaris_spark.catalog.files.memory import Claim
from polaris_spark.clock import Clock, SystemClock
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import (
    BadRequestError,
    NotAuthorizedError,
    RequestTimeoutError,
    RequestTooLargeError,
    TooManyRequestsError,
    TryAgainError,
)
from polaris_spark.rest.messages import OAuthError, encode
from polaris_spark.rest.request import JSON_HEADERS, Response
from polaris_spark.server import requests
from polaris_spark.server.authentication import Authentication, address_of
from polaris_spark.server.logins import Login
from polaris_spark.system.registry import References

CLIENT_CREDENTIALS: Final = "client_credentials"
TOKEN_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"
_TOKEN_TYPES: Final = (
    ACCESS_TOKEN,
    "urn:ietf:params:oauth:token-type:jwt",
    "urn:ietf:params:oauth:token-type:id_token",
)

_MAX_BODY: Final = 64 * 1024
_MAX_PARAMETERS: Final = 32
_MAX_SECRET: Final = 1_024
_MAX_CLIENT: Final = 512

_UNCACHED: Final = {"Cache-Control": "no-store", "Pragma": "no-cache"}


class TokenAnswer(msgspec.Struct, kw_only=True):
    """The body of the answer to a request for a token (RFC 6749, 5.1; RFC 8693, 2.2.1)."""

    access_token: str
    token_type: str = "bearer"
    issued_token_type: str = ACCESS_TOKEN
    expires_in: int
    scope: str


class RefusedError(Exception):
    """A request for a token is refused. `error` is the code of RFC 6749, 5.2; the message is the description."""

    def __init__(
        self, error: str, description: str, *, status: int = 400, headers: Mapping[str, str] = {}
    ) -> None:
        super().__init__(description)
        self.error = error
        self.status = status
        self.headers = headers


class _Client(NamedTuple):
    """The client id and secret in a request."""

    id: str
    secret: str


class _Verified(NamedTuple):
    """A secret that was verified, and all secrets that its principal had at that time."""

    principal: int
    secrets: tuple[HashedSecret, ...]
    matching: HashedSecret


class TokenEndpoint:
    """Answers requests for tokens. Only the thread of the event loop may use it. A few other threads verify secrets,
    because each verification needs 16 MiB of memory and about 0.1 s."""

    def __init__(
        self,
        references: References | None,
        issuer: TokenIssuer | None,
        authentication: Authentication,
        *,
        is_discreet: bool = False,
    ) -> None:
        """
        Args:
            references: references of the realm; None if the realm is not served.
            issuer: issuer of the realm's tokens; None if the realm is not served.
            is_discreet: whether a realm without access control refuses all credentials as if they were wrong, so that
                the response does not reveal that the realm exists.
        """
        self._references = references
        self._issuer = issuer
        self._authentication = authentication
        self._is_discreet = is_discreet
        self._memory = authentication.memory
        self._threads = authentication.threads
        self._clock: Clock = SystemClock() if references is None else references.clock

    async def answer(self, request: Request, claim: Claim) -> Response:
        """Answer a request for a token. Refusals are OAuth error responses."""
        try:
            form = await _form(request, claim)
            grant = form.get("grant_type", "")
            if grant == CLIENT_CREDENTIALS:
                answer = await self._client_credentials(request, form)
            elif grant == TOKEN_EXCHANGE:
                answer = await self._exchange(request, form)
            else:
                raise RefusedError(
                    "unsupported_grant_type" if grant else "invalid_request",
                    f"the grant type is {grant[:100]!r}; it must be {CLIENT_CREDENTIALS} or {TOKEN_EXCHANGE}",
                )
        except RefusedError as error:
            return _refusal(error)
        except TooManyRequestsError as error:
            headers = {"Retry-After": str(error.retry_after)}
            return _refusal(RefusedError("temporarily_unavailable", str(error), status=429, headers=headers))
        except TryAgainError as error:
            return _refusal(
                RefusedError("temporarily_unavailable", str(error), status=503, headers={"Retry-After": "1"})
            )
        return Response(200, {**JSON_HEADERS, **_UNCACHED}, encode(answer))

    async def _client_credentials(self, request: Request, form: Mapping[str, str]) -> TokenAnswer:
        client = _client_of(request, form)
        if client is None:
            raise RefusedError(
                "invalid_client",
                "the request has no client id and client secret; set the client's property 'credential' to "
                "client_id:client_secret",
                status=401,
            )
        roles = _asked(form)
        head, principal, secret = await self._log_in(client, address_of(request), "client-credentials")
        return await self._issue(
            request, head, principal, roles, "client-credentials", client.id, secret=secret.created
        )

    async def _exchange(self, request: Request, form: Mapping[str, str]) -> TokenAnswer:
        subject = form.get("subject_token", "")
        kind = form.get("subject_token_type", ACCESS_TOKEN)
        if not subject or kind not in _TOKEN_TYPES:
            raise RefusedError(
                "invalid_request",
                "a token exchange needs a subject_token, which is an access token, JWT or ID token",
            )
        if form.get("requested_token_type", ACCESS_TOKEN) not in _TOKEN_TYPES[:2]:
            raise RefusedError(
                "invalid_request",
                f"requested_token_type is {form['requested_token_type'][:100]!r}; only access tokens are issued",
            )
        roles = _asked(form)
        client, address = _client_of(request, form), address_of(request)
        if client is not None:
            return await self._exchange_by_client(request, subject, roles, client, address)
        return await self._exchange_by_token(request, subject, form.get("actor_token"), roles, address)

    async def _exchange_by_client(
        self, request: Request, subject: str, roles: frozenset[str] | None, client: _Client, address: str
    ) -> TokenAnswer:
        """Exchange the token of a client that authenticates itself. The token may have expired."""
        head, principal, secret = await self._log_in(client, address, "token-exchange")
        login = await self._authentication.try_token(subject)
        if login is not None and login.principal != principal.name:
            self._authentication.failed(address, "token-exchange", "the token belongs to another principal")
            raise RefusedError(
                "invalid_grant",
                (
                    "the subject token belongs to another principal than the client; exchange a token of the client's "
                    "own principal"
                ),
            )
        given = None if login is None else login.roles
        return await self._issue(
            request,
            head,
            principal,
            roles,
            "token-exchange",
            client.id,
            given=given,
            secret=secret.created,
        )

    async def _exchange_by_token(
        self, request: Request, subject: str, actor: str | None, roles: frozenset[str] | None, address: str
    ) -> TokenAnswer:
        """Exchange a valid token."""
        try:
            login = await self._authentication.login_of(subject, address)
            if actor:
                await self._authentication.login_of(actor, address)
        except NotAuthorizedError as error:
            raise RefusedError("invalid_grant", str(error)) from None
        if login.exchangeable_until is None:
            raise RefusedError(
                "invalid_grant",
                (
                    "a token of this kind cannot be exchanged; send an access token that this server issued, or a "
                    "token of a configured issuer"
                ),
            )

        def find() -> tuple[CommitReader | None, Principal | None, int | None]:
            head, secret = self._head(), None
            if head is not None and self._issuer is not None and login.method == "issued-token":
                # It may have been revoked since the rules in memory were read.
                secret = self._issuer.verify(head, subject).secret
            return head, None if head is None else find_principal(head, login.principal), secret

        try:
            head_now, found, own = await self._threads.tokens.run(find)
        except NotAuthorizedError as error:
            raise RefusedError("invalid_grant", str(error)) from None
        if head_now is None or found is None or not found.is_active(self._clock.now_ms()):
            raise RefusedError(
                "invalid_grant",
                "the principal of the subject token does not exist, is revoked, or has expired",
            )
        return await self._issue(
            request,
            head_now,
            found,
            roles,
            "token-exchange",
            given=login.roles,
            secret=own,
            until=login.exchangeable_until,
        )

    async def _issue(
        self,
        request: Request,
        head: CommitReader,
        principal: Principal,
        roles: frozenset[str] | None,
        method: str,
        client_id: str | None = None,
        *,
        given: frozenset[str] | None = None,
        secret: int | None,
        until: float = math.inf,
    ) -> TokenAnswer:
        """Issue a token.

        Args:
            roles: the roles that the request asks for; None if it names none.
            given: the roles of the token that is exchanged; None for all roles of the principal.
            secret, until: as for `TokenIssuer.issue`.
        Raises:
            RefusedError: the principal or the other token does not have the roles.
        """

        def issue() -> tuple[str, int, frozenset[str] | None]:
            narrowed = _narrowed(roles, given, roles_of(head, principal))
            assert self._issuer is not None  # only a realm that is served has principals
            return *self._issuer.issue(head, principal, narrowed, secret=secret, until=until), narrowed

        try:
            token, seconds, narrowed = await self._threads.tokens.run(issue)
        except BadRequestError as error:
            raise RefusedError("invalid_scope", str(error)) from None
        except NotAuthorizedError as error:
            raise RefusedError("invalid_grant", str(error)) from None
        login = Login(principal.name, narrowed, method=method)
        self._authentication.succeeded(address_of(request), login, client_id=client_id)
        return TokenAnswer(access_token=token, expires_in=seconds, scope=scope_of(narrowed))

    async def _log_in(
        self, client: _Client, address: str, method: str
    ) -> tuple[CommitReader, Principal, HashedSecret]:
        """Verify a client's secret. Return a commit of the reference `access`, the principal, and the secret.

        Raises:
            RefusedError: the credentials are not accepted.
            TooManyRequestsError: too many logins from this address or with this client id failed.
            TryAgainError: too many logins are being verified.
        """
        key, realm = self._authentication.key(f"{client.id}\0{client.secret}"), self._authentication.realm
        remembered: _Verified | None = self._memory.secrets.get(key)

        def require_allowed() -> None:
            wait = self._memory.clients.wait_seconds((realm.name, client.id))
            if wait:
                self._authentication.limited(method)
                raise TooManyRequestsError(
                    f"too many logins with this client id failed; try again in {wait} s", retry_after=wait
                )

        if remembered is None:
            self._authentication.require_allowed(address, method)
            require_allowed()

        def verify() -> tuple[CommitReader, Principal, HashedSecret] | None:
            head = self._head()
            if head is None and not self._is_discreet:
                raise RefusedError("invalid_client", "this realm has no access control", status=401)
            found = None if head is None else find_client(head, client.id)
            now = self._clock.now_ms()
            if (
                remembered is not None
                and head is not None
                and found is not None
                and found.is_active(now)
                and (found.entity_id, found.secrets) == (remembered.principal, remembered.secrets)
                and not 0 < remembered.matching.expires <= now
            ):
                return head, found, remembered.matching
            require_allowed()  # other logins with this client id may have failed while this one waited
            secret = matching(found, client.secret[:_MAX_SECRET], now)
            if secret is None or found is None or head is None:
                self._memory.clients.fail((realm.name, client.id))
                return None
            return head, found, secret

        run = self._threads.secrets if remembered is None else self._threads.tokens
        verified = await run.run(verify)
        if verified is None:
            self._memory.secrets.forget(key)
            self._authentication.failed(address, method, "wrong credentials", client_id=client.id[:200])
            raise RefusedError(
                "invalid_client",
                "the credentials are not valid: check client id and client secret",
                status=401,
            )
        _, principal, secret = verified
        self._memory.secrets.put(key, _Verified(principal.entity_id, principal.secrets, secret))
        return verified

    def _head(self) -> CommitReader | None:
        if self._references is None or not self._authentication.is_served():
            return None
        return access_head(self._references)


def _narrowed(
    asked: frozenset[str] | None, given: frozenset[str] | None, assigned: frozenset[str]
) -> frozenset[str] | None:
    """Return the roles of a new token; None for all roles of the principal. A token that is issued in exchange for
    another token never has more roles than the other token. Roles of the other token that the principal no longer has
    are left out.

    Args:
        asked: the roles that the request asks for; None if it names none.
        given: the roles of the other token; None for all roles of the principal.
        assigned: the roles that the principal has now.
    Raises:
        RefusedError: the request asks for roles that the principal or the other token does not have, or the principal
            has none of the roles of the other token.
    """
    if asked is not None:
        if given is not None and not asked <= given:
            raise RefusedError("invalid_scope", "the scope has roles that the subject token does not have")
        if not asked <= assigned:
            missing = min(asked - assigned)
            raise RefusedError("invalid_scope", f"the principal does not have the role {missing[:100]!r}")
        return asked
    if given and not given & assigned:
        raise RefusedError("invalid_scope", "the principal has none of the roles of the subject token")
    return None if given is None else given & assigned


def _asked(form: Mapping[str, str]) -> frozenset[str] | None:
    try:
        return roles_in(form.get("scope", ALL))
    except BadRequestError as error:
        raise RefusedError("invalid_scope", str(error)) from None


def _client_of(request: Request, form: Mapping[str, str]) -> _Client | None:
    """Return the client id and secret in a request's form or in its `Authorization: Basic` header. Other schemes are
    ignored: clients send their old token along when they log in again.

    Raises:
        RefusedError: the header is malformed, the form and the header name different clients, or the client id or the
            secret is missing.
    """
    in_form = None
    if "client_secret" in form or "client_id" in form:
        in_form = _Client(form.get("client_id", ""), form.get("client_secret", ""))
    in_header = None
    given = request.headers.getlist("authorization")
    for one in given:
        scheme, _, text = one.partition(" ")
        if scheme.lower() != "basic":
            continue
        try:
            decoded = base64.b64decode(text.strip(), validate=True).decode()
        except (binascii.Error, ValueError):
            raise RefusedError(
                "invalid_client",
                "the header Authorization is malformed; send Basic and then client_id:client_secret in base64",
                status=401,
            ) from None
        id, colon, secret = decoded.partition(":")
        in_header = _Client(id, secret if colon else "")
    if in_form is not None and in_header is not None and in_form != in_header:
        raise RefusedError("invalid_request", "the form and the header Authorization name different clients")
    found = in_form or in_header
    if found is not None and len(found.id) > _MAX_CLIENT:
        raise RefusedError(
            "invalid_client", f"the client id has more than {_MAX_CLIENT} characters", status=401
        )
    if found is not None and not (found.id and found.secret):
        raise RefusedError(
            "invalid_client",
            "the credentials need a client id and a client secret; set the client's property 'credential' to "
            "client_id:client_secret",
            status=401,
        )
    return found


async def _form(request: Request, claim: Claim) -> dict[str, str]:
    """Return the parameters of the form in a request's body.

    Raises:
        RefusedError: the body is not a form, is too large, or has a parameter twice.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise RefusedError(
            "invalid_request", "the body must be a form: Content-Type: application/x-www-form-urlencoded"
        )
    try:
        body = await requests.bytes_of(request, _MAX_BODY, claim)
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MAX_PARAMETERS,
        )
    except RequestTooLargeError:
        raise RefusedError(
            "invalid_request",
            f"the form has more than {_MAX_BODY} bytes",
            status=413,
            headers={"Connection": "close"},
        ) from None
    except RequestTimeoutError as error:
        raise RefusedError(
            "invalid_request", str(error), status=408, headers={"Connection": "close"}
        ) from None
    except ValueError:
        raise RefusedError(
            "invalid_request",
            "the form cannot be parsed; it must be ASCII with percent-encoded UTF-8, and have at most "
            f"{_MAX_PARAMETERS} parameters",
        ) from None
    form = dict(pairs)
    if len(form) < len(pairs):
        raise RefusedError("invalid_request", "the form has a parameter twice; send each parameter once")
    return form


def _refusal(error: RefusedError) -> Response:
    headers = {**JSON_HEADERS, **_UNCACHED, **error.headers}
    if error.status == 401:
        headers["WWW-Authenticate"] = 'Basic realm="polaris_spark"'
    body = OAuthError(error=error.error, error_description=str(error))
    return Response(error.status, headers, encode(body))
