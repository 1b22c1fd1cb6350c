"""A parsed request of the REST protocol, and the response to it."""

from __future__ import annotations

import hashlib
import uuid
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple

from polaris_spark.access.needs import Asked, Needs
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.entities.listing import Keep
from polaris_spark.commit_notes import Notes, merged
from polaris_spark.commits.change import Operation
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import BadRequestError
from polaris_spark.rest.access import Caller


class Request(NamedTuple):
    """One request. The names of its headers are in lower case."""

    method: str
    path: str
    params: Mapping[str, str]
    """The variable parts of the path by name (`namespace`, `table`, ...), unescaped."""
    query: dict[str, str]
    headers: dict[str, str]
    body: str | None
    caller: Caller
    session: object = None
    """The catalog's `rest.session.Session`, which routes of the extension need. None if the router has only routes of
    the Iceberg protocol."""
    keep: Keep | None = None
    """Chooses the children of a namespace that a list shows; None for all."""
    has_rules: bool = False
    """Whether the realm has access control."""
    allow: Callable[[Catalog, Needs, Callable[[], Asked]], Catalog] | None = None
    """Checks whether the caller may send a request that is contained in the body of this one, and returns the catalog
    with which to answer it. Raises an error if the caller may not. The arguments are the catalog, the needs of the
    contained request, and its parts. None if the realm has no access control."""

    @property
    def principal(self) -> str:
        """The caller's principal, which the log records."""
        return self.caller.principal

    @property
    def notes(self) -> Notes:
        """The client's notes on the change, such as a message.

        Raises:
            InputError: the notes are too many or too long, or cannot be printed.
        """
        return merged(self.caller.notes, self.headers)

    def operation(self) -> Operation:
        """Return the id, principal and fingerprint of the change that this request asks for. The id is the
        `Idempotency-Key` that the client sent, by which a repeated request is detected. Without a key, the id is empty.

        Raises:
            InputError: see `notes`.
            BadRequestError: the key is not a UUIDv7. The time in the key determines how long it is remembered, and only
                UUIDs of version 7 contain the time in the required form.
        """
        text = self.headers.get("idempotency-key")
        if not text:
            return Operation(b"", self.principal, notes=self.notes)
        try:
            id = uuid.UUID(text)
        except ValueError as error:
            raise BadRequestError(
                f"Idempotency-Key {text[:80]!r} is not a UUID; send a UUID of version 7"
            ) from error
        if id.version != 7 or len(text) != 36:
            raise BadRequestError(
                f"Idempotency-Key {text[:80]!r} must be a UUID of version 7, written with 32 hexadecimal digits and 4 "
                "hyphens"
            )
        digest = hashlib.blake2b(digest_size=12)
        for part in (
            self.method,
            self.path,
            *(f"{k}={v}" for k, v in sorted(self.query.items())),
            self.body or "",
        ):
            digest.update(part.encode(errors="surrogatepass"))
            digest.update(b"\0")
        return Operation(id.bytes, self.principal, digest.digest(), self.notes)


class Response(NamedTuple):
    """A response: HTTP status, headers and body (JSON text, or empty)."""

    status: int
    headers: dict[str, str]
    body: str


class NotModified(Response):
    """A response with status 304: the client already has the current version of a table. It depends only on the request
    and on the head of the branch."""

    _head: weakref.ref[CommitReader]

    @classmethod
    def of(cls, tag: str, head: CommitReader) -> NotModified:
        """Return the response to a client that already has the version of a table with the entity tag `tag`.

        Args:
            head: the head from which the response was computed. The response has only a weak reference to it.
        """
        made = cls(304, {"ETag": tag}, "")
        made._head = weakref.ref(head)
        return made

    def fresh(self) -> Response:
        """Return a copy of this response, so that the caller can change the headers."""
        return Response(self.status, dict(self.headers), self.body)

    def holds_at(self, head: CommitReader) -> bool:
        """Whether `head` is the head from which this response was computed. If True, the same request still gets this
        response."""
        return self._head() is head


class PendingResponse(Response):
    """The response to a request that waits for a commit (long polling). It is sent if no commit comes in time.

    The handler does not wait, because each transport waits in its own way: a session in the caller's thread, and the
    server without a thread. When the head has changed, the transport repeats the request with `query`.
    """

    query: Mapping[str, str]
    """Query of the repeated request."""
    wait_seconds: float
    """Maximum time to wait, in seconds."""
    key: Hashable
    """Pending responses with equal keys wait for the same commit."""
    _has_changed: Callable[[], bool]

    @classmethod
    def of(
        cls,
        response: Response,
        *,
        query: Mapping[str, str],
        wait_seconds: float,
        key: Hashable,
        has_changed: Callable[[], bool],
    ) -> PendingResponse:
        """Return a pending response.

        Args:
            response: the response if no commit comes in time.
            has_changed: reads the head, and returns whether the request should be repeated.
        """
        made = cls(*response)
        made.query, made.wait_seconds, made.key, made._has_changed = query, wait_seconds, key, has_changed
        return made

    def has_changed(self) -> bool:
        """Read the head, and return whether the request should be repeated. Return True if the head cannot be read: the
        repeated request then reports the error."""
        try:
            return self._has_changed()
        except Exception:
            return True


NO_CONTENT = Response(204, {}, "")
JSON_HEADERS = {"Content-Type": "application/json"}


def json_response(body: str, status: int = 200) -> Response:
    """Return a response with a JSON body."""
    return Response(status, JSON_HEADERS, body)
