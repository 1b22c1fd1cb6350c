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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Protocol

from polaris_spark.clock import Clock, SystemClock
from polaris_spark.forks import begin_anew_in_children

_logger = logging.getLogger(__name__)

MOST_BYTES: Final = 64 * 2**10
"""Maximum size of an intent in a message, in bytes."""

NEAR_MS: Final = 10_000.0
"""Time after a message during which its sender counts as near, in milliseconds."""

_MOST_KEPT = 64
"""Maximum number of intents, and of answers, that a process keeps."""
_MOST_AT_ONCE = 256
"""Maximum number of messages that one call reads."""
SOCKETS: Final = 4
"""Number of sockets on which a process receives. A sender chooses one by its own node number. Linux queues only about
ten datagrams on a socket (`net.unix.max_dgram_qlen`), and holds back further senders. While a process commits, dozens
of others send their intents. With one socket, most would wait, and some would then write to the database."""
_BUFFER_BYTES = 2**20
"""Size of the send buffer of each socket, in bytes. Linux limits it to `net.core.wmem_max` and then doubles it. A
message takes room in it until it is received. One commit sends about 8 answers of 20 KiB through each socket, and those
of the commit before may still be there. An answer without room is lost, and its receiver waits for up to half a second.
"""
_SEND_MS = 20
"""Maximum time to wait for room in the receiver's queue, in milliseconds."""
_RETRY_MS = 10_000.0
"""Time after which a process tries again to bind its sockets, in milliseconds."""
_LONGEST_NUMBERS = len("-65535-9")
"""Length of the numbers that end a socket's path."""
_MOST_PATH = 100
"""Maximum length of a socket's path, in bytes (the limit of macOS is 104)."""


class Mailbox(Protocol):
    """Sends intents and answers to other processes of this machine, and keeps those that this process receives. The
    address of a process is the node number in the ids that it makes."""

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

    def received(self, ids: Iterable[int]) -> dict[int, bytes]:
        """Return those of these intents of other processes that were received, by id."""
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

    def received(self, ids: Iterable[int]) -> dict[int, bytes]:
        return {}

    def take_answer(self, id: int) -> None: ...

    def remove(self, ids: Iterable[int]) -> None: ...

    def is_near(self, node: int) -> bool:
        return False

    def wait(self, ms: float) -> None:
        self._clock.sleep_ms(ms)

    def close(self) -> None: ...


class _Bound:
    """The sockets of this process, and the paths at which other processes find them."""

    def __init__(self, prefix: str, node: int) -> None:
        """
        Args:
            prefix: folder and first part of the names of all sockets of the store.
        Raises:
            OSError: a socket cannot be bound.
        """
        self.prefix = prefix
        self.node = node
        self._sockets: dict[int, socket.socket] = {}
        """The sockets by file descriptor."""
        self._paths: dict[str, int] = {}
        """The path of each socket, with its inode when the socket was bound. If the path has another inode now, it is
        the socket of another process."""
        self._senders: list[socket.socket] = []
        """The sockets in the order of their numbers."""
        self._ready = select.poll()
        try:
            for number in range(SOCKETS):
                self._bind(self.path_of(node, number))
        except BaseException:
            self.close()
            raise

    def _bind(self, path: str) -> None:
        own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sockets[own.fileno()] = own
        self._senders.append(own)
        own.settimeout(None)  # whatever `socket.setdefaulttimeout` says
        with contextlib.suppress(OSError):  # macOS refuses a size that is too large
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, _SEND_MS * 1_000))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        own.bind(path)
        self._paths[path] = os.lstat(path).st_ino
        self._ready.register(own, select.POLLIN)

    def path_of(self, node: int, sender: int) -> str:
        """Return the path of the socket on which the process with node number `node` receives the messages of the
        process with node number `sender`. A process has `SOCKETS` sockets, and several senders share each."""
        return f"{self.prefix}-{node}-{sender % SOCKETS}"

    def send(self, node: int, message: bytes, flags: int) -> None:
        """Send a message to a process.

        Raises:
            OSError: the process cannot be reached now.
        """
        # A datagram takes room in the buffer of the socket that sends it until it is received.
        own = self._senders[node % SOCKETS]
        own.sendto(message, flags, self.path_of(node, self.node))

    def receive(self) -> Iterator[bytes]:
        """Yield the messages that have come, at most `_MOST_AT_ONCE`. Only one thread at a time may call this."""
        left = _MOST_AT_ONCE
        while left > 0 and (ready := self._ready.poll(0)):
            for descriptor, _ in ready:
                try:
                    yield self._sockets[descriptor].recv(_HEADER.size + MOST_BYTES, socket.MSG_DONTWAIT)
                except OSError:  # another thread closed the socket
                    return
                left -= 1

    def wait(self, ms: float) -> bool:
        """Wait until a message can be received, at most for `ms` milliseconds. Return False at once if the sockets are
        closed."""
        poll = select.poll()  # several threads may wait at the same time
        try:
            for one in self._sockets.values():
                poll.register(one, select.POLLIN)
            return not any(event & select.POLLNVAL for _, event in poll.poll(ms))
        except (OSError, ValueError):  # another thread closed a socket, so it has no descriptor
            return False

    def is_in_place(self) -> bool:
        """Whether the paths still lead to these sockets. All are looked at, because a sender that believes this process
        dead removes only the path that it has tried."""
        return all(_inode(path) == inode for path, inode in self._paths.items())

    def close_copies(self) -> None:
        """Close the sockets, and leave their paths in place."""
        for one in self._sockets.values():
            one.close()

    def close(self) -> None:
        """Close the sockets, and remove their paths."""
        self.close_copies()
        for path, inode in self._paths.items():
            if _inode(path) == inode:
                with contextlib.suppress(OSError):
                    os.unlink(path)


