"""Processes that send each request over a socket to one process, which commits for all of them. They do nothing else,
so this is the most that handing changes over between the processes of one machine can reach."""

from __future__ import annotations

import json
import multiprocessing
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from polaris_spark.rest.opening import connect

_SECONDS_TO_START = 60


class Sender:
    """A session that lets the process at an address answer its requests."""

    def __init__(self, address: str) -> None:
        """
        Args:
            address: path of the Unix socket.
        """
        self._connection: Connection = Client(address, "AF_UNIX")

    def request(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: str | None = None
    ) -> tuple[int, dict[str, str], str]:
        """Answer a request, as `Session.request` does."""
        self._connection.send_bytes(json.dumps([method, path, query, body]).encode())
        status, headers, answer = json.loads(self._connection.recv_bytes())
        return status, headers, answer

    def close(self) -> None:
        """Close the socket."""
        self._connection.close()


@contextmanager
def receiving(properties: Mapping[str, Any], address: str) -> Iterator[None]:
    """Run a process that answers the requests of `Sender`s, each in a thread, until the end of the block.

    Args:
        properties: arguments of `connect`.
        address: path of the Unix socket.
    """
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_receive, args=(dict(properties), address, ready), daemon=True)
    process.start()
    try:
        if not ready.wait(_SECONDS_TO_START):
            raise RuntimeError("the process that commits for all did not start")
        yield
    finally:
        process.terminate()
        process.join()
        Path(address).unlink(missing_ok=True)


def _receive(properties: dict[str, Any], address: str, ready: Any) -> None:
    session = connect(**properties)

    def answer(connection: Connection) -> None:
        with suppress(EOFError):
            while True:
                method, path, query, body = json.loads(connection.recv_bytes())
                answered = session.request(method, path, query=query, body=body)
                connection.send_bytes(json.dumps(list(answered)).encode())

    with Listener(address, "AF_UNIX", backlog=128) as listener:
        ready.set()
        while True:
            threading.Thread(target=answer, args=(listener.accept(),), daemon=True).start()
