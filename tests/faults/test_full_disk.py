"""Servers whose disk is full: a small file system in memory holds their files, which only root can mount."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import ObjectKey, ObjectRow, ReferenceRow, Swapped
from polaris_spark.errors import OutcomeUnknownError, PolarisError, StateError, TryAgainError
from polaris_spark.testing.servers import server_class
from polaris_spark.testing.servers.base import Server, answers
from polaris_spark.testing.stores import row, with_options
from polaris_spark.testing.waiting import until_it_works
from tests.servers import databases, start

SIZES = {"postgresql": 200, "s3": 60}
"""Servers that go on when there is room again, and the room that they are given, megabytes: what they need for
themselves, and a little more."""
BALLAST = 20 * 2**20
"""Bytes that are freed again."""


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A small file system for the files of a server."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZES[request.param]}m", "none", str(folder)]
    if subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    for parent in (folder, *folder.parents[:3]):
        parent.chmod(0o755 if parent != folder else 0o777)  # PostgreSQL has a user of its own
    (folder / "ballast").write_bytes(bytes(BALLAST))
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def cramped(disk: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server whose files are there."""
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    with start(server_class(request.node.callspec.params["disk"])) as server:
        monkeypatch.undo()
        yield server


@pytest.mark.parametrize("disk", databases(list(SIZES), ordinary=()), indirect=True)
def test_a_full_disk_is_told_nothing_acknowledged_is_lost_and_work_goes_on_when_there_is_room(
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
