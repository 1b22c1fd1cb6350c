"""The ASGI application. It passes HTTP requests to the same handler that answers requests within a process.

`/healthz` returns whether the server can serve requests, and needs no token. `/metrics` needs a token, unless the
server listens on a loopback address.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from polaris_spark.access.jwts import ExpiredTokenError
from polaris_spark.catalog.files.memory import Claim, MemoryBound
from polaris_spark.errors import (
    BadRequestError,
    NotAuthorizedError,
    NotFoundError,
    PolarisError,
    RealmStateError,
    RequestError,
    RequestTimeoutError,
    RequestTooLargeError,
    TryAgainError,
)
from polaris_spark.rest import openapi, unsupported
from polaris_spark.rest.access import Caller
from polaris_spark.rest.errors import response_of
from polaris_spark.rest.handler import handle
from polaris_spark.rest.messages import ErrorModel, ErrorResponse, encode
from polaris_spark.rest.request import JSON_HEADERS, PendingResponse
from polaris_spark.rest.request import Response as Answer
from polaris_spark.rest.router import Match, Router
from polaris_spark.rest.session import Session
from polaris_spark.server import requests
from polaris_spark.server.authentication import FAILURES_PER_ADDRESS, REFUSED
from polaris_spark.server.catalogs import ServedCatalogs
from polaris_spark.server.health import Health
from polaris_spark.server.logins import Authenticator
from polaris_spark.server.metrics import CHANGES, Metrics
from polaris_spark.server.served_realms import Issuing, Logins, OneRealm, Realms, ServedRealm
from polaris_spark.server.waits import Waits

MAX_BODY: Final = 16 * 2**20
"""Default maximum size of a request body, in bytes."""

_COMPRESS_FROM: Final = 2_048
"""Minimum size of a response that is compressed, in bytes. Only responses to clients that accept gzip are
compressed."""

_LARGE_ANSWER: Final = 64 * 1024
"""Minimum size, in bytes, of a response that counts against the memory limit until the client has read it. The memory
of smaller responses is bounded by the number of connections."""

_WAITING_PER_THREAD: Final = 32
"""Maximum number of requests in progress, per thread of the server. Further requests get status 503 (try again)."""

_READERS_OF: Final = 4
"""One of every `_READERS_OF` threads, and at least one, is reserved for requests that change nothing."""


class Arguments(NamedTuple):
    """The arguments to call the handler with, the catalogs of the realm, and the route that matches the request."""

    catalogs: ServedCatalogs
    route: Match
    method: str
    path: str
    query: Mapping[str, str]
    body: str | None
    headers: Mapping[str, str]
    caller: Caller


class Protocol:
    """The ASGI application of the REST protocol."""

    def __init__(
        self,
        realms: Realms,
        router: Router,
        metrics: Metrics,
        pool: ThreadPoolExecutor,
        threads: int,
        max_body: int,
        memory: MemoryBound,
    ) -> None:
        self.realms = realms
        self.router = router
        self.metrics = metrics
        self._pool = pool
        self._most = threads * _WAITING_PER_THREAD
        self.waits = Waits(pool, self._most)
        self._max_body = max_body
        self._memory = memory
        self._under_way = 0
        self._changes = asyncio.Semaphore(max(1, threads - max(1, threads // _READERS_OF)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        name, refused = "", None
        if self.realms.names is not None:
            try:
                name, scope = self.realms.names.of(scope)
            except BadRequestError as error:
                refused = error
        request = Request(scope, receive)
        route, label = _route(self.router, request), None
        with Claim(self._memory) as claim:
            with self.metrics.in_flight.track_inprogress():
                try:
                    if refused is not None:
                        raise refused
                    async with self.realms.using(name) as realm:
                        label = realm.name.label
                        response = await self._respond(request, realm, route, claim)
                except (ClientDisconnect, asyncio.CancelledError):  # at shutdown; the client is gone
                    return
                except Exception as error:
                    claim.give_back()
                    response = refusal(error)
            seconds = time.perf_counter() - started
            template = route.template if isinstance(route, Match) else None
            self.metrics.record(request.method, template, response.status_code, seconds, label)
            if len(response.body) < _LARGE_ANSWER:
                await response(scope, receive, send)
            else:
                await _send_and_wait(response, send)

    async def caller(self, request: Request) -> str | None:
        """Check the sender of a request outside the protocol. Return the name of the realm that the request names; None
        if the server serves only one.

        Raises:
            PolarisError: as for `caller_in`, or the request does not name a realm.
        """
        name = "" if self.realms.names is None else self.realms.names.of(request.scope)[0]
        async with self.realms.using(name) as realm:
            caller = await caller_in(realm, request)
            assert realm.catalogs is not None
            await self._check_serving(realm.catalogs, caller)
            return realm.name.label

    async def _check_serving(self, catalogs: ServedCatalogs, caller: Caller) -> None:
        """Check that a realm of a server of many realms is still served. This is for requests that the handler does not
        answer.

        Raises:
            PolarisError: as for `_require_serving`.
        """
        if self.realms.names is not None:
            run = asyncio.get_running_loop().run_in_executor
            await run(self._pool, self._require_serving, catalogs, caller)

    async def _respond(
        self, request: Request, realm: ServedRealm, route: Match | RequestError, claim: Claim
    ) -> Response:
        # Clients send the request for a token before they have a token.
        if isinstance(route, Match) and route.template == unsupported.TOKENS.path:
            answer = (
                unsupported.NO_TOKENS if realm.tokens is None else await realm.tokens.answer(request, claim)
            )
            return as_http(answer, gzipped=False)
        caller = await caller_in(realm, request)
        assert realm.catalogs is not None  # a realm that is not served accepts no caller
        if isinstance(route, RequestError):  # raised before the body is read
            await self._check_serving(realm.catalogs, caller)
            raise route
        arguments = Arguments(
            realm.catalogs,
            route,
            request.method,
            requests.path_of(request),
            requests.query_of(request),
            await requests.body_of(request, self._max_body, claim),
            requests.headers_of(request),
            caller,
        )
        gzipped = requests.accepts_gzip(request)
        answered = await self._counted(arguments, claim, gzipped=gzipped)
        if isinstance(
            answered, PendingResponse
        ):  # a waiting request does not count, because it uses no thread

            async def repeat(pending: PendingResponse) -> Response | PendingResponse:
                return await self._counted(arguments._replace(query=pending.query), claim, gzipped=gzipped)

            answered = await self.waits.answer(request, answered, repeat)
        return as_http(answered, gzipped=gzipped) if isinstance(answered, PendingResponse) else answered

    async def _counted(
        self, arguments: Arguments, claim: Claim, *, gzipped: bool
    ) -> Response | PendingResponse:
        # A request counts only from here on, because a client that sends its body slowly uses no thread.
        if self._under_way >= self._most:
            raise TryAgainError(
                f"{self._under_way} requests are in progress, the maximum of this server (--threads); nothing was "
                "changed, try again"
            )
        self._under_way += 1
        try:
            return await self._in_thread(arguments, claim, gzipped=gzipped)
        finally:
            self._under_way -= 1

    async def _in_thread(
        self, arguments: Arguments, claim: Claim, *, gzipped: bool
    ) -> Response | PendingResponse:
        """Handle a request in a thread of the pool. Some threads are reserved for reads, because changes can wait for
        the database for a long time."""
        run = asyncio.get_running_loop().run_in_executor
        if arguments.method in CHANGES:
            async with self._changes:
                return await run(self._pool, partial(self._answer, arguments, claim, gzipped=gzipped))
        return await run(self._pool, partial(self._answer, arguments, claim, gzipped=gzipped))

    def _answer(self, arguments: Arguments, claim: Claim, *, gzipped: bool) -> Response | PendingResponse:
        changes = arguments.method in CHANGES
        if changes:
            claim.require_room()
        with claim.charged():
            response = self._handled(arguments, gzipped=gzipped)
        if isinstance(response, PendingResponse):
            return response
        size = len(response.body)
        claim.answer(size if size >= _LARGE_ANSWER else 0, changed=changes)
        return response

    def _handled(self, arguments: Arguments, *, gzipped: bool) -> Response | PendingResponse:
        try:
            self._require_serving(arguments.catalogs, arguments.caller)  # before rows of the realm are read
            session, query = _session(arguments)
        except Exception as error:
            return refusal(error)
        _, _, method, path, _, body, headers, caller = arguments
        answer = handle(
            session.catalog,
            method,
            path,
            query=query,
            body=body,
            headers=headers,
            caller=caller,
            router=self.router,
            session=session,
        )
        return answer if isinstance(answer, PendingResponse) else as_http(answer, gzipped=gzipped)

    def _require_serving(self, catalogs: ServedCatalogs, caller: Caller) -> None:
        """Raise an error if the realm can no longer be used. If the server serves many realms, the error does not
        reveal that the realm exists."""
        try:
            catalogs.session.serving.require()
        except RealmStateError as error:
            if self.realms.names is None:
                raise
            raise not_served(caller) from error


def _session(arguments: Arguments) -> tuple[Session, Mapping[str, str]]:
    """Return the session of the catalog for a request, and the request's query. In the query, a warehouse location is
    replaced by the catalog's name."""
    query, route, catalogs = arguments.query, arguments.route, arguments.catalogs
    if route.template != "config" or route.prefix is not None:
        return catalogs.choose(route.prefix), query
    session = catalogs.of_warehouse(query.get("warehouse"))
    if session is not catalogs.default:
        query = {**query, "warehouse": session.catalog.name}
    return session, query


