"""The ASGI application: every request of the protocol is answered by the handler that answers in process.

`/healthz` says whether the store can be read, to everyone. `/metrics` is open on loopback and needs a token elsewhere.
"""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from polaris_spark.catalog.catalog import Catalog
from polaris_spark.errors import (
    NotAuthorizedError,
    PolarisError,
    RequestError,
    RequestTimeoutError,
    RequestTooLargeError,
    TryAgainError,
)
from polaris_spark.rest import openapi
from polaris_spark.rest.errors import response_of
from polaris_spark.rest.handler import ROUTER, handle
from polaris_spark.rest.messages import ErrorModel, ErrorResponse, encode
from polaris_spark.rest.request import JSON_HEADERS
from polaris_spark.rest.request import Response as Answer
from polaris_spark.server import requests
from polaris_spark.server.catalogs import ServedCatalogs
from polaris_spark.server.health import Health
from polaris_spark.server.metrics import Metrics
from polaris_spark.server.tokens import Tokens

MAX_BODY: Final = 16 * 2**20
"""Bytes of the largest body that is taken, by default."""

_COMPRESS_FROM: Final = 2_048
"""Bytes from which an answer is compressed for clients that take it so."""

_WAITING_PER_THREAD: Final = 32
"""Requests that may be under way for each thread before others are sent away for a while."""


class Arguments(NamedTuple):
    """What the handler is called with."""

    method: str
    path: str
    query: Mapping[str, str]
    body: str | None
    headers: Mapping[str, str]
    principal: str


class Protocol:
    """Answers the REST protocol."""

    def __init__(
        self,
        catalogs: ServedCatalogs,
        tokens: Tokens | None,
        pool: ThreadPoolExecutor,
        threads: int,
        max_body: int,
    ) -> None:
        self.catalogs = catalogs
        self.tokens = tokens
        self.metrics = Metrics()
        self._pool = pool
        self._most = threads * _WAITING_PER_THREAD
        self._max_body = max_body
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        started = time.perf_counter()
        with self.metrics.in_flight.track_inprogress():
            try:
                response = await self._respond(request)
            except ClientDisconnect:
                return
            except Exception as error:
                response = refusal(error)
        seconds = time.perf_counter() - started
        self.metrics.record(request.method, _route(request), response.status_code, seconds)
        await response(scope, receive, send)

    def principal(self, request: Request) -> str:
        """Who sends a request.

        Raises:
            NotAuthorizedError: the request has no token that is known.
            ForbiddenError: without tokens, it was sent to another name than loopback's.
        """
        if self.tokens is None:
            requests.require_local_host(request)
            return self.catalogs.session.principal
        given = request.headers.getlist("authorization")
        return self.tokens.principal(given[0] if len(given) == 1 else None)

    async def _respond(self, request: Request) -> Response:
        principal = self.principal(request)
        arguments = Arguments(
            request.method,
            requests.path_of(request),
            requests.query_of(request),
            await requests.body_of(request, self._max_body),
            requests.headers_of(request),
            principal,
        )
        gzipped = requests.accepts_gzip(request)
        # Counted from here on: clients that send slowly take no thread, so they must not keep others away.
        if self._under_way >= self._most:
            raise TryAgainError("too many requests are under way; nothing was changed")
        self._under_way += 1
        try:
            work = partial(self._answer, arguments, gzipped=gzipped)
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._under_way -= 1

    def _answer(self, arguments: Arguments, *, gzipped: bool) -> Response:
        try:
            catalog, query = self._catalog(arguments)
        except Exception as error:
            return as_http(response_of(error), gzipped=gzipped)
        method, path, _, body, headers, principal = arguments
        answer = handle(catalog, method, path, query=query, body=body, headers=headers, principal=principal)
        return as_http(answer, gzipped=gzipped)

    def _catalog(self, arguments: Arguments) -> tuple[Catalog, Mapping[str, str]]:
        """The catalog that a request is for, and the query that it understands."""
        query = arguments.query
        try:
            match = ROUTER.find(arguments.method, arguments.path)
        except RequestError:
            return self.catalogs.default, query  # the handler says what is wrong
        if match.template != "config" or match.prefix is not None:
            return self.catalogs.choose(match.prefix), query
        catalog = self.catalogs.of_warehouse(query.get("warehouse"))
        if catalog is not self.catalogs.default:
            query = {**query, "warehouse": catalog.name}
        return catalog, query


def as_http(answer: Answer, *, gzipped: bool) -> Response:
    """An answer of the handler as an HTTP response."""
    content, headers = answer.body.encode(), {**answer.headers, **_ALWAYS}
    if gzipped and len(content) >= _COMPRESS_FROM:
        content = gzip.compress(content, compresslevel=1)
        headers["Content-Encoding"] = "gzip"
        if "ETag" in headers:  # other bytes under the same strong tag would be wrong (RFC 9110, 8.8.3.3)
            headers["ETag"] = f"W/{headers['ETag']}"
    return Response(content, answer.status, headers)


_ALWAYS = {"Vary": "Accept-Encoding", "X-Content-Type-Options": "nosniff"}


def refusal(error: Exception) -> Response:
    """The response to a request that never reached the handler."""
    answer = response_of(error)
    headers = dict(answer.headers)
    if answer.status == NotAuthorizedError.status:
        headers["WWW-Authenticate"] = 'Bearer realm="polaris_spark"'
    elif isinstance(error, TryAgainError):
        headers["Retry-After"] = "1"
    elif answer.status in _UNREAD:
        headers["Connection"] = "close"
    return as_http(answer._replace(headers=headers), gzipped=False)


_UNREAD = (RequestTimeoutError.status, RequestTooLargeError.status)
"""Statuses after which the rest of the body is not read."""


def _route(request: Request) -> str | None:
    try:
        return ROUTER.find(request.method, requests.path_of(request)).template
    except RequestError:
        return None


def create_app(
    catalogs: ServedCatalogs,
    pool: ThreadPoolExecutor,
    *,
    tokens: Tokens | None,
    threads: int,
    local: bool,
    max_body: int = MAX_BODY,
) -> Starlette:
    """The application.

    Args:
        catalogs: what is served.
        pool: where requests are handled; it has `threads` threads.
        tokens: who may send requests; None lets everyone who can reach the server, as the session's principal.
        threads: bounds how many requests may wait, too.
        local: whether only this machine can reach the server.
        max_body: bytes of the largest body.
    """
    protocol = Protocol(catalogs, tokens, pool, threads, max_body)
    health = Health(catalogs.check)

    async def healthz(_: Request) -> Response:
        readable = await health.readable()
        text = '{"status":"ok"}' if readable else '{"status":"unavailable"}'
        return as_http(Answer(200 if readable else 503, JSON_HEADERS, text), gzipped=False)

    async def metrics(request: Request) -> Response:
        if local and tokens is None:
            requests.require_local_host(request)
        elif not local:
            protocol.principal(request)
        return Response(protocol.metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def description(request: Request) -> Response:
        protocol.principal(request)
        gzipped = requests.accepts_gzip(request)
        return as_http(Answer(200, JSON_HEADERS, openapi.text()), gzipped=gzipped)

    return Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/metrics", metrics),
            Route("/openapi.json", description),
            Mount("/", app=protocol),
        ],
        exception_handlers={PolarisError: _tell, HTTPException: _tell_http},
    )


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
