"""Requests and answers as frames over a Unix domain socket.

A frame is the length of its head and the length of its body (four bytes each, the high one first), the head
and the body, both text in UTF-8. The first frame of a connection has the token for its head and is not
answered; a connection that begins otherwise is closed. Then every frame is a request and gets one answer. TCP,
even to the same machine, would take a third as long again.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import shutil
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)

Answer = Callable[[str, str], tuple[str, str]]
"""From head and body of a request to those of its answer. May be called on many threads, and never raises."""

PREFIX = "polaris-spark-"
SOCKET = "socket"
BUFFER_BYTES = 64 * 1024
GREETING_SECONDS = 10
LEFTOVER_SECONDS = 60
_LENGTHS = struct.Struct(">II")
_LONGEST_PLACE = 64


class Server:
    """Listens in a directory of its own, and answers each connection on a thread of its own."""

    def __init__(self, token: str, answer: Answer) -> None:
        self._greeting = framed(token, "")
        self._answer = answer
        place = _place()
        _remove_leftovers(place)
        self.directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        self.path = self.directory / SOCKET
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(socket.SOMAXCONN)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Let nobody connect any more. Connections that there are go on."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            except (OSError, RuntimeError):
                # Out of files or threads: whoever waits in line may find some in a moment.
                logger.exception("a connection could not be accepted")
                time.sleep(1)

    def _serve(self, connection: socket.socket) -> None:
        buffer = memoryview(bytearray(BUFFER_BYTES))
        # The other side may hang up at any moment, an interrupted thread of a JVM does.
        with connection, contextlib.suppress(OSError):
            if not self._is_greeted(connection):
                return
            while (frame := receive(connection, buffer)) is not None:
                connection.sendall(framed(*self._answer(*frame)))

    def _is_greeted(self, connection: socket.socket) -> bool:
        connection.settimeout(GREETING_SECONDS)
        received = b""
        while len(received) < len(self._greeting):
            more = connection.recv(len(self._greeting) - len(received))
            if not more:
                return False
            received += more
        connection.settimeout(None)
        return hmac.compare_digest(received, self._greeting)


def framed(head: str, body: str) -> bytes:
    """Return a frame."""
    # What is no Unicode text comes out as question marks, as it does in Java.
    first, second = head.encode(errors="replace"), body.encode(errors="replace")
    return b"".join((_LENGTHS.pack(len(first), len(second)), first, second))


def receive(connection: socket.socket, buffer: memoryview) -> tuple[str, str] | None:
    """Return head and body of the next frame, or None at the end; a frame that fits is read into `buffer`."""
    done = 0
    while done < _LENGTHS.size:
        more = connection.recv_into(buffer[done:])
        if not more:
            return None
        done += more
    head, body = _LENGTHS.unpack_from(buffer)
    begin, end = _LENGTHS.size + head, _LENGTHS.size + head + body
    if end > len(buffer):
        longer = memoryview(bytearray(end))
        longer[:done] = buffer[:done]
        buffer = longer
    while done < end:
        more = connection.recv_into(buffer[done:end])
        if not more:
            return None
        done += more
    return str(buffer[_LENGTHS.size : begin], "utf-8"), str(buffer[begin:end], "utf-8")


def _place() -> str:
    """The directory for temporary files, unless its name does not do in a socket's address."""
    place = tempfile.gettempdir()
    return place if place.isascii() and len(place) <= _LONGEST_PLACE else "/tmp"


def _remove_leftovers(place: str) -> None:
    """Remove the directories of processes that were killed: those where nobody listens, unless made just now."""
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and _is_leftover(entry):
                shutil.rmtree(entry.path, ignore_errors=True)


def _is_leftover(directory: os.DirEntry[str]) -> bool:
    try:
        status = directory.stat(follow_symlinks=False)
        if status.st_uid != os.getuid() or status.st_mtime > time.time() - LEFTOVER_SECONDS:
            return False
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            probe.connect(os.path.join(directory.path, SOCKET))
    except (ConnectionRefusedError, FileNotFoundError):
        return True
    except OSError:
        return False
    return False
