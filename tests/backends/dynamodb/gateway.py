"""A gateway to DynamoDB Local, which never throttles: some requests it answers itself, as the service would.

Error bodies are those of https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Programming.Errors.html.
"""

from __future__ import annotations

import http.client
import json
import threading
import zlib
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, cast

Body = dict[str, Any]


class Answer(NamedTuple):
    """Status and JSON body of an answer."""

    status: int
    body: Body


Forward = Callable[[Body], Answer]
"""Asks DynamoDB Local."""
Rule = Callable[[str, Body, Forward], "Answer | None"]
"""Given the operation, its body and a way on: the answer, or None to pass the request on as it is."""


def refusal(code: str, message: str = "no", status: int = 400) -> Answer:
    """An error as the service words it."""
    return Answer(status, {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message})


class Gateway:
    """Listens on a port of 127.0.0.1, until `close`. `rule` may be set at any time."""

    def __init__(self, port: int) -> None:
        """
        Args:
            port: of DynamoDB Local.
        """
        self.rule: Rule = lambda *_: None
        self.asked: list[tuple[str, Body]] = []
        """Operations and bodies of all requests, in their order."""
        self.connections = 0
        """How many were opened."""
        self.cuts: Iterator[int] = iter(())
        """After how many bytes the next answers end, with their connection; whole ones after that."""
        self.has_checksums = True
        """Whether answers carry their checksum and length."""
        self._target = port
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.gateway = self  # type: ignore[attr-defined]  # for the handler
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def count(self, operation: str) -> int:
        """How often an operation was asked for."""
        return [asked for asked, _ in self.asked].count(operation)

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, operation: str, body: Body, headers: dict[str, str]) -> Answer:
        """By the rule, or by DynamoDB Local."""
        self.asked.append((operation, body))

        def forward(changed: Body) -> Answer:
            connection = http.client.HTTPConnection("127.0.0.1", self._target, timeout=30)
            try:
                connection.request("POST", "/", json.dumps(changed), headers)
                response = connection.getresponse()
                return Answer(response.status, json.loads(response.read()))
            finally:
                connection.close()

        return self.rule(operation, body, forward) or forward(body)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self._gateway.connections += 1

    def do_POST(self) -> None:  # the name that http.server asks for
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        target = self.headers["X-Amz-Target"]
        kept = {name: self.headers[name] for name in ("X-Amz-Target", "Authorization", "Content-Type")}
        status, answer = self._gateway.answer(target.rpartition(".")[2], body, kept)
        encoded = json.dumps(answer).encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/x-amz-json-1.0\r\n"
        )
        if self._gateway.has_checksums:
            head += f"x-amz-crc32: {zlib.crc32(encoded)}\r\nContent-Length: {len(encoded)}\r\n"
        whole = f"{head}\r\n".encode() + encoded
        cut = next(self._gateway.cuts, None)
        self.close_connection = cut is not None or not self._gateway.has_checksums
        self.wfile.write(whole[:cut])

    def log_message(self, format: str, *args: object) -> None:
        pass

    @property
    def _gateway(self) -> Gateway:
        return cast("Gateway", self.server.gateway)  # type: ignore[attr-defined]  # set above
