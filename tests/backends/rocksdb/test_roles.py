"""One process of a machine writes a RocksDB store, and the others read it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from rocksdict import WriteBatch

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, Conflict, ObjectKey, ObjectRow, ReferenceRow, Swapped
from polaris_spark.backends.rocksdb import RocksDBBackend, handles
from polaris_spark.errors import StateError
from polaris_spark.testing.processes import exit_status, in_threads, increments
from polaris_spark.testing.stores import row

_FOLLOW = """
import sys
from polaris_spark.backends import open_backend
from polaris_spark.backends.base import ObjectKey
backend = open_backend(sys.argv[1])
for line in sys.stdin:
    found = backend.read_reference("realm", "name")
    objects = backend.read_objects("realm", [ObjectKey(int(line))])
    print(found.value.decode(), objects.get(ObjectKey(int(line)), b"none").decode(), flush=True)
"""
_WRITE = """
import sys, time
from polaris_spark.backends import open_backend
from polaris_spark.backends.base import ReferenceRow
backend = open_backend(sys.argv[1])
backend.setup()
print(backend.insert_reference("realm", "child", ReferenceRow(b"1", b"value")), flush=True)
sys.stdin.read()
"""
_READ_OFTEN = """
import sys
from polaris_spark.backends import open_backend
from polaris_spark.backends.base import ObjectKey
backend = open_backend(sys.argv[1])
for _ in range(3_000):
    assert backend.read_objects("realm", [ObjectKey(1)])
