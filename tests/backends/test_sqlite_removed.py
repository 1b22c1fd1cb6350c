"""A process has a SQLite file open while the file is removed. A commit that would be lost with the file is not
acknowledged."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, Conflict, ObjectKey, ObjectRow, ReferenceRow, Swapped
from polaris_spark.backends.sqlite import SQLiteBackend, files
from polaris_spark.errors import OutcomeUnknownError, PolarisError, StateError
from tests.rest.client import connect

REALM = "realm"
REPLACED = "was removed or replaced"


@pytest.fixture(autouse=True)
def look_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the files at every read and before every commit."""
    monkeypatch.setattr(files, "LOOK_AGAIN_S", 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Path of the store, in a directory of its own."""
    (tmp_path / "store").mkdir()
    return tmp_path / "store" / "store.db"


@pytest.fixture
def backend(path: Path) -> Iterator[SQLiteBackend]:
    """A store with the reference `r` at version `1`."""
    backend = SQLiteBackend(str(path))
    backend.setup()
    assert backend.insert_reference(REALM, "r", ReferenceRow(b"1", b"one")) == Swapped()
    yield backend
    backend.close()


def remove(path: Path) -> None:
    path.unlink()


def remove_directory(path: Path) -> None:
    shutil.rmtree(path.parent)


def move_away(path: Path) -> None:
    path.rename(path.with_suffix(".bak"))


def restore_backup(path: Path) -> None:
    with sqlite3.connect(path) as here, sqlite3.connect(path.with_suffix(".bak")) as copy:
        here.backup(copy)
    os.replace(path.with_suffix(".bak"), path)


def copy_back(path: Path) -> None:
    """Restore the folder with a program that also restores modification times."""
    copy = path.parent.with_name("copy")
    subprocess.run(["cp", "-a", str(path.parent), str(copy)], check=True)
    for file in path.parent.iterdir():
        file.unlink()
    subprocess.run(["cp", "-a", f"{copy}/.", str(path.parent)], check=True)


def move_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("moved"))


def make_another(path: Path) -> None:
    path.unlink()
    another = SQLiteBackend(str(path))
    another.setup()
    another.close()


def remove_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def remove_index(path: Path) -> None:
    Path(f"{path}-shm").unlink()


def replace_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()
    Path(f"{path}-wal").touch()


CHANGES = [
    remove,
    remove_directory,
    move_away,
    restore_backup,
    copy_back,
    move_folder,
    make_another,
    remove_log,
    remove_index,
    replace_log,
]


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_is_acknowledged_once_the_file_is_gone(
    backend: SQLiteBackend, path: Path, change: Callable[[Path], None]
) -> None:
    change(path)
    two, row = ReferenceRow(b"2", b"two"), ObjectRow(1, 0, b"x")
    for operation in (
        lambda: backend.swap_reference(REALM, "r", b"1", two),
        lambda: backend.insert_reference(REALM, "s", two),
        lambda: backend.delete_reference(REALM, "r", b"1"),
        lambda: backend.write_and_swap(REALM, [row], "r", b"1", two),
        lambda: backend.write_objects(REALM, [row]),
        lambda: backend.delete_objects(REALM, [ObjectKey(1)]),
        lambda: backend.drop_realm(REALM),
    ):
        with pytest.raises(StateError, match=REPLACED):
            operation()


@pytest.mark.parametrize("change", CHANGES)
def test_a_commit_to_a_file_replaced_right_after_a_check_has_an_unknown_outcome(
    backend: SQLiteBackend, path: Path, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit checks the file afterwards. If the file was replaced, the commit is not acknowledged."""
    monkeypatch.setattr(files, "LOOK_AGAIN_S", 3_600)
    two = ReferenceRow(b"2", b"two")
    assert backend.swap_reference(REALM, "r", b"1", two) == Swapped()
    change(path)
    # Another store in its place may use the same log: then the reference is not found.
    with pytest.raises(StateError if change is make_another else OutcomeUnknownError, match=REPLACED):
        backend.swap_reference(REALM, "r", b"2", ReferenceRow(b"3", b"three"))
    for _ in range(2):
        with pytest.raises(StateError, match=REPLACED):
            backend.swap_reference(REALM, "r", b"2", two)


@pytest.mark.parametrize("change", CHANGES)
def test_a_replaced_file_is_detected_although_its_folder_was_unchanged_at_the_last_check(
    backend: SQLiteBackend, path: Path, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check examines the files only if the modification time of their folder has changed."""
    monkeypatch.setattr(files, "_SURE_NS", 0)
    for version in b"23":
        time.sleep(0.05)  # longer than a tick of the file system's clock
        new = ReferenceRow(bytes([version]), b"")
        assert backend.swap_reference(REALM, "r", bytes([version - 1]), new) == Swapped()
    looked = backend._connections._writer
    assert looked is not None
    assert looked._unchanged is not None
    change(path)
    with pytest.raises((StateError, OutcomeUnknownError), match=REPLACED):
        backend.swap_reference(REALM, "r", b"3", ReferenceRow(b"4", b""))


@pytest.mark.parametrize("change", CHANGES)
def test_no_reference_is_read_from_a_file_that_is_gone(
    backend: SQLiteBackend, path: Path, change: Callable[[Path], None]
) -> None:
    assert backend.read_reference(REALM, "r") is not None
    change(path)
    for _ in range(2):
        with pytest.raises(StateError, match=REPLACED):
            backend.read_reference(REALM, "r")
    with pytest.raises(StateError, match=REPLACED):
        list(backend.scan(*backend.splits("references", [REALM], 1)))
    with pytest.raises(StateError, match=REPLACED):
        backend.read_objects(REALM, [ObjectKey(1)])


@pytest.mark.parametrize("change", [remove, remove_directory, make_another, restore_backup, remove_log])
def test_a_commit_during_which_the_file_goes_is_of_unknown_outcome(
    backend: SQLiteBackend, path: Path, change: Callable[[Path], None]
) -> None:
    def write(connection: sqlite3.Connection) -> Swapped | Conflict:
        connection.execute('UPDATE "references" SET version = ?', (b"2",))
        change(path)
        return Swapped()

    with pytest.raises(OutcomeUnknownError, match=REPLACED):
        backend._connections.write(write)
    with pytest.raises(StateError, match=REPLACED):
        backend.read_reference(REALM, "r")


READ = """
import sys
from polaris_spark.backends import open_backend
from polaris_spark.backends.sqlite import SQLiteBackend
try:
    print(SQLiteBackend(sys.argv[1]).read_reference("realm", "r"))
except Exception as error:
    print(type(error).__name__)
"""


def read_elsewhere(path: Path) -> str:
    """Read in another process, and return the result."""
    command = [sys.executable, "-c", READ, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (remove, "NoStoreError"),
        (remove_directory, "StoreURIError"),
        (make_another, "None"),
        (restore_backup, str(ReferenceRow(b"1", b"one"))),
    ],
)
def test_another_process_sees_the_newest_state(
    backend: SQLiteBackend, path: Path, change: Callable[[Path], None], seen: str
) -> None:
    change(path)
    with pytest.raises(StateError):
        backend.swap_reference(REALM, "r", b"1", ReferenceRow(b"2", b"two"))
    assert read_elsewhere(path) == seen


@pytest.mark.parametrize("change", [move_away, remove_log, remove_index])
def test_all_that_was_acknowledged_is_there_once_the_files_are_back_and_the_process_has_ended(
    backend: SQLiteBackend, path: Path, change: Callable[[Path], None]
) -> None:
    change(path)
    with pytest.raises(StateError, match="end this process"):
        backend.swap_reference(REALM, "r", b"1", ReferenceRow(b"2", b"two"))
    if change is move_away:
        path.with_suffix(".bak").rename(path)
    with pytest.raises(StateError, match="end this process"):  # it may have read what is not there any more
        backend.read_reference(REALM, "r")
    backend.close()
    assert read_elsewhere(path) == str(ReferenceRow(b"1", b"one"))


def test_a_store_whose_connections_are_closed_and_opened_again_is_the_same_store(path: Path) -> None:
    """SQLite removes its log when the last connection closes, and creates a new one for the next connection."""
    for number in range(3):
        backend: Backend = open_backend(f"sqlite://{path}")
        backend.setup()
        backend.setup()
        assert backend.insert_reference(REALM, f"r{number}", ReferenceRow(b"1", b"one")) == Swapped()
        with pytest.raises(PolarisError):
            backend.read_reference(REALM, "")
        assert backend.read_reference(REALM, f"r{number}") is not None
        backend.close()


def test_a_catalog_with_a_removed_store_raises_an_error_and_changes_nothing(tmp_path: Path) -> None:
    catalog = connect(f"sqlite://{tmp_path / 'store.db'}", tmp_path / "warehouse")
    catalog.namespace("a")
    (tmp_path / "store.db").unlink()
    for method, where, body in (
        ("POST", "v1/namespaces", {"namespace": ["b"]}),
        ("GET", "v1/namespaces", None),
        ("GET", "v1/namespaces/a", None),
    ):
        answer = catalog.send(method, where, body)
        assert answer.status >= 400
        assert REPLACED in answer.error["message"]
    with pytest.raises(StateError, match=REPLACED):  # the lease of ids cannot be given back
        catalog.session.close()
    assert not (tmp_path / "store.db").exists()


@pytest.mark.parametrize("change", CHANGES)
def test_a_store_behind_a_link_is_looked_at_too(
    backend: SQLiteBackend, path: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    backend.close()
    (tmp_path / "link.db").symlink_to(path)
    linked = SQLiteBackend(str(tmp_path / "link.db"))
    for version in b"23":
        new = ReferenceRow(bytes([version]), b"")
        assert linked.swap_reference(REALM, "r", b"1" if version == ord("2") else b"2", new) == Swapped()
    change(path)
    with pytest.raises((StateError, OutcomeUnknownError), match=REPLACED):
        linked.swap_reference(REALM, "r", b"3", ReferenceRow(b"4", b""))
    linked.close()
