"""A server shuts down promptly whatever its clients do, and logs only messages that help an operator."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from polaris_spark.testing.waiting import wait_until
from tests.server.servers import Remote, Server, client, options

STALLED = {
    "sends nothing": b"",
    "sends half a head": b"POST /v1/namespaces HTTP/1.1\r\nHo",
    "sends half a body": b"POST /v1/namespaces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 9\r\n\r\n{",
    "waits to go on": b"POST /v1/namespaces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n",
    "was refused and sends on": b"POST /v1/none HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
    "is idle": b"GET /v1/config HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "has another request begun": b"GET /v1/config HTTP/1.1\r\nHost: localhost\r\n\r\nGET /v1",
}
PROMPT = 20.0
"""Seconds in which even a slow machine shuts down. Requests under way would have 30."""


@contextlib.contextmanager
def connected(server: Server, sent: bytes) -> Iterator[socket.socket]:
    """Open a connection and send these bytes."""
    host, port = server.uri.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PROMPT) as connection:
        connection.sendall(sent)
        yield connection


def test_stalled_clients_do_not_delay_the_end(tmp_path: Path) -> None:
    with (
        Server(f"sqlite://{tmp_path / 's.db'}", *options(tmp_path / "w")) as server,
        contextlib.ExitStack() as all,
    ):
        for sent in STALLED.values():
            all.enter_context(connected(server, sent))
        remote = Remote(server.uri)
        under_way = "polaris_spark_http_requests_in_flight 2.0"
        wait_until(lambda: under_way in remote.raw("GET", "/metrics")[2], "requests are being received")
        begun = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begun < PROMPT
        assert server.errors == ""


@pytest.mark.parametrize("kind", STALLED)
def test_each_kind_of_stalled_client_does_not_delay_the_end(tmp_path: Path, kind: str) -> None:
    with (
        Server(f"sqlite://{tmp_path / 's.db'}", *options(tmp_path / "w")) as server,
        connected(server, STALLED[kind]),
    ):
        assert Remote(server.uri).raw("GET", "/v1/config")[0] == 200  # so the other connection is there
        begun = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begun < PROMPT
        assert server.errors == ""


def test_a_client_that_does_not_read_a_large_answer_does_not_delay_the_end(tmp_path: Path) -> None:
    with Server(f"sqlite://{tmp_path / 's.db'}", *options(tmp_path / "w")) as server:
        catalog = client(server)
        catalog.namespace("db")
        catalog.create("t", properties={"x": "a" * 12 * 2**20})
        load = b"GET /v1/namespaces/db/tables/t HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with connected(server, load) as connection:
            assert connection.recv(1)
            begun = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - begun < PROMPT + 5  # which the client has to read
            assert server.errors == ""
