"""A parsed request of the REST protocol, and the response to it."""

from __future__ import annotations

import hashlib
import uuid
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from polaris_spark.commits.change import Operation
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import BadRequestError
from polaris_spark.rest.access import Caller

if TYPE_CHECKING:
    from polaris_spark.rest.session import Session


class Request(NamedTuple):
    """One request. Header names are in lower case."""

    method: str
    path: str
    params: Mapping[str, str]
    """The variable parts of the path, unescaped."""
    query: dict[str, str]
    headers: dict[str, str]
    body: str | None
    caller: Caller
    session: Session | None = None
    """The open catalog; None if only its routes of the Iceberg protocol are answered."""

    @property
    def principal(self) -> str:
        """The caller's principal, for the log."""
        return self.caller.principal

    def operation(self) -> Operation:
        """Return the operation of this request. If the client sent an `Idempotency-Key`, a repetition is detected.

        Raises:
            BadRequestError: the key is not a UUIDv7. Other UUIDs are not ordered by time, so they would be forgotten at
                once or never.
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


class NotModified(Response):
    """A response with status 304, which depends only on the request and the head of the branch."""

    _head: weakref.ref[CommitReader]

    @classmethod
    def of(cls, tag: str, head: CommitReader) -> NotModified:
        """Return the response to a client that has the version with this entity tag.

        Args:
            head: the head that the response was computed from; kept as a weak reference.
        """
        made = cls(304, {"ETag": tag}, "")
        made._head = weakref.ref(head)
        return made

    def fresh(self) -> Response:
        """Return a copy. The caller may change its headers."""
        return Response(self.status, dict(self.headers), self.body)

    def holds_at(self, head: CommitReader) -> bool:
        """Whether the same request has this response at `head` too; False if that is not certain."""
        return self._head() is head


NO_CONTENT = Response(204, {}, "")
JSON_HEADERS = {"Content-Type": "application/json"}


def json_response(body: str, status: int = 200) -> Response:
    """Return a response with a JSON body."""
    return Response(status, JSON_HEADERS, body)