backend.close()
print("done")
"""


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"rocksdb://{tmp_path}/store"


@pytest.fixture
def backend(uri: str) -> Iterator[Backend]:
    backend = open_backend(uri)
    backend.setup()
    yield backend
    backend.close()


def start(program: str, uri: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, uri],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ask(process: subprocess.Popen[str], line: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_another_process_reads_each_write_at_once_through_flushes_and_compactions(
    uri: str, backend: Backend
) -> None:
    current = row(b"0")
    backend.insert_reference("realm", "name", current)
    reader = start(_FOLLOW, uri)
    assert ask(reader, "0") == "0 none"
    for id in range(1, 61):
        filler = [
            ObjectRow(id * 1_000 + n, 0, os.urandom(100_000)) for n in range(10)
        ]  # several memtables in all
        new = row(b"%d" % id)
        backend.write_objects("realm", [*filler, ObjectRow(id, 0, b"o%d" % id)])
        backend.swap_reference("realm", "name", current.version, new)
        current = new
        assert ask(reader, str(id)) == f"{id} o{id}"
    backend.drop_realm("realm")
    backend.insert_reference("realm", "name", row(b"anew"))
    assert ask(reader, "7") == "anew none"
    reader.communicate()
    assert reader.returncode == 0


def test_a_second_writer_gets_an_error_until_the_first_has_ended(uri: str, backend: Backend) -> None:
    out, err = start(_WRITE, uri).communicate()
    assert out == ""
    assert f"WrittenElsewhereError: {uri} is being written by another process" in err
    assert backend.insert_reference("realm", "name", row()) == Swapped()
    backend.close()
    out, _ = start(_WRITE, uri).communicate()
    assert out.strip() == "Swapped()"
    again = open_backend(uri)
    assert isinstance(again.insert_reference("realm", "child", row()), Conflict)
    again.close()


def test_a_reader_does_not_block_the_writer_and_becomes_the_writer_by_writing(
    uri: str, backend: Backend
) -> None:
    backend.close()
    reader = open_backend(uri)
    reader.setup()
    assert reader.read_reference("realm", "child") is None
    writer = start(_WRITE, uri)
    assert writer.stdout is not None
    assert writer.stdout.readline().strip() == "Swapped()"
    assert reader.read_reference("realm", "child") == ReferenceRow(b"1", b"value")
    with pytest.raises(StateError, match="another process"):
        reader.swap_reference("realm", "child", b"1", ReferenceRow(b"2", b"next"))
    writer.communicate()
    assert reader.swap_reference("realm", "child", b"1", ReferenceRow(b"2", b"next")) == Swapped()
    assert reader.read_reference("realm", "child") == ReferenceRow(b"2", b"next")
    reader.close()


def test_a_reader_can_catch_up_any_number_of_times(
    uri: str, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.write_objects("realm", [ObjectRow(1, 0, b"value")])
    done = subprocess.run(
        [sys.executable, "-c", _READ_OFTEN, uri], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    backend.close()
    monkeypatch.setattr(handles, "_LOOKS", 3)
    with closing(open_backend(uri)) as reader:
        for _ in range(10):
            assert reader.read_objects("realm", [ObjectKey(1)]) == {ObjectKey(1): b"value"}


def test_rows_that_a_killed_writer_acknowledged_exist(uri: str, backend: Backend) -> None:
    backend.close()
    writer = start(_WRITE, uri)
    assert writer.stdout is not None
    assert writer.stdout.readline().strip() == "Swapped()"
    writer.kill()
    writer.communicate()
    again = open_backend(uri)
    assert again.read_reference("realm", "child") == ReferenceRow(b"1", b"value")  # as a reader
    assert again.insert_reference("realm", "name", row()) == Swapped()  # which makes it the writer
    assert again.read_reference("realm", "child") == ReferenceRow(b"1", b"value")
    again.close()


def test_a_process_shares_one_open_store_until_the_last_user_closes_it(
    uri: str, backend: Backend, tmp_path: Path
) -> None:
    backend.insert_reference("realm", "counter", row(b"0"))
    (tmp_path / "link").symlink_to(tmp_path / "store")
    other = open_backend(f"rocksdb://{tmp_path}/link?synchronous=normal")
    in_threads(8, lambda n: increments((backend, other)[n % 2], "realm", "counter", 50))
    backend.close()
    found = other.read_reference("realm", "counter")
    assert found is not None
    assert found.value == b"400"
    increments(other, "realm", "counter", 1)
    other.close()
    assert start(_WRITE, uri).communicate()[0].strip() == "Swapped()"


def test_a_store_that_is_replaced_while_it_is_open_must_be_closed_first(uri: str, backend: Backend) -> None:
    backend.write_objects("realm", [ObjectRow(1, 0, b"old")])
    path = uri.removeprefix("rocksdb://")
    os.rename(path, f"{path}.old")
    anew = open_backend(uri)
    with pytest.raises(StateError, match="was removed or replaced while this process had it open"):
        anew.setup()
    anew.close()
    assert backend.read_objects("realm", [ObjectKey(1)]) == {ObjectKey(1): b"old"}


def test_a_store_that_looks_replaced_to_this_process_keeps_its_lock(uri: str, backend: Backend) -> None:
    backend.insert_reference("realm", "name", row())
    os.utime(f"{uri.removeprefix('rocksdb://')}/POLARIS_SPARK")
    with (
        closing(open_backend(uri)) as again,
        pytest.raises(StateError, match="removed or replaced"),
    ):
        again.insert_reference("realm", "other", row())
    assert "is being written by another process" in start(_WRITE, uri).communicate()[1]


def test_an_operation_that_comes_after_the_last_close_opens_nothing(uri: str) -> None:
    backend = open_backend(uri)
    backend.setup()
    assert isinstance(backend, RocksDBBackend)
    late = backend._open()
    backend.close()
    batch = WriteBatch(raw_mode=True)
    for operation in (lambda: late.write(batch, synced=True), lambda: late.get(b"key")):
        with pytest.raises(StateError, match="is closed"):
            operation()
    assert start(_WRITE, uri).communicate()[0].strip() == "Swapped()"


def test_a_forked_child_may_not_even_open_it_anew(uri: str, backend: Backend) -> None:
    backend.insert_reference("realm", "name", row())
    child = os.fork()
    if child == 0:
        status = 1
        try:
            open_backend(uri).read_reference("realm", "name")
        except StateError as error:
            status = 0 if "spawn" in str(error) else 2
        finally:
            os._exit(status)
    assert exit_status(child) == 0
    assert backend.insert_reference("realm", "other", row()) == Swapped()
