"""Database servers for tests: they can be started, killed, started again, and removed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

from polaris_spark.errors import StateError

S = TypeVar("S", bound="Server")


class ReservedPort:
    """A TCP port of the loopback address, reserved for a server until `close`, even while the server does not run.

    A socket is bound to the port and never listens. So the kernel does not assign the port to a process that requests
    any free port. Another process can bind to the port only if it sets SO_REUSEADDR. All servers here set this option,
    because they must be able to start again at once after they were killed.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Release the port, so that it is no longer reserved."""
        self._socket.close()

    def __enter__(self) -> ReservedPort:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Server(ABC):
    """A database server with its files in a temporary directory. It runs until `close`."""

    name: ClassVar[str]
    """Name of the server, for messages."""
    durable: ClassVar[bool] = True
    """Whether acknowledged writes survive `kill` and `start`."""

    durability: ClassVar[str] = "the server's defaults"
    """Text that describes the server's settings for when writes reach the disk."""
    hasty: ClassVar[str] = "timeout=2s"
    """Options to append to a store URI so that clients give up after a few seconds."""

    port: int
    """Port of the server on 127.0.0.1. It does not change when the server is started again."""

    @abstractmethod
    def uri(self, store: str, *, port: int | None = None) -> str:
        """Return the URI of the store with the name `store` (letters, digits and `_`). The store may not exist yet.

        Args:
            port: port in the URI, such as the port of a proxy; by default, the server's own port.
        """

    @abstractmethod
    def start(self) -> None:
        """Start the server. After `kill` or `stop`, it starts with the same port and files.

        Raises:
            StateError: the server does not start; the message contains the reason.
        """

    @abstractmethod
    def kill(self) -> None:
        """Kill the server, without an orderly shutdown."""

    @abstractmethod
    def stop(self) -> None:
        """Shut the server down in order, as an operator does."""

    @abstractmethod
    def close(self) -> None:
        """Stop the server and remove its files."""

    def restart(self) -> None:
        """Stop the server and start it again. All connections to it end."""
        self.stop()
        self.start()

    def wrong_credentials(self, store: str) -> str | None:
        """Return `uri(store)` with a wrong password or key; None if the server needs no credentials."""
        return None

    def unprivileged(self, store: str) -> str | None:
        """Return `uri(store)` for a user who is allowed to log in, but not to set up a store. Return None if every user
        is allowed to set up stores."""
        return None

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ProcessServer(Server):
    """A server that runs as one child process. A subclass defines at least `name`, `command` and `uri`."""

    ready_s: ClassVar[float] = 300
    """Time limit for starting the server, in seconds. It is long enough for a slow machine."""

    def __init__(self) -> None:
        """
        Raises:
            StateError: the server is not installed, or does not start; the message contains the reason.
        """
        self.directory = Path(tempfile.mkdtemp(prefix=f"polaris-{type(self).__name__.lower()}-"))
        self._reserved: list[ReservedPort] = []
        self.port = self.reserve_port()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self.prepare()
            self.start()
        except BaseException:
            self.close()
            raise

    def reserve_port(self) -> int:
        """Reserve an additional port for this server, and return the port. It is released by `close`."""
        self._reserved.append(ReservedPort())
        return self._reserved[-1].number

    def prepare(self) -> None:
        """Create the files that the server needs in `directory`. Called once, before the first start."""
        return

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the command that starts the server: the program and its arguments."""

    def environment(self) -> Mapping[str, str]:
        """Return environment variables for the server, in addition to the variables of this process."""
        return {}

    def ready(self) -> bool:
        """Return whether the server can serve clients; by default, whether it accepts connections. Polled while it
        starts."""
        return answers(self.port)

    def start(self) -> None:
        if self._process is not None:
            raise StateError(f"{self.name} is already running")
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                list(self.command()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env={**os.environ, **self.environment()},
            )
        end = time.monotonic() + self.ready_s
        while not self.ready():
            if self._process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise StateError(f"{self.name} does not start: {self.log()}")
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the server with SIGTERM. If it has not ended after 30 seconds, kill it with SIGKILL."""
        self._end(signal.SIGTERM)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
        for port in self._reserved:
            port.close()

    def log(self) -> str:
        """Return the end of the server's output, at most 3,000 characters."""
        return self._log.read_text(errors="replace")[-3_000:]

    @property
    def pid(self) -> int:
        """Process id of the running server.

        Raises:
            StateError: the server is not running.
        """
        if self._process is None:
            raise StateError(f"{self.name} is not running")
        return self._process.pid

    @property
    def _log(self) -> Path:
        return self.directory / "log"

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answers(port: int) -> bool:
    """Return whether a process accepts connections on this port of the loopback address."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
