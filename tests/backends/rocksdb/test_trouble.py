"""Failures of RocksDB stores: directories that are not stores, options, full disks and damaged files."""

from __future__ import annotations

import errno
import itertools
import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Conflict, ObjectKey, ObjectRow, Split
from polaris_spark.backends.rocksdb import directories, scans
from polaris_spark.backends.rocksdb.handles import Handle
from polaris_spark.errors import (
    CorruptionError,
    OutcomeUnknownError,
    StoreURIError,
    TryAgainError,
)
from polaris_spark.testing.stores import row

_FULL = """
import resource, signal, sys
from polaris_spark.backends import open_backend
from polaris_spark.backends.base import ObjectKey, ObjectRow, ReferenceRow, Swapped
from polaris_spark.errors import TryAgainError

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
backend = open_backend(sys.argv[1])
backend.setup()
backend.insert_reference("realm", "name", ReferenceRow(b"1", b"before"))
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))

def refused(function):
    try:
        function()
    except TryAgainError as error:
        assert "the disk of rocksdb://" in str(error) and "is full" in str(error), error
        return
    raise AssertionError("nothing was refused")

large = b"x" * 300_000
refused(lambda: backend.write_and_swap("realm", [ObjectRow(1, 0, large)], "name", b"1", ReferenceRow(b"2", b"x")))
assert backend.read_reference("realm", "name") == ReferenceRow(b"1", b"before")
assert backend.read_objects("realm", [ObjectKey(1)]) == {}
refused(lambda: backend.write_objects("realm", [ObjectRow(1, 0, large)]))
assert backend.read_reference("realm", "name") == ReferenceRow(b"1", b"before")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
new = ReferenceRow(b"2", b"after")
assert backend.write_and_swap("realm", [ObjectRow(1, 0, large)], "name", b"1", new) == Swapped()
backend.close()
backend = open_backend(sys.argv[1])
assert backend.read_reference("realm", "name") == new
assert backend.read_objects("realm", [ObjectKey(1)]) == {ObjectKey(1): large}
"""


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"rocksdb://{tmp_path}/store"


