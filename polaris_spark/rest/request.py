"""A request of the REST protocol, taken apart, and the response to it."""

from __future__ import annotations

import hashlib
import uuid
from typing import NamedTuple

from polaris_spark.commits.change import Operation
from polaris_spark.errors import BadRequestError


class Request(NamedTuple):
    """One request; header names are lower case."""

    method: str
    path: str
    params: dict[str, str]
    """The variable parts of the path, unescaped."""
    query: dict[str, str]
    headers: dict[str, str]
    body: str | None
    principal: str

    def operation(self) -> Operation:
        """Who asks for what; protected against repetition where the client sent an `Idempotency-Key`.

        Raises:
            BadRequestError: the key is not a UUIDv7. Others are not ordered by time, so that they would be forgotten
                at once or never.
        """
        text = self.headers.get("idempotency-key")
        if not text:
            return Operation(b"", self.principal)
        try:
            id = uuid.UUID(text)
        except ValueError as error:
            raise BadRequestError(f"Idempotency-Key {text[:80]!r} is not a UUID") from error
        if id.version != 7 or len(text) != 36:
            raise BadRequestError(f"Idempotency-Key {text[:80]!r} is not a UUIDv7 in its usual form")
        digest = hashlib.blake2b(digest_size=12)
        for part in (
            self.method,
            self.path,
            *(f"{k}={v}" for k, v in sorted(self.query.items())),
            self.body or "",
        ):
            digest.update(part.encode(errors="surrogatepass"))
            digest.update(b"\0")
        return Operation(id.bytes, self.principal, digest.digest())


class Response(NamedTuple):
    """Status, headers and body (JSON text, or empty)."""

    status: int
    headers: dict[str, str]
    body: str


NO_CONTENT = Response(204, {}, "")
JSON_HEADERS = {"Content-Type": "application/json"}


def json_response(body: str, status: int = 200) -> Response:
    """A response with a JSON body."""
    return Response(status, JSON_HEADERS, body)
