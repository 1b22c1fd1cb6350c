"""versitygw, a server that speaks S3, for tests and benchmarks: in a directory of its own, on loopback.

Built once with the Go toolchain (`go install`, two minutes or so) and kept in the user's cache directory.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from polaris_spark.errors import StateError

VERSION: Final = "v1.8.0"
_PACKAGE: Final = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
_BUILD_S: Final = 1_200
_READY_S: Final = 60
_BUCKET: Final = "catalogs"


class VersityGateway:
    """A server with one bucket in a temporary directory, until `close`."""

    def __init__(self) -> None:
        """
        Raises:
            StateError: the server cannot be built here, or does not start; the message says why.
        """
        self._program = program()
        self._directory = Path(tempfile.mkdtemp(prefix="polaris-versitygw-"))
        (self._directory / "data" / _BUCKET).mkdir(parents=True)
        self.user, self.secret = "polaris", secrets.token_hex(16)
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def endpoint(self) -> str:
        """The server's URL."""
        return f"http://127.0.0.1:{self.port}"

    def uri(self, prefix: str, *, port: int | None = None) -> str:
        """Store URI of a prefix of the bucket, with the server's credentials; `port` may be that of a proxy."""
        return (
            f"s3://{self.user}:{self.secret}@{_BUCKET}/{prefix}"
            f"?endpoint=http://127.0.0.1:{port or self.port}&region=us-east-1"
        )

    def start(self) -> None:
        """Start the server, again after `kill`, on the same port and files.

        Raises:
            StateError: it ended at once, or does not answer.
        """
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "ROOT_ACCESS_KEY": self.user,
            "ROOT_SECRET_KEY": self.secret,
        }
        data = str(self._directory / "data")
        with open(self._directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                [str(self._program), "--port", f"127.0.0.1:{self.port}", "--quiet", "posix", data],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                env=environment,
            )
        end = time.monotonic() + _READY_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                raise StateError(
                    f"versitygw does not start: {(self._directory / 'log').read_text()[-2_000:]}"
                )
            time.sleep(0.02)

    def kill(self) -> None:
        """End the server by SIGKILL, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Stop the server and remove its files."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> VersityGateway:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answers(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def program() -> Path:
    """The server's program, built now if it never was.

    Raises:
        StateError: there is no Go toolchain, or the build fails.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = cache / "polaris-spark" / f"versitygw-{VERSION}"
    found = directory / "versitygw"
    if found.exists():
        return found
    go = shutil.which("go")
    if go is None:
        raise StateError(
            "versitygw is not built here, and there is no Go toolchain to build it: install Go 1.24"
        )
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several test processes one builds, and the others wait
        if not found.exists():
            _build(go, directory)
    return found


def _build(go: str, directory: Path) -> None:
    with tempfile.TemporaryDirectory(dir=directory) as place:
        done = subprocess.run(
            [go, "install", _PACKAGE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**os.environ, "GOBIN": place},
            timeout=_BUILD_S,
            check=False,
        )
        if done.returncode:
            raise StateError(f"'go install {_PACKAGE}' failed: {done.stderr[-2_000:]}")
        os.replace(Path(place) / "versitygw", directory / "versitygw")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
