"""Behavior of SQLite stores: the file, errors, waiting writers, and files after a killed process."""

from __future__ import annotations

import itertools
import os
import resource
import shlex
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from polaris_spark.backends.base import MAX_ROW_BYTES, Backend, ObjectKey, ObjectRow, ReferenceRow, Swapped
from polaris_spark.backends.sqlite import SQLiteBackend, files
from polaris_spark.backends.sqlite import connections as connections_module
from polaris_spark.backends.sqlite.connections import Connections, Settings
from polaris_spark.backends.sqlite.files import APPLICATION_ID
from polaris_spark.clock import ManualClock, SystemClock
from polaris_spark.errors import (
    OutcomeUnknownError,
    StateError,
    StoreURIError,
    TryAgainError,
)
from polaris_spark.testing.processes import exit_status
from polaris_spark.testing.waiting import wait_until


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture
def backend(path: str) -> Iterator[SQLiteBackend]:
    backend = SQLiteBackend(path)
    backend.setup()
    yield backend
    backend.close()


# The file


def test_the_file_and_its_log_are_private(backend: SQLiteBackend, path: str) -> None:
    backend.write_objects("realm", [ObjectRow(1, 0, b"x")])
    for name in (path, path + "-wal", path + "-shm"):
        assert stat.S_IMODE(os.stat(name).st_mode) == 0o600


def test_commits_wait_for_the_disk_by_default(path: str) -> None:
    for settings, expected in ((Settings(), 2), (Settings("normal"), 1), (Settings("off"), 0)):
        connections = Connections(path, settings, SystemClock())
        connections.create()
        assert connections.read(lambda c: c.execute("PRAGMA synchronous").fetchone()[0]) == expected
        assert connections.read(lambda c: c.execute("PRAGMA journal_mode").fetchone()[0]) == "wal"
        connections.close()


@pytest.mark.parametrize("name", ["a b.db", "a%20b.db", "ü?#.db", "'quote'.db"])
def test_any_file_name_works(tmp_path: Path, name: str) -> None:
    backend = SQLiteBackend(str(tmp_path / name))
    backend.setup()
    backend.close()
    assert (tmp_path / name).stat().st_size > 0


def _is_a_directory(path: str) -> None:
    os.mkdir(path)


def _is_no_database(path: str) -> None:
    Path(path).write_bytes(b"this is not a database at all, just some text that is long enough" * 20)


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (_is_a_directory, "names a directory"),
        (_is_no_database, "is not an SQLite database"),
    ],
)
def test_a_path_that_is_not_a_store_is_refused(path: str, prepare: Callable[[str], None], words: str) -> None:
    prepare(path)
    backend = SQLiteBackend(path)
    with pytest.raises(StoreURIError, match=words):
        backend.setup()
    with pytest.raises(StoreURIError, match=words):
        backend.read_reference("realm", "name")


def test_a_path_in_a_missing_directory_is_refused(tmp_path: Path) -> None:
    backend = SQLiteBackend(str(tmp_path / "missing" / "store.db"))
    with pytest.raises(
        StoreURIError, match=r"cannot be created: the directory .* does not exist; check the path"
    ):
        backend.setup()
    with pytest.raises(StoreURIError, match=r"directory .* does not exist"):
        backend.read_reference("realm", "name")


def test_an_empty_file_is_not_a_store(path: str) -> None:
    Path(path).touch()
    with pytest.raises(StoreURIError, match=r"does not contain a store; .* create=true"):
        SQLiteBackend(path).read_reference("realm", "name")


def test_a_new_file_appears_with_its_tables(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create, seen = files.create_tables, []

    def create_unseen(connection: sqlite3.Connection, where: str) -> None:
        seen.append(os.path.exists(path))
        create(connection, where)

    monkeypatch.setattr(files, "create_tables", create_unseen)
    with closing(SQLiteBackend(path)) as backend:
        backend.setup()
        assert seen == [False, True]  # the second call only checks
        assert backend.read_reference("r", "x") is None
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]


