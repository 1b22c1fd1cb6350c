"""Ports of test servers: no other server gets a port between two starts, or before the first."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Iterator, Sequence

import pytest

from polaris_spark.testing.server import ProcessServer, ReservedPort, answers

_LISTENING = """
import socket, sys, time
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("127.0.0.1", int(sys.argv[1])))
server.listen()
time.sleep(600)
"""


class Listening(ProcessServer):
    """A server that only listens. Another server tries to take its port just before it starts for the first time."""

    name = "listening"

    def prepare(self) -> None:
        self.taken = takes(self.port)

    def command(self) -> Sequence[str]:
        return [sys.executable, "-c", _LISTENING, str(self.port)]

    def uri(self, store: str, *, port: int | None = None) -> str:
        raise NotImplementedError("it holds no stores")


def takes(port: int) -> bool:
    """Whether another server that accepts any port gets this one."""
    with socket.socket() as other:
        try:
            other.bind(("127.0.0.1", port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
        return True


@pytest.fixture
def server() -> Iterator[Listening]:
    with Listening() as server:
        yield server


def test_a_port_stays_reserved_until_its_server_starts(server: Listening) -> None:
    assert not server.taken
    assert answers(server.port)


def test_the_port_of_an_ended_server_stays_reserved(server: Listening) -> None:
    for end in (server.kill, server.stop):
        end()
        assert not answers(server.port)
        assert not takes(server.port)
        server.start()
        assert answers(server.port)


def test_a_port_is_free_again_when_its_server_is_gone() -> None:
    with Listening() as server:
        port = server.port
    assert takes(port)


def test_a_request_for_any_port_gets_another_port() -> None:
    with ReservedPort() as reserved:
        others = [ReservedPort() for _ in range(200)]
        numbers = {other.number for other in others}
        for other in others:
            other.close()
        assert len(numbers) == 200
        assert reserved.number not in numbers
