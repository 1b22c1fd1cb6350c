"""Ctrl-C during operations of RocksDB, and operations that do not end. The store can still be closed, and another
process can then write."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing

import pytest
from rocksdict import DbClosedError, Rdict

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, ObjectKey, ObjectRow, ReferenceRow
from polaris_spark.backends.rocksdb import RocksDBBackend, handles
from polaris_spark.errors import StateError, TryAgainError
from polaris_spark.testing.processes import in_threads, started
from polaris_spark.testing.stores import row
from polaris_spark.testing.waiting import PATIENCE_S
from tests.backends.interrupts import interruptions

_WRITE = """
import sys
from polaris_spark.backends import open_backend
from polaris_spark.backends.base import ObjectRow
open_backend(sys.argv[1]).write_objects("realm", [ObjectRow(1, 0, b"x")])
"""
_ROWS = [ObjectRow(id, 0, b"x") for id in range(2, 14)]
_OPERATIONS: dict[str, Callable[[Backend], object]] = {
    "read": lambda backend: backend.read_reference("realm", "name"),
    "read rows": lambda backend: backend.read_objects("realm", [ObjectKey(row.id) for row in _ROWS]),
    "write": lambda backend: backend.write_objects("realm", [ObjectRow(1, 0, b"x")]),
    "swap": lambda backend: backend.swap_reference("realm", "name", b"0", ReferenceRow(b"0", b"value")),
}


def _another_process_writes(uri: str) -> bool:
    return not subprocess.run([sys.executable, "-c", _WRITE, uri], check=False).returncode


@pytest.mark.parametrize("name", _OPERATIONS)
def test_an_operation_that_is_interrupted_anywhere_has_ended(
    uri: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handles, "_PATIENCE_S", 1.0)
    backend = open_backend(uri)
    backend.setup()
    backend.insert_reference("realm", "name", ReferenceRow(b"0", b"value"))
    backend.write_objects("realm", _ROWS)
    kept = []
    for interrupt in interruptions(lambda: _OPERATIONS[name](backend)):
        kept.append(interrupt)
        in_threads(1, lambda _: _OPERATIONS[name](backend))
    assert len(kept) > 10
    in_threads(1, lambda _: backend.close())
    assert _another_process_writes(uri)


def test_a_close_that_is_interrupted_anywhere_lets_others_write_when_it_is_repeated(uri: str) -> None:
    def opened() -> tuple[RocksDBBackend, Rdict]:
        backend = open_backend(uri)
        assert isinstance(backend, RocksDBBackend)
        backend.setup()
        backend.write_objects("realm", [ObjectRow(1, 0, b"x")])
        [database] = backend._open().databases
        return backend, database

    kept, stores = [], [opened()]
    for interrupt in interruptions(lambda: stores[-1][0].close()):
        kept.append(interrupt)
        backend, database = stores[-1]
        backend.close()
        with pytest.raises(DbClosedError):
            database.get(b"key")
        stores.append(opened())
    assert len(kept) > 10


def test_a_close_that_waits_in_vain_may_be_repeated(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_backend(uri)
    backend.setup()
    assert isinstance(backend, RocksDBBackend)
    begun, end = threading.Event(), threading.Event()

    def hang(_: Rdict) -> bool:
        begun.set()
        return end.wait(PATIENCE_S)

    thread, outcome = started(lambda: backend._open().read(hang))
    assert begun.wait(PATIENCE_S)
    with monkeypatch.context() as hasty:
        hasty.setattr(handles, "_PATIENCE_S", 0.01)
        with pytest.raises(TryAgainError, match="did not end"):
            backend.close()
    with pytest.raises(StateError, match="is closed"):
        backend.read_reference("realm", "name")
    end.set()
    thread.join()
    assert outcome == [True]
    with closing(open_backend(uri)) as again:
        again.insert_reference("realm", "name", row())
        backend.close()
        assert again.read_reference("realm", "name") is not None
    assert _another_process_writes(uri)
