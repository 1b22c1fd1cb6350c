"""Messages among the processes of one machine that compete for a reference. They save requests to the database.
Correctness does not depend on them.

A process whose changes another process is to carry out (`intents`) sends its intent as a message instead of writing it
to the database. The process that commits answers with the reference's new row, so that the first one need not read it.
Every message may be lost. If a process cannot be reached, because it runs on another machine or under another user, the
intent is written to the database.
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
from typing import Final, NamedTuple, Protocol

from polaris_spark.clock import Clock, SystemClock
from polaris_spark.forks import begin_anew_in_children

_logger = logging.getLogger(__name__)

MOST_BYTES: Final = 64 * 2**10
"""Maximum size of an intent in a message, in bytes."""

NEAR_MS: Final = 1_000.0
"""Time after a message during which its sender counts as near, in milliseconds."""

_MOST_KEPT = 64
"""Maximum number of intents, and of answers, that a process keeps."""
_MOST_AT_ONCE = 256
"""Maximum number of messages that one call reads."""
_SEND_MS = 20
"""Maximum time to wait for room in the receiver's queue, in milliseconds."""
_RETRY_MS = 10_000.0
"""Time after which a process tries again to bind a socket, in milliseconds."""
_MOST_PATH = 100
"""Maximum length of a socket's path, in bytes (the limit of macOS is 104)."""


class Mailbox(Protocol):
    """The interface to messages. A process is addressed by the node number in its ids."""

    def open(self) -> None:
        """Let other processes reach this one. May be repeated."""
        ...

    def send(self, node: int, id: int, intent: bytes) -> bool:
        """Send the encoded intent `id` to a process. Return False if the process cannot be reached, or if the intent is
        too large. If it is too large or empty, this process no longer counts as near, so that the receiver looks for
        the intent in the database."""
        ...

    def answer(self, node: int, id: int, answer: bytes) -> None:
        """Send a process the answer to its intent `id`, or only wake it if the answer is too large."""
        ...

    def get(self, id: int) -> bytes | None:
        """Return an intent of another process that was received, or None."""
        ...

    def take_answer(self, id: int) -> bytes | None:
        """Remove the answer to this process's intent `id`, and return it; None if none was received."""
        ...

    def remove(self, ids: Iterable[int]) -> None:
        """Remove intents that were received."""
        ...

    def is_near(self, node: int) -> bool:
        """Whether a process recently sent a message to this one. Such a process will probably also send its next intent
        (its changes, for another process to commit) as a message."""
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

    def answer(self, node: int, id: int, answer: bytes) -> None: ...

    def get(self, id: int) -> None: ...

    def take_answer(self, id: int) -> None: ...

    def remove(self, ids: Iterable[int]) -> None: ...

    def is_near(self, node: int) -> bool:
        return False

    def wait(self, ms: float) -> None:
        self._clock.sleep_ms(ms)

    def close(self) -> None: ...


class _Bound(NamedTuple):
    """The socket of this process, and the path at which other processes find it."""

    socket: socket.socket
    node: int
    path: Path
    inode: int
    """Inode of the path when the socket was bound. If the path has another one now, it is the socket of another
    process."""

    def is_in_place(self) -> bool:
        """Whether the path still leads to this socket."""
        try:
            return self.path.lstat().st_ino == self.inode
        except OSError:
            return False

    def close(self) -> None:
        self.socket.close()
        if self.is_in_place():
            with contextlib.suppress(OSError):
                self.path.unlink()


