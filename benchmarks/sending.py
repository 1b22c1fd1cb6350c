"""Processes that send each request over a socket to one process, which commits for all of them. This is the simplest
way of handing changes over between the processes of one machine."""

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
_SECONDS_TO_END = 10


class Sender:
    """A session whose requests another process answers (`receiving`)."""

    def __init__(self, address: str) -> None:
        """
        Args:
            address: path of the Unix socket.
        """
        self._connection: Connection = Client(address, "AF_UNIX")

    def request(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: str | None = None
    ) -> tuple[int, dict[str, str], str]:
        """Send a request to the other process, and return its answer. The arguments are those of `Session.request`."""
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
    mine, its = context.Pipe()
    process = context.Process(target=_receive, args=(dict(properties), address, its), daemon=True)
    process.start()
    its.close()  # so that the end of the process ends the pipe
    try:
        try:
            started = mine.poll(_SECONDS_TO_START) and mine.recv() == "ready"
        except EOFError:
            started = False
        if not started:
            raise RuntimeError("the process that commits for all did not start")
        yield
        if not process.is_alive():
            raise RuntimeError("the process that commits for all died")
    finally:
        mine.close()
        process.join(_SECONDS_TO_END)
        process.kill()
        Path(address).unlink(missing_ok=True)


def _receive(properties: dict[str, Any], address: str, parent: Any) -> None:
    """Answer requests until `parent`, a pipe, is closed at the other end."""
    session = connect(**properties)

    def answer(connection: Connection) -> None:
        with suppress(EOFError, OSError):  # the sender ended
            while True:
                method, path, query, body = json.loads(connection.recv_bytes())
                answered = session.request(method, path, query=query, body=body)
                connection.send_bytes(json.dumps(list(answered)).encode())

    def accept(listener: Listener) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                threading.Thread(target=answer, args=(listener.accept(),), daemon=True).start()

    with session, Listener(address, "AF_UNIX", backlog=128) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        parent.send("ready")
        with suppress(EOFError):
            parent.recv()
