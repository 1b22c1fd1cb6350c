"""Behavior of stores in a directory: locks, flushed files, and errors for file systems that lack a feature."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, ObjectKey, ObjectRow, ReferenceRow, Swapped
from polaris_spark.backends.objectstore import ObjectStoreBackend, keys
from polaris_spark.backends.objectstore import local as directories
from polaris_spark.errors import (
    OutcomeUnknownError,
    StoreURIError,
    TryAgainError,
)
from polaris_spark.testing.processes import exit_status
from polaris_spark.testing.stores import HOSTILE_NAMES, row

NOBODY = 65_534


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def backend(root: Path) -> Iterator[ObjectStoreBackend]:
    with closing(open_backend(f"file://{root}")) as backend:
        backend.setup()
        assert isinstance(backend, ObjectStoreBackend)
        yield backend


def in_child(work: Callable[[], str]) -> str:
    """Return the result of `work` in a forked process, or the text of its error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, work().encode())
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    exit_status(child)
    with open(reading, encoding="utf-8") as pipe:
        return pipe.read()


def test_a_file_that_is_not_a_store_is_reported(root: Path, tmp_path: Path) -> None:
    with (
        closing(open_backend(f"file://{tmp_path}/missing/store")) as backend,
        pytest.raises(StoreURIError, match=r"missing is not a directory; create this directory first"),
    ):
        backend.setup()
    root.mkdir()
    (root / "notes.txt").write_text("mine")
    with (
        closing(open_backend(f"file://{root}")) as backend,
        pytest.raises(StoreURIError, match="other files"),
    ):
        backend.setup()
    assert [each.name for each in root.iterdir()] == ["notes.txt"]


