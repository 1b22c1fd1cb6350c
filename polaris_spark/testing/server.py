"""Database servers that tests start, kill, start again, and remove at the end."""

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
    """A port of the loopback address that is reserved until `close`, whether or not its server runs.

    A socket is bound to the port and never listens. So the kernel does not assign the port to a process that requests
    any free port. A process that requests this port gets it only if it sets SO_REUSEADDR, as this socket does. All
    servers here set it, so that they can start again at once after they were killed.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Release the port."""
        self._socket.close()

    def __enter__(self) -> ReservedPort:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Server(ABC):
    """A running server in a temporary directory, until `close`."""

    name: ClassVar[str]
    """Name of the server, for people to read."""
    durable: ClassVar[bool] = True
    """Whether acknowledged writes survive `kill` and `start`."""

    durability: ClassVar[str] = "the server's defaults"
    """Settings that determine when writes are on disk, as text for an operator."""
    hasty: ClassVar[str] = "timeout=2s"
    """Options of a store URI that make clients give up within a few seconds."""

    port: int
    """Port of the server on 127.0.0.1; the same after each start."""

    @abstractmethod
    def uri(self, store: str, *, port: int | None = None) -> str:
        """Return the URI of the store `store` (letters, digits and `_`), which does not exist until it is set up.

        Args:
            port: port that clients use, such as the port of a proxy; by default the server's own port.
        """

    @abstractmethod
    def start(self) -> None:
        """Start the server. After `kill` or `stop` it has the same port and files as before.

        Raises:
            StateError: the server does not start; the message contains the reason.
        """

    @abstractmethod
    def kill(self) -> None:
        """End the server at once, without an orderly shutdown."""

    @abstractmethod
    def stop(self) -> None:
        """Shut the server down in the way that an operator would."""

    @abstractmethod
    def close(self) -> None:
        """End the server and remove its files."""

    def restart(self) -> None:
        """Stop the server, which ends its sessions, and start it again."""
        self.stop()
        self.start()

    def wrong_credentials(self, store: str) -> str | None:
        """Return `uri(store)` with a wrong password or key; None if the server needs no credentials."""
        return None

    def unprivileged(self, store: str) -> str | None:
        """Return `uri(store)` of a user who may log in but may not set up a store; None if all users may."""
        return None

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ProcessServer(Server):
    """A server that is one child process. A subclass defines its command, and when it is ready."""

    ready_s: ClassVar[float] = 300
    """Time limit for the start, in seconds; long enough for a slow machine."""

    def __init__(self) -> None:
        """
        Raises:
            StateError: the server is not available here or does not start; the message contains the reason.
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
        """Reserve another port for this server until `close`, and return it."""
        self._reserved.append(ReservedPort())
        return self._reserved[-1].number

    def prepare(self) -> None:
        """Make files in `directory`. Called once, before the first start."""
        return

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the program and its arguments."""

    def environment(self) -> Mapping[str, str]:
        """Return environment variables for the program, in addition to those of this process."""
        return {}

    def ready(self) -> bool:
        """Whether the server can serve clients. By default, whether it accepts connections. Polled during a start."""
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
        """End the server by SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the server by SIGTERM, and by SIGKILL if it has not ended after 30 seconds."""
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
    """Whether a process listens on a port of the loopback address."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