class SocketMailbox:
    """A mailbox on a Unix datagram socket in a folder that only this user can open. Thread-safe.

    All threads of a process share the mailbox. If several of them wait, a message may wake only one, which can be the
    wrong one; the others then wait until their time is over.
    """

    def __init__(self, store: str, node: Callable[[], int], clock: Clock) -> None:
        """
        Args:
            store: identifies the store.
            node: returns the node number of this process, which may change.
        """
        known = f"{_FORMAT} {socket.gethostname()} {store}"  # several machines may share the folder
        self._prefix = hashlib.sha256(known.encode()).hexdigest()[:16]
        self._node = node
        self._clock = clock
        self._bound: _Bound | None = None
        self._begin()
        begin_anew_in_children(self)

    def _begin(self) -> None:
        self._guard = threading.Lock()
        self._retry_at = 0.0
        """Time before which no socket is bound again, because that failed; in milliseconds on the monotonic clock."""
        self._received: dict[int, bytes] = {}
        self._answers: dict[int, bytes] = {}
        self._heard: dict[int, float] = {}
        """Time of the last message of each process, in milliseconds on the monotonic clock, by node number."""

    def begin_in_child(self) -> None:
        bound, self._bound = self._bound, None
        if bound is not None:
            bound.socket.close()  # the path is the parent's
        self._begin()

    def close(self) -> None:
        """Remove the socket. Other processes then use the database."""
        with self._guard:
            self._unbind()

    def open(self) -> None:
        node, bound, now = self._node(), self._bound, self._clock.monotonic_ms()
        if now < self._retry_at or (bound is not None and bound.node == node and bound.is_in_place()):
            return
        with self._guard:
            self._unbind()
            try:
                self._bound = self._bind(node)
            except OSError as error:
                self._retry_at = now + _RETRY_MS
                _logger.debug("cannot receive messages from other processes of this machine: %s", error)

    def send(self, node: int, id: int, intent: bytes) -> bool:
        bound = self._bound
        if bound is None:
            return False
        fits = len(intent) <= MOST_BYTES
        message = _HEADER.pack(bound.node, id) + (intent if fits else b"")
        return self._sent(bound, node, message, 0) and fits

    def answer(self, node: int, id: int, answer: bytes) -> None:
        bound = self._bound
        if bound is not None:
            message = _HEADER.pack(_ANSWER, id) + (answer if len(answer) <= MOST_BYTES else b"")
            self._sent(bound, node, message, socket.MSG_DONTWAIT)

    def get(self, id: int) -> bytes | None:
        self._receive()
        return self._received.get(id)

    def take_answer(self, id: int) -> bytes | None:
        self._receive()
        with self._guard:
            return self._answers.pop(id, None)

    def remove(self, ids: Iterable[int]) -> None:
        with self._guard:
            for id in ids:
                self._received.pop(id, None)

    def is_near(self, node: int) -> bool:
        heard = self._heard.get(node)
        return heard is not None and self._clock.monotonic_ms() - heard < NEAR_MS

    def wait(self, ms: float) -> None:
        if self._poll(ms):
            self._receive()
        else:
            self._clock.sleep_ms(ms)

    def _poll(self, ms: float) -> bool:
        """Wait until the socket can be read, at most for `ms` milliseconds. Return False at once if there is no
        socket."""
        bound = self._bound
        if bound is None:
            return False
        poll = select.poll()
        try:
            poll.register(bound.socket, select.POLLIN)
            return not any(event & select.POLLNVAL for _, event in poll.poll(ms))
        except (OSError, ValueError):  # another thread closed the socket, so it has no descriptor
            return False

    def _receive(self) -> None:
        """Read the messages that have come."""
        bound = self._bound
        if bound is None:
            return
        with self._guard:
            for _ in range(_MOST_AT_ONCE):
                try:
                    message = bound.socket.recv(_HEADER.size + MOST_BYTES, socket.MSG_DONTWAIT)
                except OSError:
                    return
                if len(message) < _HEADER.size:
                    continue
                node, id = _HEADER.unpack_from(message)
                if len(message) == _HEADER.size:
                    self._heard.pop(node, None)
                    continue
                if node != _ANSWER:
                    self._heard[node] = self._clock.monotonic_ms()
                kept = self._answers if node == _ANSWER else self._received
                kept[id] = message[_HEADER.size :]
                if len(kept) > _MOST_KEPT:
                    del kept[next(iter(kept))]

    def _sent(self, bound: _Bound, node: int, message: bytes, flags: int) -> bool:
        path = bound.path.with_name(self._name(node))
        try:
            bound.socket.sendto(message, flags, str(path))
        except ConnectionRefusedError:  # its process died
            with contextlib.suppress(OSError):
                path.unlink()
        except OSError:
            pass
        else:
            return True
        return False

    def _name(self, node: int) -> str:
        return f"{self._prefix}-{node}"

    def _bind(self, node: int) -> _Bound:
        folder = Path(tempfile.gettempdir(), f"polaris-spark-{os.getuid()}")
        path = folder / self._name(node)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(f"{folder} is not a folder that only this user can open")
        if len(os.fsencode(path)) > _MOST_PATH:
            raise OSError(f"the path {path} is too long for a socket")
        _remove_dead(folder.glob(f"{self._prefix}-*"))
        own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            own.settimeout(None)  # whatever `socket.setdefaulttimeout` says
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, _SEND_MS * 1_000))
            path.unlink(missing_ok=True)
            own.bind(str(path))
            return _Bound(own, node, path, path.lstat().st_ino)
        except BaseException:
            own.close()
            raise

    def _unbind(self) -> None:
        bound, self._bound = self._bound, None
        if bound is not None:
            bound.close()


def _remove_dead(paths: Iterable[Path]) -> None:
    """Remove the sockets of processes that died."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        for path in paths:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:
                pass


_HEADER = struct.Struct(">HQ")
"""Header of a message: the sender's node number or `_ANSWER`, and the intent's id. If a sender's message ends after the
header, its intent is in the database."""
_ANSWER = 0xFFFF
"""Stands in a header in place of the sender's node number; no process has this number. The message is then the answer
to an intent. If nothing follows the header, the message only wakes the receiver."""
_FORMAT = 2
"""Number of the messages' format. Processes with different formats do not reach each other."""


def mailbox_of(store: str, node: Callable[[], int], clock: Clock) -> SocketMailbox | NoMailbox:
    """Return a mailbox for the processes of this machine; a `NoMailbox` if the system has no Unix sockets, or if the
    clock is not the machine's."""
    has_sockets = hasattr(socket, "AF_UNIX") and isinstance(clock, SystemClock)
    return SocketMailbox(store, node, clock) if has_sockets else NoMailbox(clock)