def test_a_full_disk_is_reported_without_loss_and_writes_succeed_when_there_is_space(uri: str) -> None:
    done = subprocess.run([sys.executable, "-c", _FULL, uri], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_damaged_file_is_reported_as_corruption(uri: str, tmp_path: Path) -> None:
    backend = open_backend(uri)
    backend.setup()
    backend.write_objects("realm", [ObjectRow(id, 0, os.urandom(2_000)) for id in range(500)])
    backend.close()  # which flushes the rows into a file
    (file,) = (tmp_path / "store").glob("*.sst")
    damaged = bytearray(file.read_bytes())
    for at in range(0, len(damaged) // 2, 50):
        damaged[at] ^= 0xFF
    file.write_bytes(damaged)
    backend = open_backend(uri)
    with pytest.raises(CorruptionError, match=re.escape(f"{uri} is damaged")):
        backend.read_objects("realm", [ObjectKey(id) for id in range(500)])
    with pytest.raises(CorruptionError, match=re.escape(f"{uri} is damaged")):
        backend.read_objects("realm", [ObjectKey(1)])
    backend.write_objects("realm", [ObjectRow(1_000, 0, b"")])
    with pytest.raises(CorruptionError, match=re.escape(f"{uri} is damaged")) as kept:
        list(backend.scan(Split("objects", ((b"o", b"p"),))))
    backend.close()
    with closing(open_backend(uri)) as again:
        again.write_objects("realm", [ObjectRow(1_001, 0, b"")])
    assert kept.value.__traceback__ is not None, "the error's frames would keep the store locked"


def test_a_database_without_the_file_that_names_its_files_is_left_alone(uri: str, tmp_path: Path) -> None:
    with closing(open_backend(uri)) as backend:
        backend.setup()
        backend.write_objects("realm", [ObjectRow(1, 0, b"value")])
    current = tmp_path / "store" / "CURRENT"
    current.rename(tmp_path / "kept")
    with closing(open_backend(uri)) as backend:
        for _ in range(2):
            with pytest.raises(CorruptionError, match="CURRENT is missing"):
                backend.setup()
            with pytest.raises(StoreURIError, match="does not contain a store"):
                backend.write_objects("realm", [ObjectRow(2, 0, b"value")])
    (tmp_path / "kept").rename(current)
    with closing(open_backend(uri)) as backend:
        assert backend.read_objects("realm", [ObjectKey(1)]) == {ObjectKey(1): b"value"}


def test_a_change_that_was_logged_when_the_disk_was_full_may_have_happened(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(_: Handle) -> None:
        raise Exception("IO error: No space left on device: While fsync: 000004.log")

    with closing(open_backend(uri)) as backend:
        monkeypatch.setattr(Handle, "_sync", sync)
        backend.setup()
        first, other = row(), row()
        with pytest.raises(OutcomeUnknownError, match="may or may not survive"):
            backend.insert_reference("realm", "name", first)
        monkeypatch.undo()
        assert backend.insert_reference("realm", "name", other) == Conflict(first)


def test_a_directory_of_others_and_a_file_are_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "letter.txt").write_text("dear reader")
    (tmp_path / "file").write_text("dear reader")
    Rdict(str(tmp_path / "database"), Options(raw_mode=True)).close()
    before = sorted(path.name for path in (tmp_path / "database").iterdir())
    for name, problem in (
        ("folder", "other files in it"),
        ("file", "is a file"),
        ("file/store", "is a file, or is below a file"),
        ("missing/store", "the directory .*missing does not exist"),
        ("database", "other files in it"),
    ):
        with pytest.raises(StoreURIError, match=problem):
            open_backend(f"rocksdb://{tmp_path}/{name}").setup()
    with pytest.raises(StoreURIError, match="another program"):
        open_backend(f"rocksdb://{tmp_path}/database").read_reference("realm", "name")
    assert sorted(path.name for path in (tmp_path / "database").iterdir()) == before
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["letter.txt"]


def test_an_empty_directory_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    backend = open_backend(f"rocksdb://{tmp_path}/store")
    backend.setup()
    assert backend.read_reference("realm", "name") is None
    backend.close()


def test_a_directory_that_may_not_survive_a_power_cut_is_not_a_store_yet(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(directory: str) -> None:
        raise OSError(errno.EIO, f"flushing {directory}")

    monkeypatch.setattr(directories, "flush_directory", fail)
    with closing(open_backend(uri)) as backend:
        with pytest.raises(StoreURIError, match=f"cannot be created: flushing {tmp_path}"):
            backend.setup()
        assert list((tmp_path / "store").iterdir()) == []
        monkeypatch.undo()
        backend.setup()
        assert backend.read_reference("realm", "name") is None


@pytest.mark.parametrize("mark", ["5", "another program's store, format 1", "polaris_spark store, format x"])
def test_a_directory_with_another_mark_is_not_a_store(uri: str, tmp_path: Path, mark: str) -> None:
    backend = open_backend(uri)
    backend.setup()
    backend.close()
    (tmp_path / "store" / "POLARIS_SPARK").write_text(mark)
    with pytest.raises(StoreURIError, match="is not a store: its file POLARIS_SPARK contains"):
        open_backend(uri).read_reference("realm", "name")


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_range_whose_first_row_was_not_read_for_once_is_not_taken_for_empty(
    uri: str, failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_backend(uri)) as backend:
        backend.setup()
        backend.write_objects("realm", [ObjectRow(1, 0, b"value")])
        [split] = backend.splits("objects", ["realm"], 1)
        rows = scans._rows
        attempts = itertools.count()
        monkeypatch.setattr(scans, "_rows", lambda *place: rows(*place) if next(attempts) >= failures else [])
        if failures < scans._ATTEMPTS:
            assert sum(batch.num_rows for batch in backend.scan(split)) == 1
        else:
            with pytest.raises(TryAgainError, match="returned no rows, although the range has rows"):
                list(backend.scan(split))
