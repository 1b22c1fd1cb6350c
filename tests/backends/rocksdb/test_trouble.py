"""What goes wrong with a RocksDB store: what is no store, options, full disks and damaged files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import ObjectKey, ObjectRow, Split
from polaris_spark.errors import CorruptionError, NewerFormatError, StoreURIError
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


def test_a_full_disk_is_named_nothing_is_lost_and_writing_goes_on_once_there_is_space(uri: str) -> None:
    done = subprocess.run([sys.executable, "-c", _FULL, uri], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_damaged_file_is_told_as_damage(uri: str, tmp_path: Path) -> None:
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
    with pytest.raises(CorruptionError, match=re.escape(f"{uri} is damaged")):
        list(backend.scan(Split("objects", ((b"o", b"p"),))))
    backend.close()


def test_a_missing_store_is_not_made_by_reading_or_writing(uri: str, tmp_path: Path) -> None:
    backend = open_backend(uri)
    with pytest.raises(
        StoreURIError, match="holds no store; a catalog that is opened there with create=true"
    ):
        backend.read_reference("realm", "name")
    with pytest.raises(StoreURIError, match="holds no store"):
        backend.insert_reference("realm", "name", row())
    assert not (tmp_path / "store").exists()


def test_a_directory_of_others_and_a_file_are_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "letter.txt").write_text("dear reader")
    (tmp_path / "file").write_text("dear reader")
    Rdict(str(tmp_path / "database"), Options(raw_mode=True)).close()
    before = sorted(path.name for path in (tmp_path / "database").iterdir())
    for name, problem in (
        ("folder", "other files in it"),
        ("file", "names a file"),
        ("file/store", "names a file, or lies below one"),
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


def test_a_store_of_a_newer_release_is_refused(uri: str, tmp_path: Path) -> None:
    backend = open_backend(uri)
    backend.setup()
    backend.close()
    (tmp_path / "store" / "POLARIS_SPARK").write_text("polaris_spark store, format 2\n")
    again = open_backend(uri)
    for operation in (again.setup, lambda: again.read_reference("realm", "name")):
        with pytest.raises(NewerFormatError, match="format 2; this release knows format 1"):
            operation()


@pytest.mark.parametrize(
    ("options", "problem"),
    [("synchronous=off", "it is full or normal"), ("cache=1", "cache"), ("synchronous=", "full or normal")],
)
def test_options_that_mean_nothing_are_refused(uri: str, options: str, problem: str) -> None:
    with pytest.raises(StoreURIError, match=problem):
        open_backend(f"{uri}?{options}")
