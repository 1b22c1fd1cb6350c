"""Server processes, started as users start them, and clients of them."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import queue
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from polaris_spark.testing.waiting import PATIENCE_S
from tests.cli.catalogs import run
from tests.rest.client import Client

PATIENCE = float(PATIENCE_S)
"""Seconds within which a machine of any speed has a server up or down."""


class Server:
    """A process of `polaris-spark serve` on a free port."""

    def __init__(
        self, store: str, *options: str, env: Mapping[str, str] | None = None, files: int | None = None
    ) -> None:
        """
        Args:
            files: how many files the process may open.
        """
        limit = [] if files is None else ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh"]
        command = [*limit, sys.executable, "-c", "from polaris_spark.cli import main; main()", "serve", store]
        self.process = subprocess.Popen(
            [*command, "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self.errors = ""
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=lambda: lines.put(self.process.stdout.readline()), daemon=True).start()  # type: ignore[union-attr]  # a pipe
        try:
            line = lines.get(timeout=PATIENCE)
        except queue.Empty:
            self.process.kill()
            raise
        if not line:
            self._ended()
            raise RuntimeError(self.errors)
        self.uri = line.split()[-1]

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors += line

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop the server as an operator does, and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self._ended()

    def _ended(self) -> int:
        """Wait until the server has ended and its standard error was read, and return its exit code."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self.process.kill()


_IDLE_S = 30
"""The server waits for 75 s for another request."""


class Remote:
    """A session's `request` over HTTP, one connection per thread."""

    def __init__(
        self, uri: str, token: str | None = None, *, prefix: str = "", context: ssl.SSLContext | None = None
    ) -> None:
        self.uri = urlsplit(uri)
        self.token = token
        self.prefix = prefix
        self.context = context
        self._local = threading.local()

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: str | bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, dict[str, str], str]:
        """Answer one request, as `Session.request` does."""
        sent = {"Content-Type": "application/json", "Accept-Encoding": "gzip", **(headers or {})}
        if self.token:
            sent["Authorization"] = f"Bearer {self.token}"
        target = "/" + path.replace("v1/", f"v1/{self.prefix}/", 1) if self.prefix else f"/{path}"
        if query:
            target += "?" + urlencode(query)
        return self.raw(method, target, body.encode() if isinstance(body, str) else body, sent)

    def raw(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, str], str]:
        """Send exactly these bytes."""
        connection = self.connection()
        try:
            connection.request(method, target, body, dict(headers or {}))
            response = connection.getresponse()
            content = response.read()
        except BaseException:
            connection.close()
            raise
        if response.headers.get("content-encoding") == "gzip":
            content = gzip.decompress(content)
        return response.status, dict(response.headers.items()), content.decode()

    def connection(self) -> http.client.HTTPConnection:
        """Return this thread's connection. A connection that was idle for so long that the server may close it is
        replaced."""
        found: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if found is not None and time.monotonic() - self._local.used > _IDLE_S:
            found.close()
        self._local.used = time.monotonic()
        if found is None:
            host, port = self.uri.hostname or "", self.uri.port
            if self.uri.scheme == "https":
                found = http.client.HTTPSConnection(host, port, timeout=PATIENCE, context=self.context)
            else:
                found = http.client.HTTPConnection(host, port, timeout=PATIENCE)
            self._local.connection = found
        return found


def client(server: Server | str, token: str | None = None, **rest: Any) -> Client:
    """A client for tests that sends requests over HTTP."""
    uri = server.uri if isinstance(server, Server) else server
    return Client(Remote(uri, token, **rest))  # type: ignore[arg-type]  # all that it needs of a session


def refused(*arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Start a server that must fail with exit code 2 and one line of output, and return this line."""
    command = [sys.executable, "-c", "from polaris_spark.cli import main; main()", "serve", *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, **(env or {})},
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2, done
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def refused_options(*arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Run `serve` in this process, with options that must be refused before the server listens. Check that it fails
    with exit code 2 and one line of output, and return this line.

    The port is taken, so a server that accepts the options fails with another line instead of serving.
    """
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        answer = run("serve", *arguments, "--port", port, **(env or {}))
    assert answer.code == 2, answer
    assert answer.err.count("\n") == 1, answer.err
    return answer.err


def error_of(body: str) -> dict[str, Any]:
    """Return the error of a refusal."""
    model: dict[str, Any] = json.loads(body)["error"]
    assert set(model) == {"message", "type", "code"}
    return model


def token_file(folder: Path, tokens: Mapping[str, str]) -> Path:
    """Write a token file that only its owner can read, from principals to tokens."""
    path = folder / "tokens"
    path.touch(mode=0o600)
    path.write_text("# who: token\n\n" + "".join(f"{who}:{token}\n" for who, token in tokens.items()))
    return path


def options(warehouse: Path | str, *more: str) -> Sequence[str]:
    """Options of a server that needs no token, on loopback."""
    return ["--warehouse", str(warehouse), "--insecure", *more]
