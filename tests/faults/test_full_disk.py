"""Database servers whose disk is full. Their files are on a small file system in memory, which only root can mount."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import ObjectKey, ObjectRow, ReferenceRow, Swapped
from polaris_spark.errors import OutcomeUnknownError, PolarisError, StateError, TryAgainError
from polaris_spark.testing.server import Server, answers
from polaris_spark.testing.stores import row, with_options
from polaris_spark.testing.waiting import until_it_works
from tests.rest.client import set_properties
from tests.server.servers import Server as Http
from tests.server.servers import client, options
from tests.servers import server_class
from tests.stores import databases, start

SIZES = {"postgresql": 200, "s3": 60}
"""Servers that go on when there is room again, and the room that they are given, megabytes: what they need for
themselves, and a little more."""
BALLAST = 20 * 2**20
"""Bytes that are freed again."""
AT_ONCE_S = 30.0
"""Seconds in which even a slow machine answers. A commit that is retried would be given up only after 60."""


@pytest.fixture
def disk(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A small file system for the files of a server.

    It is not mounted below `tmp_path`, whose parents PostgreSQL's own user cannot enter.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    folder = Path(tempfile.mkdtemp(prefix="polaris-disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZES[request.param]}m", "none", str(folder)]
    if subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode:
        folder.rmdir()
        pytest.skip("no file system can be mounted here")
    folder.chmod(0o777)
    (folder / "ballast").write_bytes(bytes(BALLAST))
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
    folder.rmdir()


@pytest.fixture
def cramped(disk: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server whose files are on the small file system."""
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    with start(server_class(request.node.callspec.params["disk"])) as server:
        monkeypatch.undo()
        yield server


@pytest.mark.parametrize("disk", databases(list(SIZES), ordinary=()), indirect=True)
def test_a_full_disk_is_reported_without_loss_and_commits_succeed_when_there_is_space(
    disk: Path, cramped: Server
) -> None:
    backend = open_backend(with_options(cramped.uri("cramped"), cramped.hasty))
    until_it_works(backend.setup)
    backend.insert_reference("realm", "name", first := row(b"first"))
    written: list[int] = []

    def fill() -> None:
        for id in count():
            backend.write_objects("realm", [ObjectRow(id, 0, os.urandom(300_000))])
            written.append(id)

    def read() -> ReferenceRow | None:
        if not answers(cramped.port):
            with contextlib.suppress(StateError):  # it recovers by itself
                cramped.start()
        return backend.read_reference("realm", "name")

    with pytest.raises((TryAgainError, OutcomeUnknownError, StateError)) as told:
        fill()
    assert written
    print(len(written), type(told.value).__name__, told.value)
    with contextlib.suppress(PolarisError):
        backend.swap_reference("realm", "name", b"another version", row(os.urandom(300_000)))
    (disk / "ballast").unlink()
    try:
        assert until_it_works(read) == first
    finally:
        backend.close()
    again = open_backend(cramped.uri("cramped"))
    found = until_it_works(lambda: again.read_objects("realm", [ObjectKey(id) for id in written]))
    assert set(found) == {ObjectKey(id) for id in written}
    until_it_works(lambda: again.write_objects("realm", [ObjectRow(10**6, 0, b"x" * 300_000)]))
    assert until_it_works(lambda: again.read_reference("realm", "name")) == first
    assert again.swap_reference("realm", "name", first.version, row()) == Swapped()
    again.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(folder)]
    if subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
    folder.rmdir()


def fill(folder: Path) -> Path:
    """Fill the file system of a folder. Returns the file that fills it."""
    path = folder / "ballast"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4_096)):
            pass
    return path


STORES = {
    "the store": ("sqlite://{small}/store.db", "{large}/warehouse", "every-commit"),
    "a directory": ("file://{small}/store", "{large}/warehouse", "never"),
    "the metadata files": ("sqlite://{large}/store.db", "{small}/warehouse", "every-commit"),
}


@pytest.mark.parametrize("kind", STORES)
def test_a_full_disk_is_reported_to_clients_at_once_and_reads_go_on(
    small_disk: Path, tmp_path: Path, kind: str
) -> None:
    places = {"small": small_disk, "large": tmp_path}
    store, warehouse, files = (text.format(**places) for text in STORES[kind])
    with Http(store, *options(Path(warehouse), "--metadata-files", files, "--threads", "2")) as server:
        one = client(server)
        one.namespace("db")
        one.create()
        ballast = fill(small_disk)
        large = set_properties(a="".join(random.choices("abcdefgh", k=100_000)))
        begun = time.monotonic()
        for _ in range(4):
            answer = one.commit("t", large)
            assert answer.kind == (507, "InsufficientStorageException"), answer
            assert one.send("GET", "v1/config").status == 200
            assert one.session.raw("GET", "/healthz")[0] == 200  # type: ignore[attr-defined]  # a Remote
        assert time.monotonic() - begun < AT_ONCE_S
        assert "a" not in one.load("t")["metadata"]["properties"]
        ballast.unlink()
        assert one.commit("t", large).status == 200
        assert one.load("t")["metadata"]["properties"]["a"] == large["updates"]["a"]
