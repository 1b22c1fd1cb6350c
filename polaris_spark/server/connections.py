"""uvicorn's connections with bounds on what a client may send before it is authorised, and errors as the model has
them."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from polaris_spark.rest.messages import ErrorModel, ErrorResponse, encode

HEAD_BYTES: Final = 64 * 1024
"""The most bytes of a request line with its headers."""

_BODY: Final = (b"content-length", b"transfer-encoding")

HEAD_SECONDS: Final = 20.0
"""How long a client may take to send them."""


class BoundedConnection(HttpToolsProtocol):
    """A connection whose requests have bounded heads, which come in bounded time; and bounded bodies, chunks included.

    `largest` is set by a subclass: bytes of the largest body.
    """

    largest = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """A client has come."""
        super().connection_made(transport)
        self._in_head = True
        self._received = 0
        self._timer: asyncio.TimerHandle | None = None
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """A client has sent something."""
        self._received += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_head and self._received > HEAD_BYTES:
            self._refuse(431, "RequestHeaderFieldsTooLargeException", "the request's headers are too large")
        elif self._received > 2 * (self.largest + HEAD_BYTES):
            # Chunks may come with as much around them as in them; the application counts what is in them.
            self.transport.close()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._in_head = True
        self._received = 0
        self._expect_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the head; those behind a body mean nothing here, and would only fill memory."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The headers of a request are there."""
        self._in_head = False
        self._stop_timer()
        if self.parser.should_upgrade() and any(
            name in _BODY and value != b"0" for name, value in self.headers
        ):
            # The parser takes what follows for another protocol's, so the body would be lost.
            raise ValueError("this server does not upgrade connections; send the request without Upgrade")
        super().on_headers_complete()
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._stop_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        self._refuse(400, "BadRequestException", msg)

    def _expect_head(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            self._refuse(408, "RequestTimeoutException", "the request's headers did not arrive in time")

    def _refuse(self, status: int, type: str, message: str) -> None:
        """Answer without the application, unless an answer is being sent, and close."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = encode(ErrorResponse(ErrorModel(message, type, status))).encode()
            head = (
                f"HTTP/1.1 {status} Refused\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()


def bounded(largest: int) -> type[Any]:
    """The class of connections for bodies up to so many bytes."""
    return type("Connection", (BoundedConnection,), {"largest": largest})
