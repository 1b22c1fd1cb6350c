"""Directories of stores that are removed or replaced while a process has them open."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, ObjectKey, ObjectRow, ReferenceRow, Swapped
from polaris_spark.backends.objectstore.local import DirectoryRequests
from polaris_spark.backends.rocksdb import RocksDBBackend
from polaris_spark.backends.rocksdb.handles import Handle
from polaris_spark.errors import OutcomeUnknownError, StateError, StoreURIError

REALM = "realm"
REPLACED = "was removed or replaced"
ONE, TWO = ReferenceRow(b"1", b"one"), ReferenceRow(b"2", b"two")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Path of the store."""
    return tmp_path / "store"


@pytest.fixture(params=["file", "rocksdb"])
def uri(request: pytest.FixtureRequest, path: Path) -> str:
    """The store's URI."""
    return f"{request.param}://{path}"


@pytest.fixture
def backend(uri: str) -> Iterator[Backend]:
    """A store with one reference, one row, and a reader that has seen both."""
    backend = open_backend(uri)
    backend.setup()
    backend.write_objects(REALM, [ObjectRow(1, 0, b"x")])
    assert backend.insert_reference(REALM, "r", ONE) == Swapped()
    assert backend.read_reference(REALM, "r") == ONE
    yield backend
    backend.close()


def remove(path: Path) -> None:
    shutil.rmtree(path)


def move_away(path: Path) -> None:
    path.rename(path.with_suffix(".bak"))


def put_a_copy_in_its_place(path: Path) -> None:
    path.rename(path.with_suffix(".bak"))
    shutil.copytree(path.with_suffix(".bak"), path)


def put_a_file_in_its_place(path: Path) -> None:
    shutil.rmtree(path)
    path.touch()


CHANGES = [remove, move_away, put_a_copy_in_its_place, put_a_file_in_its_place]


@pytest.mark.parametrize("change", CHANGES)
def test_no_change_is_acknowledged_after_the_directory_is_removed(
    backend: Backend, path: Path, change: Callable[[Path], None]
) -> None:
    change(path)
    for operation in (
        lambda: backend.swap_reference(REALM, "r", b"1", TWO),
        lambda: backend.insert_reference(REALM, "s", TWO),
        lambda: backend.delete_reference(REALM, "r", b"1"),
        lambda: backend.read_reference(REALM, "r"),
    ):
        with pytest.raises((StateError, StoreURIError)):
            operation()


@pytest.mark.parametrize("change", [remove, move_away, put_a_copy_in_its_place])
def test_a_replacement_directory_contains_no_unacknowledged_change(
    backend: Backend, uri: str, path: Path, change: Callable[[Path], None]
) -> None:
    change(path)
    with pytest.raises((StateError, StoreURIError)):
        backend.swap_reference(REALM, "r", b"1", TWO)
    backend.close()
    if not path.exists():
        with (
            closing(open_backend(uri)) as again,
            pytest.raises(StoreURIError, match="does not contain a store"),
        ):
            again.read_reference(REALM, "r")
        return
    with closing(open_backend(uri)) as again:
        assert again.read_reference(REALM, "r") == ONE
        assert again.read_objects(REALM, [ObjectKey(1)]) == {ObjectKey(1): b"x"}
        assert again.swap_reference(REALM, "r", b"1", TWO) == Swapped()


def test_operations_on_a_replaced_file_are_refused_with_the_remedy(backend: Backend, path: Path) -> None:
    put_a_copy_in_its_place(path)
    with pytest.raises(StateError, match=REPLACED):
        backend.read_reference(REALM, "r")
    with pytest.raises(StateError, match=REPLACED):
        backend.swap_reference(REALM, "r", b"1", TWO)


def test_the_outcome_of_a_change_is_unknown_if_the_directory_is_removed_meanwhile(
    backend: Backend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(backend, RocksDBBackend):
        write = Handle._put
        monkeypatch.setattr(
            Handle, "_put", lambda *arguments: (write(*arguments), put_a_copy_in_its_place(path))[0]
        )
    else:
        flush = DirectoryRequests._flush
        monkeypatch.setattr(
            DirectoryRequests,
            "_flush",
            lambda *arguments: (flush(*arguments), put_a_copy_in_its_place(path))[0],
        )
    with pytest.raises(OutcomeUnknownError, match=REPLACED):
        backend.swap_reference(REALM, "r", b"1", TWO)
