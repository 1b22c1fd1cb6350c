"""Ctrl-C during operations of SQLite: no lock stays held, and no later read returns an old state."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import FrameType

import pytest

from polaris_spark.backends.base import Conflict, ObjectKey, ObjectRow, ReferenceRow, Swapped
from polaris_spark.backends.sqlite import SQLiteBackend, connections
from polaris_spark.backends.sqlite.connections import Connections, Settings
from polaris_spark.backends.sqlite.forks import forking
from polaris_spark.clock import SystemClock
from polaris_spark.errors import StateError
from polaris_spark.testing.processes import exit_status, in_threads, started
from polaris_spark.testing.stores import row
from polaris_spark.testing.waiting import PATIENCE_S
from tests.backends.interrupts import interruptions

_SETTINGS = Settings(synchronous="off", timeout=0)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture
def backend(path: str) -> Iterator[SQLiteBackend]:
    with closing(SQLiteBackend(path, _SETTINGS)) as backend:
        backend.setup()
        yield backend


@pytest.fixture
def other(path: str) -> Iterator[SQLiteBackend]:
    """A second handle, in the place of another process."""
    with closing(SQLiteBackend(path, _SETTINGS)) as other:
        yield other


_WRITES: dict[str, Callable[[SQLiteBackend], object]] = {
    "a swap": lambda backend: backend.swap_reference("realm", "name", b"0", row()),
    "a conflict": lambda backend: backend.swap_reference("realm", "name", b"another", row()),
    "rows": lambda backend: backend.write_objects("realm", [ObjectRow(id, 0, b"x") for id in range(3)]),
}


@pytest.mark.parametrize("name", _WRITES)
def test_an_interrupted_write_does_not_block_other_writers(
    backend: SQLiteBackend, other: SQLiteBackend, name: str
) -> None:
    kept = []
    for interrupt in interruptions(lambda: _WRITES[name](backend)):
        kept.append(interrupt)
        other.delete_objects("realm", [ObjectKey(1)])
        in_threads(1, lambda _: backend.delete_objects("realm", [ObjectKey(2)]))
        backend.delete_reference("realm", "name", b"0")
        assert isinstance(
            backend.insert_reference("realm", "name", ReferenceRow(b"0", b"0")), Swapped | Conflict
        )
    assert len(kept) > 10


def test_a_scan_that_is_interrupted_anywhere_leaves_no_connection_that_reads_the_past(
    backend: SQLiteBackend, other: SQLiteBackend
) -> None:
    backend.write_objects("realm", [ObjectRow(id, 0, b"x") for id in range(3)])
    [split] = backend.splits("objects", ["realm"], 1)
    assert list(backend.scan(split)), "which imports what it needs"
    kept = []
    current = row()
    other.insert_reference("realm", "name", current)
    for interrupt in interruptions(lambda: list(backend.scan(split))):
        kept.append(interrupt)
        backend.read_reference("realm", "name")
        new = row()
        assert other.swap_reference("realm", "name", current.version, new) == Swapped()
        assert backend.read_reference("realm", "name") == new
        current = new
    assert len(kept) > 10


def test_an_operation_that_is_interrupted_anywhere_has_ended_for_a_fork(
    backend: SQLiteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PATIENCE_S", 1.0)
    kept = list(interruptions(lambda: backend.read_reference("realm", "name")))
    assert len(kept) > 5
    assert _status_in_fork(lambda: backend.write_objects("realm", [ObjectRow(1, 0, b"x")])) == 0
    assert backend.read_objects("realm", [ObjectKey(1)]) == {ObjectKey(1): b"x"}


def test_a_read_that_is_interrupted_after_its_work_leaves_its_connection_closed_or_in_the_pool(
    path: str,
) -> None:
    connections = Connections(path, _SETTINGS, SystemClock())
    connections.create()
    used: list[sqlite3.Connection] = []
    kept = []
    for interrupt in interruptions(lambda: connections.read(used.append)):
        kept.append(interrupt)
        if used:
            assert _closed(used[-1]) != (used[-1] in connections._readers)
    assert len(kept) > 5
    connections.close()


def _closed(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return True
    return False


def test_a_child_is_refused_if_closing_for_its_fork_was_interrupted(
    backend: SQLiteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write() -> None:
        backend.write_objects("realm", [ObjectRow(1, 0, b"x")])

    def interrupted(_: Connections) -> None:
        raise KeyboardInterrupt

    assert _status_in_fork(write) == 0
    write()
    ignored = []
    with monkeypatch.context() as patched:
        patched.setattr(Connections, "before_fork", interrupted)
        patched.setattr(sys, "unraisablehook", lambda raised: ignored.append(raised.exc_type))
        status = _status_in_fork(lambda: _refused(write))
    assert (status, ignored) == (0, [KeyboardInterrupt])
    write()
    assert _status_in_fork(write) == 0


def test_a_fork_whose_wait_for_another_is_interrupted_lets_no_operation_begin_before_the_other_ends(
    backend: SQLiteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.write_objects("realm", [ObjectRow(1, 0, b"x")])
    owned, end = threading.Event(), threading.Event()

    def fork_slowly() -> bool:
        with forking:
            owned.set()
            return end.wait(PATIENCE_S)

    def interrupt(_: int, frame: FrameType | None) -> None:
        code = _status_in_fork.__code__
        if frame is not None and (frame.f_code, frame.f_lineno) == (code, code.co_firstlineno + 1):
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt

    ignored = []
    other, outcome = started(fork_slowly)
    assert owned.wait(PATIENCE_S)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "unraisablehook", lambda raised: ignored.append(raised.exc_type))
            signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
            status = _status_in_fork(
                lambda: _refused(lambda: backend.write_objects("realm", [ObjectRow(2, 0, b"x")]))
            )
        assert (status, ignored) == (0, [KeyboardInterrupt, RuntimeError])
        assert forking.locked()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        end.set()
        other.join()
    assert outcome == [True]
    assert not forking.locked()


def test_asking_whether_there_is_a_fork_leaves_none_wherever_it_is_interrupted() -> None:
    kept = []
    for interrupt in interruptions(forking.locked):
        kept.append(interrupt)
        assert in_threads(1, lambda _: forking.locked()) == [False]
    assert len(kept) > 2


def _refused(work: Callable[[], object]) -> None:
    with pytest.raises(StateError, match="was in use when this process was forked"):
        work()


def _status_in_fork(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return exit_status(child)


def test_threads_that_fork_at_the_same_time_leave_the_store_open(backend: SQLiteBackend) -> None:
    def fork(_: int) -> int:
        return _status_in_fork(lambda: None)

    assert in_threads(4, lambda number: [fork(number) for _ in range(5)]) == [[0] * 5] * 4
    backend.write_objects("realm", [ObjectRow(1, 0, b"x")])