def test_a_file_whose_log_could_not_be_moved_into_it_is_not_used(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, linked = files.Connection.close, list[object]()

    def close_on_a_full_disk(connection: files.Connection) -> None:
        (name,) = (row[2] for row in connection.execute("PRAGMA database_list"))
        close(connection)
        if name.endswith(".new"):
            Path(f"{name}-wal").touch()

    monkeypatch.setattr(files.Connection, "close", close_on_a_full_disk)
    monkeypatch.setattr(os, "link", lambda *names: linked.append(names))
    with closing(SQLiteBackend(path)) as backend:
        backend.setup()
        assert backend.read_reference("r", "x") is None
    assert not linked
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]


def test_the_journal_of_a_removed_file_does_no_harm(path: str) -> None:
    pid = os.fork()
    if not pid:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("CREATE TABLE old (value BLOB)")
        connection.execute("INSERT INTO old VALUES (randomblob(100000))")
        connection.execute("BEGIN")
        connection.execute("UPDATE old SET value = randomblob(100000)")
        os._exit(0)  # as if killed
    os.waitpid(pid, 0)
    assert os.path.getsize(f"{path}-journal")
    os.unlink(path)
    with closing(SQLiteBackend(path)) as backend:
        backend.setup()
        backend.insert_reference("r", "x", ReferenceRow(b"1", b"new"))
    with closing(SQLiteBackend(path)) as backend:
        backend.setup()
        assert backend.read_reference("r", "x") == ReferenceRow(b"1", b"new")


def test_a_file_system_without_hard_links_works(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with closing(SQLiteBackend(path)) as backend:
        backend.setup()
        assert backend.read_reference("r", "x") is None
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]


def test_the_file_is_marked_as_a_store(backend: SQLiteBackend, path: str) -> None:
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)


def test_a_read_only_file_can_be_read_but_says_why_it_cannot_be_written() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/store.db"
        with_row = SQLiteBackend(path)
        with_row.setup()
        with_row.write_objects("realm", [ObjectRow(1, 0, b"x")])
        with_row.close()
        os.chmod(path, 0o444)
        os.chmod(directory, 0o777)
        assert _as_nobody(lambda: _read_only(path)) == 0


def test_a_directory_that_may_not_be_entered_is_not_taken_for_a_missing_file() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        path = f"{directory}/closed/store.db"
        os.mkdir(os.path.dirname(path))
        backend = SQLiteBackend(path)
        backend.setup()
        backend.close()
        os.chmod(os.path.dirname(path), 0)
        assert _as_nobody(lambda: _closed(path)) == 0
        os.chmod(os.path.dirname(path), 0o700)


def _closed(path: str) -> bool:
    with pytest.raises(StoreURIError, match=r"cannot be opened: permission denied in the directory .*closed"):
        SQLiteBackend(path).read_reference("realm", "name")
    return True


