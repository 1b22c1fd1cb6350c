"""Requests and answers as frames over a Unix domain socket.

A frame consists of the length of its head and the length of its body (four bytes each, big-endian), the head and the
body, both UTF-8 text. The first frame of a connection has the secret token as its head and an empty body, and gets no
answer. If the first frame differs, the server closes the connection. Every later frame is a request, and gets one
answer. A Unix domain socket is used because requests over TCP take a third longer, even on the same machine.
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
"""A function that takes the head and body of a request, and returns the head and body of the answer.

The server calls it on many threads at the same time. It must not raise an error.
"""

PREFIX = "polaris-spark-"
SOCKET = "socket"
BUFFER_BYTES = 64 * 1024
GREETING_SECONDS = 10
LEFTOVER_SECONDS = 60
_LENGTHS = struct.Struct(">II")
_LONGEST_PLACE = 64


class Server:
    """A server that listens on a socket in a new directory, and answers each connection on a separate thread."""

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
        """Stop accepting connections. Existing connections stay open."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            except (OSError, RuntimeError):
                # Out of file descriptors or threads: accepting a waiting connection may succeed in a moment.
                logger.exception("a connection could not be accepted")
                time.sleep(1)

    def _serve(self, connection: socket.socket) -> None:
        buffer = memoryview(bytearray(BUFFER_BYTES))
        # The client may close the connection at any moment, as an interrupted thread of a JVM does.
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
    """Return the bytes of a frame with this head and body."""
    # Surrogates that UTF-8 cannot encode become question marks, as in Java.
    first, second = head.encode(errors="replace"), body.encode(errors="replace")
    return b"".join((_LENGTHS.pack(len(first), len(second)), first, second))


def receive(connection: socket.socket, buffer: memoryview) -> tuple[str, str] | None:
    """Wait for the next frame and return its head and body; return None if the connection has ended.

    A frame that fits into `buffer` is read into it; a longer frame is read into a new buffer.
    """
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
    """Return the directory for temporary files. If its path is not ASCII or too long for a socket's address, return
    /tmp."""
    place = tempfile.gettempdir()
    return place if place.isascii() and len(place) <= _LONGEST_PLACE else "/tmp"


def _remove_leftovers(place: str) -> None:
    """Remove the directories of killed servers of this user: directories in `place` without a listening socket.

    Very recent directories are not removed, because their sockets may not exist yet.
    """
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
