"""A database server of one's own: started, killed and started again by tests, and gone after them."""

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
    """A port of the loopback address that nobody else gets until `close`, whether or not its server runs.

    A socket is bound to it and never listens. The kernel then gives the port to nobody who asks for any free one, and
    to nobody who names it, save to servers that set SO_REUSEADDR as this socket does: every server here, so that it can
    start again at once after it was killed.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Leave the port to others."""
        self._socket.close()

    def __enter__(self) -> ReservedPort:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Server(ABC):
    """A running server in a temporary directory, until `close`."""

    name: ClassVar[str]
    """What people call it."""
    durable: ClassVar[bool] = True
    """Whether what it acknowledged is there again after `kill` and `start`."""

    durability: ClassVar[str] = "the server's defaults"
    """What decides when its writes are on disk, as its operator would say it."""
    hasty: ClassVar[str] = "timeout=2s"
    """Options of a store URI with which clients give up within a few seconds."""

    port: int
    """Where it listens on 127.0.0.1; the same after each start."""

    @abstractmethod
    def uri(self, store: str, *, port: int | None = None) -> str:
        """URI of a store called `store` (letters, digits and `_`), which does not exist until it is set up.

        Args:
            port: where clients reach the server, if not at its own port: that of a proxy.
        """

    @abstractmethod
    def start(self) -> None:
        """Start the server, again after `kill` or `stop`, on the same port and files.

        Raises:
            StateError: it does not start; the message says why.
        """

    @abstractmethod
    def kill(self) -> None:
        """End the server at once, whatever it is doing."""

    @abstractmethod
    def stop(self) -> None:
        """End the server as its operator would."""

    @abstractmethod
    def close(self) -> None:
        """End the server and remove its files."""

    def restart(self) -> None:
        """Stop the server, which ends its sessions, and start it again."""
        self.stop()
        self.start()

    def wrong_credentials(self, store: str) -> str | None:
        """`uri(store)` with a wrong password or key; None where the server asks for none."""
        return None

    def unprivileged(self, store: str) -> str | None:
        """`uri(store)` of a user who may log in and may not set up a store; None where all users may."""
        return None

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ProcessServer(Server):
    """A server that is one process of ours: a subclass says how it is started, and when it is ready."""

    ready_s: ClassVar[float] = 300
    """How long it may take to start on a slow machine."""

    def __init__(self) -> None:
        """
        Raises:
            StateError: the server cannot be had here, or does not start; the message says why.
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
        """Another port of its own, until `close`."""
        self._reserved.append(ReservedPort())
        return self._reserved[-1].number

    def prepare(self) -> None:
        """What is done once, before the first start: files in `directory`."""
        return

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The program and its arguments."""

    def environment(self) -> Mapping[str, str]:
        """Variables of the program's environment over this process' own."""
        return {}

    def ready(self) -> bool:
        """Whether it serves clients, asked again and again: it accepts connections, unless a subclass knows better."""
        return answers(self.port)

    def start(self) -> None:
        if self._process is not None:
            raise StateError(f"{self.name} is running")
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
        """End the server by SIGTERM, and by SIGKILL if that takes longer than half a minute."""
        self._end(signal.SIGTERM)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
        for port in self._reserved:
            port.close()

    def log(self) -> str:
        """The last lines that it wrote."""
        return self._log.read_text(errors="replace")[-3_000:]

    @property
    def pid(self) -> int:
        """Process id of the running server.

        Raises:
            StateError: it is not running.
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
    """Whether somebody listens on a port of the loopback address."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
