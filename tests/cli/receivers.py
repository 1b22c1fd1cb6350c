"""A receiver of webhooks on loopback that fails as it is told, and checks what it gets independently of the sender."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from standardwebhooks import Webhook

from polaris_spark.testing.waiting import PATIENCE_S

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
OTHER_SECRET = "whsec_" + base64.b64encode(bytes(range(1, 33))).decode()

CLOSE = "close"
"""Close the connection without an answer."""
RESET = "reset"
"""Reset the connection."""
HANG = "hang"
"""Do not answer until the receiver ends."""
DRIP = "drip"
"""Begin to answer, and send a byte of a header from time to time until the sender closes the connection."""
NONSENSE = "nonsense"
"""Answer with something else than HTTP: a long line with an escape sequence of terminals."""
ENDLESS_ERROR, ENDLESS_REDIRECT = "endless error", "endless redirect"
"""Answer with the status 500, or with a redirect, and send content until the sender closes the connection."""

_TOLERANCE_S = 300


class Received(NamedTuple):
    """A request with a valid signature."""

    id: str
    content_type: str
    events: list[dict[str, Any]]

    @property
    def names(self) -> list[str]:
        return [event["data"]["name"] for event in self.events]


Reply = int | str | tuple[int, dict[str, str]]


class Receiver:
    """An HTTP server that answers each request as `reply` says."""

    def __init__(
        self,
        *replies: Reply,
        reply: Callable[[Received], Reply] | None = None,
        secrets: tuple[str, ...] = (SECRET,),
        certificate: tuple[Path, Path] | None = None,
    ) -> None:
        """
        Args:
            replies: answers to the first requests: a status, (status, headers) or one of the words above. Later
                requests get 200.
            reply: function that returns the answer to a request, instead of `replies`.
            secrets: each must have signed each request.
        """
        self._replies = iter(replies)
        self._reply = reply or (lambda _: next(self._replies, 200))
        self._secrets = secrets
        self._changed = threading.Condition()
        self.received: list[Received] = []
        self.accepted: list[Received] = []
        self.problems: list[str] = []
        self.ended = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                receiver._handle(self)

            def do_GET(self) -> None:
                receiver.problems.append("a GET arrived, so a redirect was followed")
                self.send_error(404)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # senders die
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'http' if certificate is None else 'https'}://127.0.0.1:{self._server.server_address[1]}/hook?x=1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        assert self.problems == []

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition about the requests, or about processes, holds."""
        until = time.monotonic() + PATIENCE_S
        with self._changed:
            while not condition():
                assert time.monotonic() < until
                self._changed.wait(0.05)  # the end of a process does not notify

    def names(self) -> list[str]:
        """The names of all accepted events, with repetitions."""
        return [name for one in self.accepted for name in one.names]

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers["Content-Length"])
        body = handler.rfile.read(length)
        if len(body) < length:  # the sender was killed
            handler.close_connection = True
            return
        try:
            received = self._checked(dict(handler.headers.items()), body)
        except Exception as error:
            self.problems.append(repr(error))
            handler.send_error(401)
            return
        with self._changed:
            self.received.append(received)
            reply = self._reply(received)
            status, headers = reply if isinstance(reply, tuple) else (reply, {})
            if isinstance(status, int) and 200 <= status < 300:
                self.accepted.append(received)
            self._changed.notify_all()
        if isinstance(status, int):
            handler.send_response(status)
            for name, value in headers.items():
                handler.send_header(name, value)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
        else:
            self._fail(handler, status)

    def _fail(self, handler: BaseHTTPRequestHandler, how: str) -> None:
        handler.close_connection = True
        if how == HANG:
            self.ended.wait(PATIENCE_S)
        elif how == NONSENSE:
            handler.wfile.write(b"what?\x1b[31m" + b"x" * 10_000 + b"\r\n\r\n")
        elif how == RESET:
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.connection.close()
        elif how in (ENDLESS_ERROR, ENDLESS_REDIRECT):
            status = "302 Found\r\nLocation: /x" if how == ENDLESS_REDIRECT else "500 Error"
            handler.wfile.write(f"HTTP/1.1 {status}\r\nConnection: close\r\n\r\n".encode())
            while not self.ended.is_set():
                handler.wfile.write(b"x" * 1_000)
        elif how == DRIP:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
            while not self.ended.wait(0.02):
                handler.wfile.write(b"x")

    def _checked(self, headers: dict[str, str], body: bytes) -> Received:
        id, stamp = headers["webhook-id"], headers["webhook-timestamp"]
        assert abs(time.time() - int(stamp)) < _TOLERANCE_S
        signatures = headers["webhook-signature"].split(" ")
        assert len(signatures) == len(self._secrets)
        for secret in self._secrets:
            key = base64.b64decode(secret.removeprefix("whsec_"))
            digest = hmac.new(key, f"{id}.{stamp}.".encode() + body, hashlib.sha256).digest()
            assert f"v1,{base64.b64encode(digest).decode()}" in signatures
            Webhook(secret).verify(body, headers)
        parsed = json.loads(body)
        events = parsed if isinstance(parsed, list) else [parsed]
        ids = [event["id"] for event in events]
        assert id == (ids[0] if len(ids) == 1 else f"{ids[0]}_{ids[-1]}")
        for event in events:
            read = JSONFormat().read(CloudEvent, json.dumps(event))
            assert (read.get_type(), read.get_specversion()) == (
                f"io.polarisspark.{event['data']['action']}",
                "1.0",
            )
        return Received(id, headers["Content-Type"], events)