async def caller_in(realm: ServedRealm, request: Request) -> Caller:
    """Return the sender of a request. If the server has no authenticators, the sender is not an administrator.

    Raises:
        NotAuthorizedError: the server has authenticators, and none accepts the request's token.
        TooManyRequestsError: too many attempts from the sender's address failed.
        TryAgainError: the token cannot be verified now.
        ForbiddenError: the server has no authenticators, and the request was sent to a host other than loopback.
        NotFoundError: the server has no authenticators, and does not serve the realm.
    """
    if realm.authentication is None:
        requests.require_local_host(request)
        if realm.catalogs is None:
            raise NotFoundError(NOT_SERVED)
        return Caller(realm.catalogs.session.principal)
    login = await realm.authentication.login(request)
    return Caller(login.principal, login.role, roles=login.roles, is_verified=True, secret=login.secret)


NOT_SERVED = "this server does not serve the realm"


def not_served(caller: Caller) -> PolarisError:
    """Return the error for a realm that can no longer be used: the same error as for a realm that never existed."""
    return NotAuthorizedError(REFUSED) if caller.is_verified else NotFoundError(NOT_SERVED)


async def _send_and_wait(response: Response, send: Send) -> None:
    """Send a response, and wait until the client has read most of it. The response is sent in two parts: uvicorn
    accepts the second part, which is empty, only after the client has read most of the first part."""
    head = {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
    await send(head)
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    response.body = b""  # free the memory; the connection has a copy of the bytes still to be sent
    with contextlib.suppress(asyncio.CancelledError):  # the server shuts down
        await send({"type": "http.response.body", "body": b""})


def as_http(answer: Answer, *, gzipped: bool) -> Response:
    """Convert a response of the handler to an HTTP response, which is compressed if `gzipped` is True and the body is
    large."""
    content, headers = answer.body.encode(), {**answer.headers, **_ALWAYS}
    if gzipped and len(content) >= _COMPRESS_FROM:
        content = gzip.compress(content, compresslevel=1)
        headers["Content-Encoding"] = "gzip"
        if "ETag" in headers:  # different bytes must have different strong tags (RFC 9110, 8.8.3.3)
            headers["ETag"] = f"W/{headers['ETag']}"
    return Response(content, answer.status, headers)


_ALWAYS = {"Vary": "Accept-Encoding", "X-Content-Type-Options": "nosniff"}


def refusal(error: Exception) -> Response:
    """Return the HTTP response for an error. It is used for requests that did not reach the handler."""
    answer = response_of(error)
    headers = dict(answer.headers)
    if answer.status == NotAuthorizedError.status:
        reason = ', error="invalid_token"' if isinstance(error, ExpiredTokenError) else ""
        headers["WWW-Authenticate"] = f'Bearer realm="polaris_spark"{reason}'
    elif answer.status in _UNREAD:
        headers["Connection"] = "close"
    return as_http(answer._replace(headers=headers), gzipped=False)


_UNREAD = (RequestTimeoutError.status, RequestTooLargeError.status)
"""Response statuses after which the rest of the request's body is left unread."""


def _route(router: Router, request: Request) -> Match | RequestError:
    """Return the route of a request, or the error if no route matches. The error is returned and not raised, because
    the caller must check the token first."""
    try:
        return router.find(request.method, requests.path_of(request))
    except RequestError as error:
        return error


def create_app(
    catalogs: ServedCatalogs,
    pool: ThreadPoolExecutor,
    *,
    authenticators: Sequence[Authenticator] | None,
    threads: int,
    local: bool,
    memory: MemoryBound,
    max_body: int = MAX_BODY,
    failures_per_address: int = FAILURES_PER_ADDRESS,
    issuing: Issuing | None = None,
) -> Starlette:
    """Return the ASGI application of a server of one realm.

    Args:
        catalogs: the catalogs to serve.
        pool: pool of `threads` threads that handle requests.
        authenticators: identify the sender of a request. If None, requests need no token, and the log records the
            session's principal for changes.
        threads: number of threads. The maximum number of requests in progress is proportional to it.
        local: True if only this machine can reach the server.
        memory: limit on the memory of all requests together.
        max_body: maximum size of a request body, in bytes.
        failures_per_address: maximum number of failed logins from one address per minute; 0 for no limit.
        issuing: how tokens are issued; None if none are.
    """
    metrics = Metrics()
    given = None if authenticators is None else lambda _: authenticators
    logins = Logins(given, metrics, issuing, failures_per_address)
    realms = OneRealm(logins.realm(catalogs))
    protocol = Protocol(realms, catalogs.session.router, metrics, pool, threads, max_body, memory)
    return application(protocol, logins.close, local=local)


def application(protocol: Protocol, close: Callable[[], None], *, local: bool) -> Starlette:
    """Return the ASGI application of a server.

    Args:
        close: function that ends the server's other threads, for `app.state.close`.
        local: True if only this machine can reach the server.
    """
    health = Health(protocol.realms.check)

    async def healthz(_: Request) -> Response:
        return _of_health(await health.problem())

    async def metrics(request: Request) -> Response:
        realm = None
        if not (local and requests.has_local_host(request)):
            realm = await protocol.caller(request)
        text = protocol.metrics.text() if realm is None else protocol.metrics.text_of_realm(realm)
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def description(request: Request) -> Response:
        await protocol.caller(request)
        gzipped = requests.accepts_gzip(request)
        return as_http(Answer(200, JSON_HEADERS, openapi.text(protocol.router.routes)), gzipped=gzipped)

    app = Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/metrics", metrics),
            Route("/openapi.json", description),
        ],
        exception_handlers={PolarisError: _tell, HTTPException: _tell_http},
    )
    # A `Mount` cannot be used: its pattern does not match paths with line breaks, which names may contain.
    app.router.default = protocol
    app.state.waits = protocol.waits
    app.state.close = close
    app.router.redirect_slashes = False
    return app


def _of_health(problem: str) -> Response:
    found = {"status": "unavailable", "reason": problem} if problem else {"status": "ok"}
    return as_http(Answer(503 if problem else 200, JSON_HEADERS, encode(found)), gzipped=False)


def _tell(_: Request, error: Exception) -> Response:
    return refusal(error)


def _tell_http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    model = ErrorResponse(
        ErrorModel(error.detail, error.detail.replace(" ", "") + "Exception", error.status_code)
    )
    return as_http(
        Answer(error.status_code, {**JSON_HEADERS, **(error.headers or {})}, encode(model)), gzipped=False
    )
