"""Test cases of the storage contract for stores in local files: protection of the files, and a full disk."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final, TypeVar

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import ObjectKey, ObjectRow, ReferenceRow, Swapped
from polaris_spark.backends.traces import is_database, is_store_folder
from polaris_spark.catalog.files.store_files import StoreFiles
from polaris_spark.errors import PolarisError
from polaris_spark.store_uris import StoreURI
from polaris_spark.testing.processes import in_processes
from polaris_spark.testing.stores import StoreCases, row

T = TypeVar("T")

_FILE_BYTES: Final = 256 * 1024
"""Maximum size of a file in the test of a full disk, in bytes. It is less than the size of a `_LARGE` row, so
every store reaches the limit, no matter how it divides rows into files."""
_LARGE: Final = b"x" * 300_000
_LIMITED_S: Final = 60
"""Maximum time to write rows until a write fails, in seconds. Writes can succeed at first, because a store may have
reserved space."""


class FileCases(StoreCases):
    """Test cases for stores in local files: jobs must not delete the files, and a full disk must not lose data."""

    def test_no_job_deletes_files_of_the_store(self, uri: str) -> None:
        store = StoreURI.parse(uri)
        around = Path(store.path).parent
        before = set(around.iterdir())
        backend = open_backend(uri)
        backend.setup()
        backend.write_objects("realm", [ObjectRow(1, 0, b"x")])
        files = set(around.iterdir()) - before
        assert files
        protected = StoreFiles.of([store])
        assert [file for file in files if not protected.holds(str(file))] == []
        backend.close()
        # A job in a process that has not opened the store recognizes the store by its content.
        assert is_store_folder(store.path) or is_database(store.path)

    def test_a_full_disk_is_reported_and_acknowledged_writes_are_kept(self, uri: str) -> None:
        """The full disk is simulated by a limit on the size of the files of a process. The error can differ from that
        of a full disk: SQLite reports an I/O error instead. So the test does not check which error is raised."""
        backend = open_backend(uri)
        backend.setup()
        backend.insert_reference("realm", "name", first := row(b"first"))
        backend.write_objects("realm", [ObjectRow(1, 0, b"small")])
        backend.close()
        second = row(_LARGE)
        [(written, told)] = in_processes(fill_store, [(uri, first.version, second)])
        assert told[0] != "written", "no write failed"
        again = open_backend(uri)
        again.setup()
        found = again.read_objects("realm", [ObjectKey(id) for id in (1, *written)])
        assert set(found) == {ObjectKey(id) for id in (1, *written)}
        current = again.read_reference("realm", "name")
        assert current == (second if "swapped" in told else first) or "OutcomeUnknownError" in told[-1]
        again.write_objects("realm", [ObjectRow(2, 0, _LARGE)])
        assert current is not None
        assert again.swap_reference("realm", "name", current.version, row(_LARGE)) == Swapped()
        again.close()


def fill_store(uri: str, expected: bytes, new: ReferenceRow) -> tuple[list[int], tuple[str, str]]:
    """Limit the size of this process's files, write rows to a store until a write fails, and then swap a reference.

    Returns:
        the ids of the rows whose writes were acknowledged, and two outcomes: of the writes (`written`, or the text of
        the error) and of the swap (`swapped`, the conflict, or the text of the error).
    Raises:
        Exception: any error that does not belong to this package.
    """
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    written: list[int] = []

    def write() -> str:
        end = time.monotonic() + _LIMITED_S
        for id in count(100):
            backend.write_objects("realm", [ObjectRow(id, 0, _LARGE)])
            written.append(id)
            if time.monotonic() > end:
                break
        return "written"

    def swap() -> str:
        outcome = backend.swap_reference("realm", "name", expected, new)
        return "swapped" if isinstance(outcome, Swapped) else repr(outcome)

    backend = open_backend(uri)
    try:
        return written, (_told(write), _told(swap))
    finally:
        _told(backend.close)


def _told(call: Callable[[], T]) -> T | str:
    """Return the result of a call, or the text of its error if the error belongs to this package."""
    try:
        return call()
    except PolarisError as error:
        return f"{type(error).__name__}: {error}"
