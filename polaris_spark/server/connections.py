"""Client connections: uvicorn's connections, with a deadline for each state and limits on the bytes that a client can
send.

| state | the server waits for | deadline |
| --- | --- | --- |
| handshake | the TLS handshake | `HANDSHAKE_SECONDS`, enforced by the listener |
| head | a request line and headers | `HEAD_SECONDS` after the connection or the first byte of the request |
| request | the body, then the response | `requests.BODY_SECONDS` for the body, enforced by the application |
| idle | the next request | `IDLE_SECONDS`, enforced by uvicorn; the first byte begins the state head |
| lingering | the client to read a response that was sent before its whole request arrived | `LINGER_SECONDS` |
| writing, closing | the client to read the response | `flush_seconds` of the bytes still to be sent |

The server calls `expire` once a second for each connection. This method enforces all deadlines, except those that
something else enforces according to the table.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from polaris_spark.rest.messages import ErrorModel, ErrorResponse, encode

HEAD_BYTES: Final = 64 * 1024
"""Maximum size of a request line with its headers, in bytes."""

MAX_HEADERS: Final = 100
"""Maximum number of headers of a request."""

MAX_PIPELINED: Final = 16
"""Maximum number of requests on one connection that wait until an earlier request is answered. Further requests are not
read. After the responses to the requests that were read, an error response is sent and the connection is closed."""

HANDSHAKE_SECONDS: Final = 20.0
HEAD_SECONDS: Final = 20.0
IDLE_SECONDS: Final = 75
LINGER_SECONDS: Final = 2.0
FLUSH_SECONDS: Final = 30.0
FLUSH_BYTES_PER_SECOND: Final = 64 * 1024

_BODY: Final = (b"content-length", b"transfer-encoding")
_HEADER_EXTRA: Final = len(": \r\n")


class _State(Enum):
    HEAD = "a request line and headers are awaited"
    REQUEST = "a request is being read or answered"
    LINGERING = "the answer was sent before the whole request was read; further bytes are discarded"


class _HeadTooLargeError(Exception):
    """The head of a request exceeds `HEAD_BYTES` or `MAX_HEADERS`."""


def flush_seconds(size: int) -> float:
    """Return the time limit for a client to read `size` bytes, in seconds."""
    return FLUSH_SECONDS + size / FLUSH_BYTES_PER_SECOND


class BoundedConnection(HttpToolsProtocol):
    """An HTTP connection with deadlines and size limits. The module's docstring lists its states and deadlines."""

    largest = 0
    """Maximum size of a request body, in bytes. Set by the subclass that `bounded` creates."""
    released: Callable[[], None] | None = None
    """Function to call when the connection has ended; None for no call."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Called when a client has connected."""
        super().connection_made(transport)
        self._answers = _Answers(self)
        self._body_awaited = False
        self._deaf = False  # True if further bytes are discarded
        self._problem = ""  # why this class refused a request; sent as the last response
        self._flush_deadline = math.inf
        self._await_head()

    def _await_head(self) -> None:
        self._state = _State.HEAD
        self._received = self._head = 0
        self._deadline = self.loop.time() + HEAD_SECONDS

    @property
    def busy(self) -> bool:
        """Whether the headers of a request have arrived, and the response to the request is not complete yet."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def answering(self) -> bool:
        """Whether a response has begun but is not complete yet."""
        return self.busy and bool(self.cycle.response_started)

    @property
    def idle_since(self) -> float | None:
        """Time since which the connection has been idle, in seconds of the event loop's clock; None if it is not
        idle."""
        waiting = self.timeout_keep_alive_task
        return None if waiting is None or self.transport.is_closing() else waiting.when() - IDLE_SECONDS

    @property
    def head_awaited_since(self) -> float | None:
        """Time since which the connection has been waiting for the head of a request, in seconds of the event loop's
        clock. None if it is not waiting for a head, or if the response to an earlier request is not complete yet."""
        if self._state is not _State.HEAD or self.busy or self.transport.is_closing():
            return None
        return self._deadline - HEAD_SECONDS

    # Requests

    def data_received(self, data: bytes) -> None:
        """Called when the client has sent bytes."""
        if self._deaf:
            return
        if self._state is _State.REQUEST and not self.busy:
            self._await_head()  # bytes that begin no request, such as empty lines, do not extend the deadline
        self._received += len(data)
        super().data_received(data)
        if self.transport.is_closing() or self._deaf:
            return
        if self._state is _State.HEAD and self._received > HEAD_BYTES:
            self._refuse_head()
        elif self._received > 2 * (self.largest + HEAD_BYTES):
            # The framing of chunks may be as long as their content. The application counts only the content.
            message = f"the body has more than {self.largest} bytes, the maximum of this server"
            self._refuse(413, "RequestTooLargeException", message)

    def on_message_begin(self) -> None:
        """Called when a request begins."""
        super().on_message_begin()
        self._await_head()

    def on_url(self, url: bytes) -> None:
        """Called when a part of the request line has arrived."""
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called when a header has arrived. Trailers after a body are ignored, so that they do not fill memory."""
        if self._state is _State.HEAD:
            self._count_head(len(name) + len(value) + _HEADER_EXTRA)
            super().on_header(name, value)
            if len(self.headers) > MAX_HEADERS:
                raise _HeadTooLargeError

    def _count_head(self, size: int) -> None:
        self._head += size
        if self._head > HEAD_BYTES:
            raise _HeadTooLargeError

    def on_headers_complete(self) -> None:
        """Called when all headers of a request have arrived."""
        if self.parser.should_upgrade() and any(
            name in _BODY and value != b"0" for name, value in self.headers
        ):
            # The parser treats the body as data of the other protocol, so the body would be lost.
            self._problem = "this server does not upgrade connections; send the request without Upgrade"
        elif len(self.pipeline) >= MAX_PIPELINED:
            self._problem = (
                f"more than {MAX_PIPELINED} requests are waiting for responses on this connection; read the responses "
                "first"
            )
        if self._problem:
            raise ValueError(self._problem)  # ends the parsing; uvicorn replaces the message by its own
        super().on_headers_complete()
        self._state, self._deadline = _State.REQUEST, math.inf
        self._body_awaited = True
        self.cycle.transport = self._answers  # type: ignore[assignment]  # has the methods that a cycle uses
        # A response that begins before the whole body has arrived announces the end of the connection.
        self._may_stay = self.cycle.keep_alive and not self.parser.should_upgrade()
        self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """Called when a whole request has arrived."""
        self._body_awaited = False
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._may_stay
        super().on_message_complete()

    def eof_received(self) -> None:
        """Called when the client has closed its sending side. Returning None makes the event loop close the connection,
        because the client has probably ended."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when the connection is lost."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._answers.connection = None
        self.scope = self.headers = None  # type: ignore[assignment]  # frees memory: nothing uses scope and headers any more
        if self.released is not None:
            self.released()

    # Answers

    def on_response_complete(self) -> None:
        """Called when the whole response to a request was written to the transport."""
        if self._state is not _State.LINGERING:
            super().on_response_complete()
            if self._problem and not self.busy:
                self.send_400_response(self._problem)

    def end(self) -> None:
        """Close the connection after the client has read all responses that were written."""
        if not (self._body_awaited or self._deaf):
            self.transport.close()
        elif self._state is not _State.LINGERING and not self.transport.is_closing():
            # Closing with unread bytes would reset the connection, and the client would lose the response.
            self._state, self._deadline = _State.LINGERING, self.loop.time() + LINGER_SECONDS
            self._deaf = True
            self._unset_keepalive_if_required()
            self.flow.resume_reading()
            if self.transport.can_write_eof():
                self.transport.write_eof()

    def pause_writing(self) -> None:
        """Called when the write buffer is full, because the client reads slowly."""
        super().pause_writing()
        self._flush_deadline = self._flushed_by()

    def resume_writing(self) -> None:
        """Called when the client has read most of the write buffer."""
        super().resume_writing()
        self._flush_deadline = math.inf

    def _flushed_by(self) -> float:
        return self.loop.time() + flush_seconds(self.transport.get_write_buffer_size())

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is not valid HTTP, or whose head is too large."""
        if self._state is _State.HEAD and (self._head > HEAD_BYTES or len(self.headers or ()) > MAX_HEADERS):
            self._refuse_head()
        else:
            self._refuse(400, "BadRequestException", self._problem or msg)

    def _refuse_head(self) -> None:
        self._refuse(
            431,
            "RequestHeaderFieldsTooLargeException",
            f"the request's head has more than {HEAD_BYTES} bytes or more than {MAX_HEADERS} headers",
        )

    def _refuse(self, status: int, type: str, message: str) -> None:
        """Send an error response without calling the application, then close the connection.

        There are two exceptions. If the newest request has arrived completely and is not answered yet, this method
        sends no error: all requests that have arrived are answered, then the connection is closed. If the body of the
        newest request has not arrived completely, and an earlier request is not answered yet or the newest request's
        own response has begun, the connection is closed at once.
        """
        if self.busy and not self._body_awaited:
            self._stop_reading()
            return
        if self.busy:
            if self.pipeline or self.cycle.response_started:
                self.transport.close()
                return
            # The application stops waiting for the body, and its response is discarded.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = encode(ErrorResponse(ErrorModel(message, type, status))).encode()
        head = (
            f"HTTP/1.1 {status} Refused\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self._deaf = True
        self.end()

    def _stop_reading(self) -> None:
        """Answer the requests that have arrived completely, then close the connection. Read no more requests."""
        if not self._problem:  # otherwise its error response closes the connection
            self.cycle.keep_alive = False
        self._deaf = True
        self._state, self._deadline = _State.REQUEST, math.inf
        self.flow.pause_reading()

    # Deadlines

    def expire(self, now: float) -> None:
        """Enforce the deadlines of this connection.

        Args:
            now: time of the event loop, in seconds.
        """
        if self.transport.is_closing():
            if self._flush_deadline == math.inf:
                self._flush_deadline = self._flushed_by()
        elif now >= self._deadline:
            if self._state is _State.LINGERING:
                self.transport.abort()
            elif self.busy:
                self._stop_reading()
            else:
                message = f"the request's headers did not arrive within {HEAD_SECONDS:.0f} s"
                self._refuse(408, "RequestTimeoutException", message)
        if now >= self._flush_deadline:
            self.transport.abort()

    def shutdown(self) -> None:
        """End this connection because the server shuts down. Answer a request that has arrived completely; drop a
        request that has not."""
        if self.busy and not self._body_awaited:
            self._stop_reading()
        elif self._state is _State.REQUEST and not self.busy:
            self.transport.close()
        else:
            self.transport.abort()


class _Answers:
    """The transport for uvicorn's objects that handle one request (`RequestResponseCycle`). Its `close` calls
    `BoundedConnection.end`."""

    def __init__(self, connection: BoundedConnection) -> None:
        self.connection: BoundedConnection | None = connection

    def write(self, data: bytes) -> None:
        if self.connection is not None:
            self.connection.transport.write(data)

    def is_closing(self) -> bool:
        """Whether the connection is closed or is being closed. If True, nothing more can be sent."""
        return self.connection is None or self.connection.transport.is_closing()

    def close(self) -> None:
        """Close the connection after the client has read the bytes that were written."""
        if self.connection is not None:
            self.connection.end()


def bounded(largest: int) -> type[Any]:
    """Return a subclass of `BoundedConnection` whose request bodies have at most `largest` bytes."""
    return type("Connection", (BoundedConnection,), {"largest": largest})
