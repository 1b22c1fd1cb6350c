"""A headless Chromium for tests of pages: Debian's packages, driven over the WebDriver protocol.

One that is installed is taken; else its packages are unpacked once into the user's cache directory, nothing on the
machine is changed, and root is not needed.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import requests

from polaris_spark.errors import StateError
from polaris_spark.testing.server import ReservedPort, answers
from tests.servers.installing import installed, run

_PACKAGES: Final = ("chromium", "chromium-driver")
_ALONE: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""Flags with which it asks nobody for anything of its own accord, and runs in a container."""
_READY_S: Final = 60
_ANSWER_S: Final = 120


class Browser:
    """A browser process with an empty profile. It runs until `close`."""

    def __init__(self) -> None:
        """
        Raises:
            StateError: there is no Chromium here, and none can be had; or it does not start.
        """
        program, driver, libraries = _programs()
        self.directory = Path(tempfile.mkdtemp(prefix="polaris-browser-"))
        self._reserved = ReservedPort()
        self._port = self._reserved.number
        self._session = ""
        with open(self.directory / "log", "wb") as log:
            self._process = subprocess.Popen(
                [str(driver), f"--port={self._port}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
                    "HOME": str(self.directory),
                },
            )
        try:
            self._wait()
            self._session = self._begin(program)
            self.open("about:blank")
            self.requests()  # of the page that a new window shows
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        end = time.monotonic() + _READY_S
        while not answers(self._port):
            if self._process.poll() is not None or time.monotonic() > end:
                log = (self.directory / "log").read_text(errors="replace")
                raise StateError(f"the browser's driver does not start: {log[-2_000:]}")
            time.sleep(0.02)

    def _begin(self, program: Path) -> str:
        options = {
            "binary": str(program),
            "args": [*_ALONE, f"--user-data-dir={self.directory / 'profile'}", "--window-size=1100,1400"],
        }
        wanted = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"performance": "ALL", "browser": "ALL"},
        }
        answer = self._ask("POST", "", {"capabilities": {"alwaysMatch": wanted}})
        return f"/{answer['sessionId']}"

    def open(self, url: str) -> None:
        """Load a page, all of it."""
        self._ask("POST", "/url", {"url": url})

    def evaluate(self, script: str) -> Any:
        """Run a script in the page and return its result, even if the page's policy forbids scripts."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": []})

    def requests(self) -> list[str]:
        """Return every URL that pages have requested since the last call, including their own URLs."""
        entries = self._ask("POST", "/se/log", {"type": "performance"})
        events = [json.loads(entry["message"])["message"] for entry in entries]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """Return the messages in the browser's console since the last call, including violations of the page's
        policy."""
        return [entry["message"] for entry in self._ask("POST", "/se/log", {"type": "browser"})]

    def screenshot(self) -> bytes:
        """The window as PNG."""
        return base64.b64decode(self._ask("GET", "/screenshot"))

    def close(self) -> None:
        """End the browser and remove its profile."""
        if self._session:
            with contextlib.suppress(requests.RequestException):
                requests.delete(self._url(self._session), timeout=_ANSWER_S)
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)
        self._reserved.close()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._port}/session{path}"

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = requests.request(method, self._url(self._session + path), json=body, timeout=_ANSWER_S)
        value = answer.json()["value"]
        if not answer.ok:
            raise StateError(f"the browser refused {path or 'to begin'}: {value['message']}")
        return value


def _programs() -> tuple[Path, Path, list[Path]]:
    """Return the paths of the browser and its driver, and the folders of libraries that the machine lacks."""
    driver = shutil.which("chromedriver")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if driver and program:
        return Path(program), Path(driver), []
    for tool in ("apt-get", "apt-cache", "dpkg"):
        if shutil.which(tool) is None:
            raise StateError(
                f"there is neither a Chromium with its driver here nor {tool!r} to get Debian's packages"
            )
    root = installed(f"chromium-{_version()}", _unpack)
    libraries = sorted({file.parent for file in (root / "usr/lib").glob("*/**/*.so*")})
    return root / "usr/lib/chromium/chromium", root / "usr/bin/chromedriver", libraries


def _version() -> str:
    shown = _output("apt-cache", "show", "--no-all-versions", _PACKAGES[0])
    found = [line.partition(": ")[2] for line in shown.splitlines() if line.startswith("Version: ")]
    if not found:
        raise StateError(f"apt has no package {_PACKAGES[0]!r}: run 'apt-get update' as root")
    return found[0].replace(":", "-")


def _unpack(directory: Path) -> None:
    """Unpack the packages and the packages they need that this machine lacks."""
    plan = _output("apt-get", "install", "--simulate", "--no-install-recommends", *_PACKAGES)
    names = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
    if not set(_PACKAGES) <= set(names):
        raise StateError("apt cannot say what Chromium needs here")
    run(["apt-get", "-q", "download", *names], directory)
    for archive in directory.glob("*.deb"):
        run(["dpkg", "-x", archive.name, "."], directory)
        archive.unlink()


def _output(*command: str) -> str:
    """Return the output of a program; empty if it fails."""
    return subprocess.run(list(command), capture_output=True, text=True, check=False).stdout