def test_a_store_that_another_process_sets_up_meanwhile_does_not_belong_to_another_program(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = os.listdir

    def late(path: Path) -> list[str]:
        monkeypatch.setattr(os, "listdir", listed)
        other.setup()
        other.write_objects("realm", [ObjectRow(1, 0, b"x")])
        return listed(path)

    with closing(open_backend(f"file://{root}")) as backend, closing(open_backend(f"file://{root}")) as other:
        monkeypatch.setattr(os, "listdir", late)
        backend.setup()
        assert os.listdir is listed
        assert backend.read_objects("realm", [ObjectKey(1)]) == {ObjectKey(1): b"x"}


def test_files_of_names_that_differ_in_case_alone_differ_in_more(backend: Backend, root: Path) -> None:
    for name in HOSTILE_NAMES:
        assert backend.insert_reference(name, name, ReferenceRow(b"v", name.encode())) == Swapped()
    for path in (root / "references").rglob("*"):
        assert path.name == path.name.lower()
        assert len(path.name) <= 255
    for name in HOSTILE_NAMES:
        assert backend.read_reference(name, name) == ReferenceRow(b"v", name.encode())


def test_a_lock_is_waited_for_until_the_time_is_up(backend: Backend, root: Path) -> None:
    backend.insert_reference("realm", "name", first := row())
    lock = next(path for path in (root / "locks").iterdir() if path.name != "probe")
    with closing(open_backend(f"file://{root}?timeout=50ms")) as hasty, open(lock, "ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TryAgainError, match=r"was locked by other operations; nothing was changed"):
            hasty.swap_reference("realm", "name", first.version, row())
        assert hasty.read_reference("realm", "name") == first
    assert backend.swap_reference("realm", "name", first.version, row()) == Swapped()


def test_emptied_packs_are_removed(backend: Backend, root: Path) -> None:
    backend.write_objects("realm", [ObjectRow(id, 0, b"x") for id in range(50)])
    backend.delete_objects("realm", [ObjectKey(id) for id in range(50)])
    assert [path for path in (root / "objects").rglob("*") if path.is_file()] == []


def test_a_write_that_cannot_be_flushed_has_an_unknown_outcome_until_it_is_flushed(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    backend.write_objects("realm", [ObjectRow(1, 0, b"before")])
    backend.insert_reference("realm", "name", first := row())
    monkeypatch.setattr(directories, "flush_directory", fail)
    for change in (
        lambda: backend.write_objects("realm", [ObjectRow(2, 0, b"after")]),
        lambda: backend.swap_reference("realm", "name", first.version, row()),
    ):
        with pytest.raises(OutcomeUnknownError, match="not flushed"):
            change()
    with pytest.raises(TryAgainError, match="Input/output error"):
        backend.read_reference("realm", "name")
    monkeypatch.undo()
    backend.write_objects("realm", [ObjectRow(2, 0, b"after")])
    assert backend.read_objects("realm", [ObjectKey(2)]) == {ObjectKey(2): b"after"}
    assert backend.read_reference("realm", "name") != first


def test_a_directory_that_may_not_survive_a_power_cut_is_not_a_store_yet(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.EIO, f"flushing {path.name}")

    monkeypatch.setattr(directories, "flush_directory", fail)
    with closing(open_backend(f"file://{root}")) as backend:
        with pytest.raises(TryAgainError, match=f"flushing {root.parent.name}"):
            backend.setup()
        assert not (root / "format").exists()
        monkeypatch.undo()
        backend.setup()
        assert backend.insert_reference("realm", "name", row()) == Swapped()


def test_unfinished_files_of_a_killed_process_are_removed_later(backend: Backend, root: Path) -> None:
    left, recent = root / "new" / "left", root / "new" / "recent"
    for path in (left, recent):
        path.write_text("half a row")
    os.utime(left, (0, 0))
    backend.setup()
    assert [path.name for path in (root / "new").iterdir()] == ["recent"]


def test_a_forked_child_can_use_the_store_while_its_parent_works(backend: ObjectStoreBackend) -> None:
    stop = threading.Event()

    def work(number: int) -> None:
        while not stop.is_set():
            backend.write_objects("realm", [ObjectRow(number, part, b"x") for part in range(3)])
            backend.delete_objects("realm", [ObjectKey(number, part) for part in range(3)])

    def in_the_child() -> str:
        backend.write_objects("realm", [ObjectRow(2**40 * i, 0, b"child") for i in range(1, 21)])
        backend.insert_reference("realm", "child", ReferenceRow(b"v", b"child"))
        return "done"

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        assert [in_child(in_the_child) for _ in range(5)] == ["done"] * 5
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len(backend.read_objects("realm", [ObjectKey(2**40 * i) for i in range(1, 21)])) == 20
    assert backend.read_reference("realm", "child") == ReferenceRow(b"v", b"child")


def test_a_child_does_not_keep_the_lock_of_a_parent_that_was_killed(
    backend: ObjectStoreBackend, root: Path
) -> None:
    """The parent holds a lock, forks, and is killed; the child lives on."""
    backend.insert_reference("realm", "name", first := row())
    requests, key = backend._requests, keys.reference_key("realm", "name")
    assert isinstance(requests, directories.DirectoryRequests)
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        with requests._locked(key):
            child = os.fork()
            if child == 0:
                signal.pause()
            os.write(writing, b"%d\n" % child)
            signal.pause()
    with open(reading, "rb", buffering=0) as pipe:
        child = int(pipe.readline())
    try:
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        assert backend.swap_reference("realm", "name", first.version, row()) == Swapped()
    finally:
        os.kill(child, signal.SIGKILL)
    os.close(writing)


def test_a_user_without_permission_is_reported(tmp_path_factory: pytest.TempPathFactory, root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with closing(open_backend(f"file://{root}")) as backend:
        backend.setup()
        backend.insert_reference("realm", "name", row())

    def use() -> str:
        os.setuid(NOBODY)
        texts = []
        with closing(open_backend(f"file://{root}")) as backend:
            for each in (
                backend.setup,
                lambda: backend.read_reference("realm", "name"),
                lambda: backend.write_objects("realm", [ObjectRow(1, 0, b"")]),
            ):
                try:
                    each()
                except StoreURIError as error:
                    texts.append(str(error))
        return "\n".join(texts)

    told = in_child(use).splitlines()
    assert len(told) == 3
    assert all("check the permissions of the directory" in text for text in told)


@contextmanager
def mounted(place: Path, size: str) -> Iterator[None]:
    """A file system of a fixed size."""
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("a file system cannot be mounted here: that takes root")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    with (
        mounted(tmp_path / "small", "2m"),
        closing(open_backend(f"file://{tmp_path}/small/store")) as backend,
    ):
        backend.setup()
        head = row()
        backend.insert_reference("realm", "name", head)
        written: dict[ObjectKey, bytes] = {}
        with pytest.raises(TryAgainError, match="full; nothing was changed: free space"):  # noqa: PT012  # fills up
            for number in range(1_000):
                value = os.urandom(9_000)
                backend.write_objects("realm", [ObjectRow(number << 30, 0, value)])
                written[ObjectKey(number << 30)] = value
                new = row(b"%d" % number)
                assert backend.swap_reference("realm", "name", head.version, new) == Swapped()
                head = new
        assert 50 < len(written) < 300
        found = backend.read_reference("realm", "name")
        assert found is not None
        assert found == head
        assert backend.read_objects("realm", list(written)) == written
        assert list((tmp_path / "small/store/new").iterdir()) == []
        backend.delete_objects("realm", list(written)[:20])
        assert backend.swap_reference("realm", "name", head.version, row(b"again")) == Swapped()


def test_a_read_only_file_system_is_reported(tmp_path: Path) -> None:
    with (
        mounted(tmp_path / "small", "2m"),
        closing(open_backend(f"file://{tmp_path}/small/store")) as backend,
    ):
        backend.setup()
        backend.insert_reference("realm", "name", first := row())
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "small")], check=True)
        assert backend.read_reference("realm", "name") == first
        for use in (
            lambda: backend.swap_reference("realm", "name", first.version, row()),
            lambda: backend.write_objects("realm", [ObjectRow(1, 0, b"")]),
        ):
            with pytest.raises(StoreURIError, match="file system is read-only"):
                use()


def count_up(uri: str, acknowledged: int) -> None:
    """Add 1 to a counter again and again. Write a byte to the pipe `acknowledged` after each addition."""
    with closing(open_backend(uri)) as backend:
        while True:
            found = backend.read_reference("realm", "counter")
            assert found is not None
            new = row(b"%d" % (int(found.value) + 1))
            backend.write_objects("realm", [ObjectRow(int(new.value), 0, new.version)])
            if backend.swap_reference("realm", "counter", found.version, new) == Swapped():
                os.write(acknowledged, b"+")


def test_killed_processes_leave_no_lock_and_lose_nothing(backend: Backend, root: Path) -> None:
    backend.insert_reference("realm", "counter", row(b"0"))
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    acknowledged = kills = 0
    children: list[int] = []

    def read_all() -> int:
        try:
            return len(os.read(reading, 1 << 20))
        except BlockingIOError:
            return 0

    deadline = time.monotonic() + 300
    while kills < 12 and time.monotonic() < deadline:
        while len(children) < 3:
            child = os.fork()
            if child == 0:
                try:
                    count_up(f"file://{root}", writing)
                finally:  # whatever it is, the child must not go on as if it were the test run
                    os._exit(1)
            children.append(child)
        before = acknowledged
        while acknowledged < before + 15 and time.monotonic() < deadline:
            acknowledged += read_all()
            time.sleep(0.001)
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children.pop(0), 0)
        kills += 1
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    acknowledged += read_all()
    found = backend.read_reference("realm", "counter")
    assert found is not None
    assert kills == 12
    assert acknowledged <= int(found.value) <= acknowledged + kills + 3
    numbers = [ObjectKey(number) for number in range(1, int(found.value) + 1)]
    assert set(backend.read_objects("realm", numbers)) == set(numbers)
    assert backend.swap_reference("realm", "counter", found.version, row()) == Swapped()
    assert backend.swap_reference("realm", "counter", found.version, row()) != Swapped()
