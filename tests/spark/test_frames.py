"""The directory of the sockets: files of killed processes are removed, and nothing else."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from polaris_spark.spark.frames import LEFTOVER_SECONDS, PREFIX, Server


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # pytest's own directories have names that are too long for a socket.
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)


def server() -> Server:
    return Server("token", lambda head, body: (head, body))


def age(directory: Path) -> None:
    """Set the modification time of a directory to long ago."""
    then = directory.stat().st_mtime - 2 * LEFTOVER_SECONDS
    os.utime(directory, (then, then))


def make_leftover(place: Path, name: str) -> Path:
    """Create what a killed process leaves: a socket on which no process listens."""
    directory = place / name
    directory.mkdir(mode=0o700)
    os.mknod(directory / "socket", 0o140600)
    return directory


def test_leftovers_of_killed_processes_are_removed(place: Path) -> None:
    leftover = make_leftover(place, PREFIX + "old")
    age(leftover)
    with closing(server()):
        assert not leftover.exists()


def test_a_new_socket_directory_is_kept_because_its_process_may_not_listen_yet(place: Path) -> None:
    fresh = make_leftover(place, PREFIX + "fresh")
    with closing(server()):
        assert fresh.exists()


def test_the_directory_of_a_running_server_is_kept(place: Path) -> None:
    with closing(server()) as first:
        age(first.directory)
        with closing(server()):
            assert first.path.is_socket()


def test_directories_of_others_stay(place: Path) -> None:
    other = make_leftover(place, "spark-something")
    age(other)
    with closing(server()):
        assert other.exists()


@pytest.mark.parametrize("name", ["long" * 20, "straße"])
def test_a_temporary_directory_with_an_unsuitable_name_is_not_used_for_a_socket(
    place: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place / name))
    with closing(server()) as somewhere:
        assert somewhere.path.is_socket()
        assert not somewhere.directory.is_relative_to(place)