def _inode(path: str) -> int | None:
    try:
        return os.lstat(path).st_ino
    except OSError:
        return None


class SocketMailbox:
    """A mailbox on Unix datagram sockets in a folder that only this user can open. Thread-safe.

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
            bound.close_copies()  # the paths are the parent's
        self._begin()

    def close(self) -> None:
        """Remove the sockets. Other processes then use the database."""
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

    def received(self, ids: Iterable[int]) -> dict[int, bytes]:
        self._receive()
        kept = self._received
        return {id: intent for id in ids if (intent := kept.get(id)) is not None}

    def take_answer(self, id: int) -> bytes | None:
        if id not in self._answers:
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
        bound = self._bound
        if bound is not None and bound.wait(ms):
            self._receive()
        else:
            self._clock.sleep_ms(ms)

    def _receive(self) -> None:
        """Read the messages that have come."""
        bound = self._bound
        if bound is None:
            return
        with self._guard:
            for message in bound.receive():
                self._keep(message)

    def _keep(self, message: bytes) -> None:
        """Keep a message until it is asked for. The caller must hold `_guard`."""
        if len(message) < _HEADER.size:
            return
        node, id = _HEADER.unpack_from(message)
        if len(message) == _HEADER.size:
            self._heard.pop(node, None)
            return
        if node != _ANSWER:
            self._heard[node] = self._clock.monotonic_ms()
        kept = self._answers if node == _ANSWER else self._received
        kept[id] = message[_HEADER.size :]
        if len(kept) > _MOST_KEPT:
            del kept[next(iter(kept))]

    def _sent(self, bound: _Bound, node: int, message: bytes, flags: int) -> bool:
        try:
            bound.send(node, message, flags)
        except ConnectionRefusedError:  # its process died
            with contextlib.suppress(OSError):
                os.unlink(bound.path_of(node, bound.node))
        except OSError:
            pass
        else:
            return True
        return False

    def _bind(self, node: int) -> _Bound:
        folder = Path(tempfile.gettempdir(), f"polaris-spark-{os.getuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(f"{folder} is not a folder that only this user can open")
        prefix = str(folder / self._prefix)
        if len(os.fsencode(prefix)) + _LONGEST_NUMBERS > _MOST_PATH:
            raise OSError(f"the path {prefix} is too long for a socket")
        _remove_dead(folder.glob(f"{self._prefix}-*"))
        return _Bound(prefix, node)

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
_FORMAT = 3
"""Number of the messages' format. Processes with different formats do not reach each other."""


def mailbox_of(store: str, node: Callable[[], int], clock: Clock) -> SocketMailbox | NoMailbox:
    """Return a mailbox for the processes of this machine; a `NoMailbox` if the system has no Unix sockets, or if the
    clock is not the machine's."""
    has_sockets = hasattr(socket, "AF_UNIX") and isinstance(clock, SystemClock)
    return SocketMailbox(store, node, clock) if has_sockets else NoMailbox(clock)
