"""Conversion of an HTTP request to the arguments of the protocol's handler, and refusal of malformed requests."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

from polaris_spark.catalog.files.memory import Claim, parsed_bytes
from polaris_spark.commit_notes import HEADER
from polaris_spark.errors import (
    BadRequestError,
    ForbiddenError,
    RequestTimeoutError,
    RequestTooLargeError,
    UnsupportedMediaTypeError,
)
from polaris_spark.rest.access import is_loopback
from polaris_spark.rest.handler import STATE_HEADER

BODY_SECONDS: Final = 60.0
"""Time limit for a client to send a body, in seconds."""

_HOST: Final = re.compile(
    r"(?:\[(?P<address>[0-9a-fA-F:.]+)\]|(?P<name>[^\[\]:@/?#\s]+))(?::[0-9]{1,5})?", re.ASCII
)
_MAX_PARAMETERS: Final = 64
_DIGITS: Final = 19

_SMALL: Final = 64 * 1024
"""Maximum size, in bytes, of a body that does not count against the memory limit. The memory of such bodies is bounded
by the number of connections."""


def path_of(request: Request) -> str:
    """Return the path as the client sent it, without unescaping, because names can contain escaped slashes.

    Raises:
        BadRequestError: the path is not ASCII.
    """
    raw: bytes = request.scope["raw_path"]
    try:
        return raw.decode("ascii").removeprefix("/")
    except UnicodeDecodeError as error:
        raise BadRequestError("the path is not ASCII; other characters must be percent-encoded") from error


def query_of(request: Request) -> dict[str, str]:
    """Return the decoded parameters of the query by name.

    Raises:
        BadRequestError: the parameters are not UTF-8, are more than 64, or contain one name twice.
    """
    raw: bytes = request.scope["query_string"]
    if not raw:
        return {}
    try:
        pairs = parse_qsl(
            raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_PARAMETERS
        )
    except ValueError as error:  # including UnicodeDecodeError
        raise BadRequestError(f"the query string cannot be parsed: {error}") from error
    query = dict(pairs)
    if len(query) < len(pairs):
        twice = next(name for i, (name, _) in enumerate(pairs) if name in dict(pairs[:i]))
        raise BadRequestError(f"the query string has the parameter {twice!r} twice")
    return query


def headers_of(request: Request) -> dict[str, str]:
    """Return the headers by name in lower case. The values of a repeated header are joined by commas (RFC 9110,
    5.3)."""
    headers: dict[str, str] = {}
    for name, value in request.headers.items():
        if name == STATE_HEADER or name.startswith(HEADER):
            with contextlib.suppress(UnicodeDecodeError):
                value = value.encode("latin-1").decode()  # clients send other characters than ASCII as UTF-8
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


async def body_of(request: Request, limit: int, claim: Claim) -> str | None:
    """Read the body and return it as text, or None if it is empty.

    If the body is large, memory is reserved before the body is read, and more memory is reserved for parsing it
    afterwards.

    Args:
        request: a request whose body has not been read yet.
        limit: maximum size of the body, in bytes.
        claim: the request's share of the server's memory limit.
    Raises:
        RequestTooLargeError: the body is larger than `limit`, or parsing it would need more memory than the server has
            for all requests together.
        RequestTimeoutError: the body did not arrive within `BODY_SECONDS`.
        TryAgainError: the memory is in use by other requests and did not become free in time.
        UnsupportedMediaTypeError: the body's Content-Type is not application/json, or the body is compressed.
        BadRequestError: the body is not UTF-8.
        ClientDisconnect: the client closed the connection.
    """
    size = _declared(request, limit)
    if size:
        _check_type(request)
    body = await _received(request, limit, claim, size)
    if not body:
        return None
    if not size:
        _check_type(request)
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise BadRequestError(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    if len(body) > _SMALL:
        await claim.reserve(parsed_bytes(text))
    return text


async def bytes_of(request: Request, limit: int, claim: Claim) -> bytes:
    """Read the body, whatever its type; see `body_of` for the arguments.

    Raises:
        RequestTooLargeError, RequestTimeoutError, TryAgainError, ClientDisconnect: see `body_of`.
    """
    return bytes(await _received(request, limit, claim, _declared(request, limit)))


def _declared(request: Request, limit: int) -> int | None:
    """Return the size of the body that the headers declare, in bytes; None if they declare none.

    Raises:
        RequestTooLargeError: the size is larger than `limit`, or is no number.
    """
    declared = request.headers.get("content-length", "")
    size = int(declared) if declared.isdecimal() and len(declared) < _DIGITS else None
    if declared and (size is None or size > limit):
        raise _too_large(limit)
    return size


async def _received(request: Request, limit: int, claim: Claim, size: int | None) -> bytearray:
    if size and size > _SMALL:
        await claim.reserve(size)
    try:
        return await asyncio.wait_for(_read(request, limit, claim, size or _SMALL), BODY_SECONDS)
    except asyncio.TimeoutError:
        raise RequestTimeoutError(f"the body did not arrive within {BODY_SECONDS:.0f} s") from None


async def _read(request: Request, limit: int, claim: Claim, claimed: int) -> bytearray:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise _too_large(limit)
        if len(body) > claimed:  # the client did not declare the length
            await claim.reserve(len(body))
            claimed += len(body)
    return body


def _too_large(limit: int) -> RequestTooLargeError:
    return RequestTooLargeError(f"the body has more than {limit} bytes, the maximum of this server")


def _check_type(request: Request) -> None:
    """Refuse a body whose Content-Type is not JSON, or that is compressed.

    The Content-Type protects users with a browser: a web page of another origin can send JSON only after a preflight
    request, which this server refuses. So a malicious page cannot send requests in the name of the user who views it.

    Raises:
        UnsupportedMediaTypeError: the body is refused.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise UnsupportedMediaTypeError(
            f"the body's Content-Type is {kind[:80]!r}; it must be application/json"
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise UnsupportedMediaTypeError(
            f"the body's Content-Encoding is {encoding[:80]!r}; send the body without encoding"
        )


def require_local_host(request: Request) -> None:
    """Refuse a request that was not sent to a loopback host (`has_local_host`).

    Raises:
        ForbiddenError: the `Host` header does not contain a loopback host, or there is not exactly one such header.
    """
    if not has_local_host(request):
        raise ForbiddenError(
            "this server has no tokens, so it accepts only requests to a loopback host, such as localhost, in one Host "
            "header"
        )


def has_local_host(request: Request) -> bool:
    """Whether a request has one `Host` header, which is a loopback address or `localhost`. A malicious web page could
    reach this server by a host name that resolves to a loopback address (DNS rebinding)."""
    hosts = request.headers.getlist("host")
    host = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    return host is not None and is_loopback(host["address"] or host["name"])


def accepts_gzip(request: Request) -> bool:
    """Whether the client accepts responses that are compressed with gzip (RFC 9110, 12.5.3)."""
    accepted: dict[str, bool] = {}
    for item in request.headers.get("accept-encoding", "").lower().split(","):
        coding, _, weight = item.partition(";")
        accepted[coding.strip()] = weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return accepted.get("gzip", accepted.get("*", False))


__all__ = [
    "ClientDisconnect",
    "accepts_gzip",
    "body_of",
    "bytes_of",
    "headers_of",
    "path_of",
    "query_of",
    "require_local_host",
]
