"""From an HTTP request to the arguments of the protocol's handler: what is not well-formed is refused here."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

from polaris_spark.catalog.memory import Claim, parsed_bytes
from polaris_spark.errors import (
    BadRequestError,
    ForbiddenError,
    RequestTimeoutError,
    RequestTooLargeError,
    UnsupportedMediaTypeError,
)

BODY_SECONDS: Final = 60.0
"""How long a client may take to send a body."""

_HOST: Final = re.compile(
    r"(?:\[(?P<address>[0-9a-fA-F:.]+)\]|(?P<name>[^\[\]:@/?#\s]+))(?::[0-9]{1,5})?", re.ASCII
)
_MAX_PARAMETERS: Final = 64
_DIGITS: Final = 19

_SMALL: Final = 64 * 1024
"""Bytes up to which a body is not claimed: the number of connections bounds the memory of small bodies."""


def path_of(request: Request) -> str:
    """The path as the client wrote it, not unescaped: only so can names hold slashes.

    Raises:
        BadRequestError: it is not ASCII.
    """
    raw: bytes = request.scope["raw_path"]
    try:
        return raw.decode("ascii").removeprefix("/")
    except UnicodeDecodeError as error:
        raise BadRequestError("the path is not ASCII; other characters are percent-encoded") from error


def query_of(request: Request) -> dict[str, str]:
    """The decoded parameters of the query.

    Raises:
        BadRequestError: they are not UTF-8, too many, or one is given twice.
    """
    raw: bytes = request.scope["query_string"]
    if not raw:
        return {}
    try:
        pairs = parse_qsl(
            raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_PARAMETERS
        )
    except ValueError as error:  # UnicodeDecodeError is one
        raise BadRequestError(f"the query cannot be read: {error}") from error
    query = dict(pairs)
    if len(query) < len(pairs):
        twice = next(name for i, (name, _) in enumerate(pairs) if name in dict(pairs[:i]))
        raise BadRequestError(f"the query gives {twice!r} twice")
    return query


def headers_of(request: Request) -> dict[str, str]:
    """The headers by their lower-case names; the values of one that comes several times are joined (RFC 9110, 5.3)."""
    headers: dict[str, str] = {}
    for name, value in request.headers.items():
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


async def body_of(request: Request, limit: int, claim: Claim) -> str | None:
    """The body as text; None if there is none. A large one is claimed before it is read, and again as it is parsed.

    Args:
        request: whose body has not been read yet.
        limit: the most bytes that it may have.
        claim: the request's memory.
    Raises:
        RequestTooLargeError: it has more, or parsing it would take more memory than there is for all requests.
        RequestTimeoutError: it did not arrive in time.
        TryAgainError: other requests held the memory for too long.
        UnsupportedMediaTypeError: its Content-Type is not application/json, or it is compressed.
        BadRequestError: it is not UTF-8.
        ClientDisconnect: the client went away.
    """
    declared = request.headers.get("content-length", "")
    size = int(declared) if declared.isdecimal() and len(declared) < _DIGITS else None
    if declared and (size is None or size > limit):
        raise _too_large(limit)
    if size:
        _check_type(request)
    if size and size > _SMALL:
        await claim.reserve(size)
    try:
        body = await asyncio.wait_for(_read(request, limit, claim, size or _SMALL), BODY_SECONDS)
    except asyncio.TimeoutError:
        raise RequestTimeoutError(f"the body did not arrive within {BODY_SECONDS:.0f} s") from None
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


async def _read(request: Request, limit: int, claim: Claim, claimed: int) -> bytearray:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise _too_large(limit)
        if len(body) > claimed:  # its length was not declared
            await claim.reserve(len(body))
            claimed += len(body)
    return body


def _too_large(limit: int) -> RequestTooLargeError:
    return RequestTooLargeError(f"the body has more than {limit} bytes, the most that this server takes")


def _check_type(request: Request) -> None:
    """Only JSON: a web page of another origin cannot send that without asking first, so none can act for its reader."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise UnsupportedMediaTypeError(f"the body is {kind[:80]!r}; it must be application/json")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise UnsupportedMediaTypeError(f"the body is encoded with {encoding[:80]!r}; send it as it is")


def require_local_host(request: Request) -> None:
    """Refuse a request to another name than this machine's: a web page may have its own name resolve to loopback.

    Raises:
        ForbiddenError: the `Host` header names no loopback address, or there are several.
    """
    hosts = request.headers.getlist("host")
    host = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    if host is None or not is_loopback(host["address"] or host["name"]):
        raise ForbiddenError(
            "without tokens, this server answers to names of loopback only, such as localhost"
        )


def is_loopback(host: str) -> bool:
    """Whether a host is `localhost` or an address of loopback."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def accepts_gzip(request: Request) -> bool:
    """Whether the client takes answers compressed by gzip (RFC 9110, 12.5.3)."""
    for item in request.headers.get("accept-encoding", "").split(","):
        coding, _, weight = item.partition(";")
        if coding.strip().lower() in ("gzip", "*"):
            return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


__all__ = [
    "ClientDisconnect",
    "accepts_gzip",
    "body_of",
    "headers_of",
    "is_loopback",
    "path_of",
    "query_of",
    "require_local_host",
]