def test_the_error_of_a_read_only_mount_names_the_cause(tmp_path: Path) -> None:
    backend = SQLiteBackend(str(tmp_path / "store.db"))
    backend.setup()
    backend.close()
    place = str(tmp_path)
    script = f"mount --bind '{place}' '{place}' && mount -o remount,ro,bind '{place}' && "
    unshared = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*unshared, script + "true"], check=False).returncode
    ):
        pytest.skip("no mount can be made read-only here")
    program = (
        "from polaris_spark.backends.sqlite import SQLiteBackend; "
        f"SQLiteBackend({str(tmp_path / 'store.db')!r}).read_reference('realm', 'name')"
    )
    done = subprocess.run(
        [*unshared, f"{script} {shlex.quote(sys.executable)} -c {shlex.quote(program)}"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert "store.db cannot be opened: it is on a read-only file system" in done.stderr


def _read_only(path: str) -> bool:
    backend = SQLiteBackend(path)
    assert backend.read_objects("realm", [ObjectKey(1)]) == {ObjectKey(1): b"x"}
    with pytest.raises(StoreURIError, match="read-only"):
        backend.write_objects("realm", [ObjectRow(2, 0, b"x")])
    return True


def _as_nobody(check: Callable[[], bool]) -> int:
    """Run `check` in a child without the rights of a superuser. Return its exit status, 0 if `check` was true."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if os.getuid() == 0:
                os.setuid(65_534)
            status = 0 if check() else 1
        finally:
            os._exit(status)
    return exit_status(child)


# Turns and failures


def test_a_writer_without_a_turn_gives_up_at_the_deadline_having_written_nothing(
    backend: SQLiteBackend, path: str
) -> None:
    backend.insert_reference("realm", "name", ReferenceRow(b"1", b"x"))
    clock = ManualClock()
    impatient = SQLiteBackend(path, Settings(timeout=10_000), clock)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(TryAgainError, match="was locked by other operations"):
        impatient.write_and_swap("realm", [ObjectRow(1, 0, b"x")], "name", b"1", ReferenceRow(b"2", b"y"))
    assert clock.monotonic_ms() >= 10_000
    assert impatient.read_reference("realm", "name") == ReferenceRow(b"1", b"x")
    other.execute("ROLLBACK")
    assert impatient.swap_reference("realm", "name", b"1", ReferenceRow(b"2", b"y")) == Swapped()
    assert backend.read_objects("realm", [ObjectKey(1)]) == {}
    impatient.close()
    other.close()


def test_readers_do_not_wait_for_a_writer(backend: SQLiteBackend, path: str) -> None:
    backend.insert_reference("realm", "name", ReferenceRow(b"1", b"x"))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    impatient = SQLiteBackend(path, Settings(timeout=0), ManualClock())
    assert impatient.read_reference("realm", "name") == ReferenceRow(b"1", b"x")
    other.close()
    impatient.close()


def test_a_scan_does_not_keep_the_log_from_being_truncated(backend: SQLiteBackend, path: str) -> None:
    backend.write_objects("realm", [ObjectRow(id, 0, b"x" * MAX_ROW_BYTES) for id in range(40)])
    batches = backend.scan(backend.splits("objects", None, 1)[0])
    next(batches)
    other = sqlite3.connect(path, isolation_level=None)
    busy, *_ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    other.close()
    assert not busy
    assert os.path.getsize(path + "-wal") == 0
    assert sum(batch.num_rows for batch in batches) > 0


def test_ranges_are_found_while_rows_are_deleted(
    backend: SQLiteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.write_objects("realm", [ObjectRow(id * 100, 0, b"x") for id in range(100)])
    read = backend._read
    reads = itertools.count()

    def delete_after_the_first(function: Callable[[sqlite3.Connection], object]) -> object:
        found = read(function)
        if not next(reads):
            backend.delete_objects("realm", [ObjectKey(id * 100) for id in range(50, 100)])
        return found

    monkeypatch.setattr(backend, "_read", delete_after_the_first)
    splits = backend.splits("objects", ["realm"], 4)
    assert sum(batch.num_rows for split in splits for batch in backend.scan(split)) == 50


def test_a_full_disk_says_so_and_changes_nothing(backend: SQLiteBackend, path: str) -> None:
    connections = Connections(path, Settings(), SystemClock())

    def fill(connection: sqlite3.Connection) -> Swapped:
        connection.execute("PRAGMA max_page_count = 20")
        connection.execute("INSERT INTO objects VALUES ('realm', 1, 0, ?)", (b"x" * 200_000,))
        return Swapped()

    with pytest.raises(TryAgainError, match="full"):
        connections.write(fill)
    connections.close()
    assert backend.read_objects("realm", [ObjectKey(1)]) == {}
    backend.write_objects("realm", [ObjectRow(1, 0, b"x")])


def test_a_commit_that_fails_is_of_unknown_outcome(backend: SQLiteBackend, path: str) -> None:
    backend.insert_reference("realm", "name", ReferenceRow(b"1", b"x"))
    assert _in_fork(lambda: _with_small_files(path)) == 0
    assert backend.read_reference("realm", "name") == ReferenceRow(b"1", b"x")
    assert backend.swap_reference("realm", "name", b"1", ReferenceRow(b"2", b"y")) == Swapped()


def _with_small_files(path: str) -> bool:
    mine = SQLiteBackend(path)
    mine.read_reference("realm", "name")
    largest = os.path.getsize(path + "-wal") + 4_096
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    with pytest.raises(OutcomeUnknownError):
        mine.write_and_swap("realm", [ObjectRow(1, 0, b"x" * 60_000)], "name", b"1", ReferenceRow(b"2", b"y"))
    return True


def _in_fork(check: Callable[[], bool]) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if check() else 1
        finally:
            os._exit(status)
    return exit_status(child)


# Forks


def test_what_a_forked_child_commits_survives_its_parents_close(backend: SQLiteBackend, path: str) -> None:
    backend.insert_reference("realm", "name", ReferenceRow(b"0", b"0"))
    closed, close = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if _commits_before_and_after(backend, lambda: os.read(closed, 1)) else 1
        finally:
            os._exit(status)
    began = ReferenceRow(b"0", b"0")
    wait_until(lambda: backend.read_reference("realm", "name") != began, "the child commits")
    backend.close()
    os.write(close, b"x")
    assert exit_status(child) == 0
    assert SQLiteBackend(path).read_reference("realm", "name") == ReferenceRow(b"50", b"50")


def _commits_before_and_after(backend: SQLiteBackend, wait: Callable[[], object]) -> bool:
    """Commit once before and 49 times after waiting. Return whether all commits were acknowledged."""
    outcomes = []
    for number in range(1, 51):
        new = ReferenceRow(b"%d" % number, b"%d" % number)
        outcomes.append(backend.swap_reference("realm", "name", b"%d" % (number - 1), new))
        if number == 1:
            wait()
    return outcomes == [Swapped()] * 50


def test_a_fork_waits_for_operations_in_progress_and_leaves_the_parent_working(
    backend: SQLiteBackend, path: str
) -> None:
    backend.insert_reference("realm", "name", ReferenceRow(b"0", b"0"))
    tallies: list[bool] = []
    writer = threading.Thread(target=lambda: tallies.append(_commits_before_and_after(backend, lambda: None)))
    writer.start()
    for number in range(5):
        assert _in_fork(partial(_writes, backend, number)) == 0
    writer.join()
    assert tallies == [True]
    keys = [ObjectKey(number) for number in range(5)]
    assert set(backend.read_objects("realm", keys)) == set(keys)


def _writes(backend: SQLiteBackend, number: int) -> bool:
    backend.write_objects("realm", [ObjectRow(number, 0, b"x")])
    return True


def test_a_child_forked_in_the_middle_of_an_operation_is_refused(
    backend: SQLiteBackend, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "PATIENCE_S", 0.01)
    connections = Connections(path, Settings(), SystemClock())

    def refused() -> bool:
        with pytest.raises(StateError, match="forked"):
            connections.read(lambda c: c.execute("SELECT 1").fetchone())
        return True

    assert connections.read(lambda _: _in_fork(refused)) == 0
    assert connections.read(lambda c: c.execute("SELECT 1").fetchone()) == (1,)
    connections.close()


_WRITER = """
import sys
from polaris_spark.backends import open_backend
from polaris_spark.backends.base import ObjectRow, ReferenceRow
backend = open_backend(sys.argv[1])
version = b"0"
for number in range(1, 1_000_000):
    rows = [ObjectRow(number, part, b"x" * 3_000) for part in range(3)]
    new = b"%d" % number
    backend.write_and_swap("realm", rows, "name", version, ReferenceRow(new, new))
    version = new
    print(number, flush=True)
"""


def test_a_killed_writer_leaves_whole_transactions_and_every_acknowledged_one(
    backend: Backend, path: str
) -> None:
    backend.insert_reference("realm", "name", ReferenceRow(b"0", b"0"))
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, f"sqlite://{path}"], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    acknowledged = 0
    while acknowledged < 200:
        acknowledged = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    for line in writer.stdout:
        acknowledged = int(line) if line.endswith(b"\n") else acknowledged
    writer.wait()
    found = backend.read_reference("realm", "name")
    assert found is not None
    last = int(found.value)
    assert last >= acknowledged
    keys = [ObjectKey(number, part) for number in range(1, last + 2) for part in range(3)]
    assert set(backend.read_objects("realm", keys)) == {key for key in keys if key.id <= last}
