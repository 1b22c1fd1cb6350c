"""The storage contract where a store is files of this machine: what becomes of it when the disk is full."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable
from itertools import count
from typing import Final, TypeVar

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import ObjectKey, ObjectRow, ReferenceRow, Swapped
from polaris_spark.errors import PolarisError
from polaris_spark.testing.processes import in_processes
from polaris_spark.testing.stores import StoreCases, row

T = TypeVar("T")

_FILE_BYTES: Final = 256 * 1024
"""How large a file may become, bytes; less than a large row, so that every way of keeping rows meets the limit."""
_LARGE: Final = b"x" * 300_000
_LIMITED_S: Final = 60
"""How long rows that do not fit are written again and again, seconds: room that was set aside is used up first."""


class FileCases(StoreCases):
    """A store of files that cannot grow."""

    def test_a_full_disk_is_told_and_what_was_acknowledged_stays(self, uri: str) -> None:
        """The limit is on a process' files, which meets the same errors as a full disk and needs no disk."""
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
    """Write rows to a store and then swap a reference, by a process whose files cannot grow.

    Returns:
        the ids of the rows that were acknowledged, and how the rows and the swap ended: `written` and `swapped`, or
        their errors.
    Raises:
        Exception: one that is no error of this package.
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
    """What a call gives, or its error, if that is one of this package."""
    try:
        return call()
    except PolarisError as error:
        return f"{type(error).__name__}: {error}"
