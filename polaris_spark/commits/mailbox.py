"""Messages among the processes of one machine that compete for a reference. They save requests to the database, and
nothing depends on them.

A process whose changes another process is to carry out (`intents`) sends its intent as a message instead of writing it
to the database. The process that commits answers with an empty message, so that the first one looks at the reference's
row at once. Every message may be lost. If a process cannot be reached, because it runs on another machine or under
another user, the intent is written to the database.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import select
import socket
import stat
import struct
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Protocol

from polaris_spark.clock import Clock, SystemClock
from polaris_spark.forks import begin_anew_in_children

_logger = logging.getLogger(__name__)

MOST_BYTES: Final = 64 * 2**10
"""Maximum size of an intent in a message, in bytes."""

NEAR_MS: Final = 1_000.0
"""Time after a message during which its sender counts as near, in milliseconds."""

_MOST_KEPT = 256
"""Maximum number of intents that a process keeps."""
_SEND_MS = 20
"""Maximum time to wait for room in the receiver's queue, in milliseconds."""
_MOST_PATH = 100
"""Maximum length of a socket's path, in bytes (the limit of macOS is 104)."""


class Mailbox(Protocol):
    """The interface to messages. A process is addressed by the node number in its ids."""

    def open(self) -> None:
        """Let other processes reach this one. May be repeated."""
        ...

    def send(self, node: int, id: int, intent: bytes) -> bool:
        """Send the encoded intent `id` to a process. Return False if the process cannot be reached, or if the intent is
        too large."""
        ...

    def answer(self, nodes: Iterable[int]) -> None:
        """Send an empty message to processes, so that they look at the reference's row."""
        ...

    def get(self, id: int) -> bytes | None:
        """Return an intent that was received, or None."""
        ...

    def remove(self, ids: Iterable[int]) -> None:
        """Remove intents that were received."""
        ...

    def is_near(self, node: int) -> bool:
        """Whether a process recently sent a message to this one, so that it will send its next intent, too."""
        ...

    def wait(self, ms: float) -> None:
        """Wait until a message comes, at most for `ms` milliseconds."""
        ...


