"""Listing folders, and deleting in them, on file systems of several kinds."""

from __future__ import annotations

import pickle
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from pyiceberg.io.fsspec import FsspecFileIO

from polaris_spark.catalog.files.files import Files
from polaris_spark.catalog.files.folders import Folders, Links, repeated
from polaris_spark.catalog.files.permits import Permit
from polaris_spark.errors import BadRequestError, UnreadableFileError


class MemoryFileIO(FsspecFileIO):
    """Files in fsspec's memory file system. Its listings contain no time that Arrow understands."""

    def get_fs(self, scheme: str, hostname: str | None = None) -> fsspec.AbstractFileSystem:
        return fsspec.filesystem("memory")


@pytest.fixture
def memory() -> Iterator[str]:
    """A folder in memory."""
    folder = f"memory://{uuid.uuid4()}"
    system = fsspec.filesystem("memory")
    yield folder
    system.rm(folder, recursive=True)


def test_file_systems_of_fsspec_are_listed_with_their_times(memory: str) -> None:
    folders = Folders(Files({"py-io-impl": f"{__name__}.MemoryFileIO"}))
    system = fsspec.filesystem("memory")
    for name in ("a", "inner/b", "inner/deep/c#1"):
        system.pipe(f"{memory}/{name}", b"12345")
    found = {listed.location: listed for listed in folders.below(memory)}
    assert set(found) == {f"{memory}/a", f"{memory}/inner/b", f"{memory}/inner/deep/c#1"}
    assert {listed.size for listed in found.values()} == {5}
    assert all(abs(listed.modified_ms / 1_000 - time.time()) < 3_600 for listed in found.values())
    assert folders.file(f"{memory}/a") == found[f"{memory}/a"]
    delete(folders, memory, f"{memory}/inner/deep/c#1")
    assert folders.file(f"{memory}/inner/deep/c#1") is None


def delete(folders: Folders, root: str, location: str) -> None:
    """Delete a file below a folder."""
    permit = Permit([root])
    assert folders.delete(permit.grant(location), permit)


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert list(Folders(Files({})).below(f"file://{tmp_path}/none")) == []


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadRequestError, match="cannot list"):
        Folders(Files({})).contents(f"file://{tmp_path}/file")


def test_deleting_a_local_file_deletes_its_checksum_file(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    (tmp_path / ".f.crc").touch()
    delete(Folders(Files({})), str(tmp_path), f"file://{tmp_path}/f")
    assert list(tmp_path.iterdir()) == []


def test_links_in_the_folder_of_a_local_file_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    resolved = Links().resolved
    assert resolved(f"file:{tmp_path}/alias/f#1") == f"file://{tmp_path}/real/f#1"
    assert resolved("s3://b/alias/f") == "s3://b/alias/f"
    assert resolved("file://[x/f") == "file://[x/f", "what is no URI stays as it stands"


def test_a_changed_link_is_followed_by_later_requests(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "first")
    before = Links()
    assert before.resolved(f"{tmp_path}/alias/f") == f"file://{tmp_path}/first/f"
    (tmp_path / "alias").unlink()
    (tmp_path / "alias").symlink_to(tmp_path / "second")
    for links in (Links(), pickle.loads(pickle.dumps(before))):
        assert links.resolved(f"{tmp_path}/alias/f") == f"file://{tmp_path}/second/f"


def test_a_deletion_that_fails_temporarily_is_repeated() -> None:
    attempts = iter([OSError("busy"), UnreadableFileError("busy", location="f"), None])

    def act() -> str:
        error = next(attempts)
        if isinstance(error, UnreadableFileError):
            raise error from OSError("busy")
        if error is not None:
            raise error
        return "done"

    assert repeated(act, first_wait_s=0) == "done"


@pytest.mark.parametrize(
    "error", [FileNotFoundError(), PermissionError(), UnreadableFileError("damaged", location="f")]
)
def test_a_deletion_with_a_permanent_error_is_not_repeated(error: Exception) -> None:
    attempts = []

    def act() -> None:
        attempts.append(1)
        raise error

    with pytest.raises(type(error)):
        repeated(act, first_wait_s=0)
    assert len(attempts) == 1


def test_a_file_whose_name_looks_like_a_pattern_is_deleted_alone(memory: str) -> None:
    folders = Folders(Files({"py-io-impl": f"{__name__}.MemoryFileIO"}))
    system = fsspec.filesystem("memory")
    patterns = [f"{memory}/{name}" for name in ("*", "?", "[ab]", "a#b", "a?b")]
    others = [f"{memory}/{name}" for name in ("a", "b", "axb")]
    for location in (*patterns, *others):
        system.pipe(location, b"1")
    permit = Permit([memory])
    assert folders.delete_all([permit.grant(at) for at in (*patterns, f"{memory}/none")], permit) == {}
    assert {listed.location for listed in folders.below(memory)} == set(others)


def test_files_that_cannot_be_deleted_are_returned(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "f").touch()
    places = [f"file://{tmp_path}/{name}" for name in ("inner", "f", "none")]
    permit = Permit([str(tmp_path), "foo://b"])
    failed = Folders(Files({})).delete_all([permit.grant(at) for at in (*places, "foo://b/x")], permit)
    assert list(failed) == [places[0], "foo://b/x"]
    assert "foo" in failed["foo://b/x"]
    assert not (tmp_path / "f").exists()