class NoMailbox:
    """The mailbox of a process that reaches no other."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def open(self) -> None: ...

    def send(self, node: int, id: int, intent: bytes) -> bool:
        return False

    def answer(self, nodes: Iterable[int]) -> None: ...

    def get(self, id: int) -> None: ...

    def remove(self, ids: Iterable[int]) -> None: ...

    def is_near(self, node: int) -> bool:
        return False

    def wait(self, ms: float) -> None:
        self._clock.sleep_ms(ms)

    def close(self) -> None: ...


class SocketMailbox:
    """A mailbox on a Unix datagram socket in a folder that only this user can open. Thread-safe."""

    def __init__(self, store: str, node: Callable[[], int], clock: Clock) -> None:
        """
        Args:
            store: identifies the store.
            node: returns the node number of this process, which may change.
        """
        self._folder = Path(tempfile.gettempdir(), f"polaris-spark-{os.getuid()}")
        self._prefix = hashlib.sha256(store.encode()).hexdigest()[:16]
        self._node = node
        self._clock = clock
        self.begin_in_child()
        begin_anew_in_children(self)

    def begin_in_child(self) -> None:
        self._guard = threading.Lock()
        self._socket: socket.socket | None = None
        self._bound = -1
        """The node number that `_socket` was bound for."""
        self._path: Path | None = None
        self._inode = 0
        self._received: dict[int, bytes] = {}
        self._heard: dict[int, float] = {}

    def close(self) -> None:
        """Remove the socket. Other processes then use the database."""
        with self._guard:
            self._unbind()

    def open(self) -> None:
        node = self._node()
        if node == self._bound:
            return
        with self._guard:
            self._unbind()
            self._bound = node
            try:
                self._bind(Path(self._path_of(node)))
            except OSError as error:
                _logger.debug("no messages from processes of this machine: %s", error)

    def send(self, node: int, id: int, intent: bytes) -> bool:
        own = self._socket
        if own is None or len(intent) > MOST_BYTES:
            return False
        return self._sent(own, node, _HEADER.pack(self._bound, id) + intent, 0)

    def answer(self, nodes: Iterable[int]) -> None:
        own = self._socket
        for node in nodes:
            if own is not None:
                self._sent(own, node, b"", socket.MSG_DONTWAIT)

    def get(self, id: int) -> bytes | None:
        self._receive()
        return self._received.get(id)

    def remove(self, ids: Iterable[int]) -> None:
        with self._guard:
            for id in ids:
                self._received.pop(id, None)

    def is_near(self, node: int) -> bool:
        heard = self._heard.get(node)
        return heard is not None and self._clock.monotonic_ms() - heard < NEAR_MS

    def wait(self, ms: float) -> None:
        own = self._socket
        if own is None:
            self._clock.sleep_ms(ms)
            return
        try:
            select.select([own], [], [], ms / 1_000)
        except (
            OSError,
            ValueError,
        ):  # another thread closed the socket, or its number is too high for `select`
            self._clock.sleep_ms(min(ms, 1.0))
            return
        self._receive()

    def _receive(self) -> None:
        """Read all messages that have come."""
        own = self._socket
        if own is None:
            return
        with self._guard:
            while True:
                try:
                    message = own.recv(_HEADER.size + MOST_BYTES, socket.MSG_DONTWAIT)
                except OSError:
                    return
                if len(message) > _HEADER.size:
                    node, id = _HEADER.unpack_from(message)
                    self._heard[node] = self._clock.monotonic_ms()
                    self._received[id] = message[_HEADER.size :]
                    if len(self._received) > _MOST_KEPT:
                        del self._received[next(iter(self._received))]

    def _sent(self, own: socket.socket, node: int, message: bytes, flags: int) -> bool:
        path = self._path_of(node)
        try:
            own.sendto(message, flags, path)
        except ConnectionRefusedError:  # its process died
            with contextlib.suppress(OSError):
                os.unlink(path)
        except OSError:
            pass
        else:
            return True
        return False

    def _path_of(self, node: int) -> str:
        return f"{self._folder}/{self._prefix}-{node}"

    def _bind(self, path: Path) -> None:
        folder = path.parent
        folder.mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(f"{folder} is not a folder that only this user can open")
        if len(os.fsencode(path)) > _MOST_PATH:
            raise OSError(f"the path {path} is too long for a socket")
        own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, _SEND_MS * 1_000))
            self._remove_dead(own, folder)
            path.unlink(missing_ok=True)
            own.bind(str(path))
            self._inode = path.stat().st_ino
        except BaseException:
            own.close()
            raise
        self._socket, self._path = own, path

    def _remove_dead(self, own: socket.socket, folder: Path) -> None:
        """Remove the sockets of processes that died."""
        for path in folder.glob(f"{self._prefix}-*"):
            try:
                own.sendto(b"", socket.MSG_DONTWAIT, str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:
                pass

    def _unbind(self) -> None:
        own, path = self._socket, self._path
        self._socket = self._path = None
        self._bound = -1
        if own is not None:
            own.close()
        with contextlib.suppress(FileNotFoundError):
            if path is not None and path.stat().st_ino == self._inode:  # no other process got the node number
                path.unlink()


_HEADER = struct.Struct(">HQ")
"""Header of a message with an intent: the sender's node number, and the intent's id."""


def mailbox_of(store: str, node: Callable[[], int], clock: Clock) -> SocketMailbox | NoMailbox:
    """Return a mailbox for the processes of this machine; a `NoMailbox` if the system has no Unix sockets, or if the
    clock is not the machine's."""
    has_sockets = hasattr(socket, "AF_UNIX") and isinstance(clock, SystemClock)
    return SocketMailbox(store, node, clock) if has_sockets else NoMailbox(clock)
