"""What the conformance kit runs in other processes, and in threads: functions that a new interpreter can
import."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, Conflict, ReferenceRow, Split, Swapped
from polaris_spark.errors import OutcomeUnknownError
from polaris_spark.testing.waiting import until_it_works

T = TypeVar("T")


class Tally(NamedTuple):
    """What came of one worker's increments: certainly done, and perhaps done."""

    done: int
    perhaps: int


def in_threads(n: int, work: Callable[[int], T]) -> list[T]:
    """What `work(0)` to `work(n - 1)` give, all started at once."""
    barrier = threading.Barrier(n)

    def start(number: int) -> T:
        barrier.wait(60)
        return work(number)

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(start, range(n)))


def in_processes(work: Callable[..., T], arguments: Sequence[tuple[object, ...]]) -> list[T]:
    """What `work` gives for each tuple of arguments, each in a new interpreter of its own."""
    with multiprocessing.get_context("spawn").Pool(len(arguments)) as pool:
        return pool.starmap(work, arguments, chunksize=1)


def increments(backend: Backend, realm: str, name: str, n: int) -> Tally:
    """Add 1 to the number that a reference holds, `n` times, by reading and swapping."""
    done = perhaps = 0
    for _ in range(n):
        outcome = _increment(backend, realm, name)
        done += outcome is True
        perhaps += outcome is None
    return Tally(done, perhaps)


def increments_of_store(uri: str, realm: str, name: str, n: int) -> Tally:
    """`increments` by a process of its own."""
    backend = open_backend(uri)
    try:
        return increments(backend, realm, name, n)
    finally:
        backend.close()


def read_of_store(uri: str, realm: str, name: str) -> ReferenceRow | None:
    """A reference, read by a process of its own."""
    backend = open_backend(uri)
    backend.setup()
    try:
        return backend.read_reference(realm, name)
    finally:
        backend.close()


def scan_of_store(uri: str, split: Split) -> list[tuple[object, ...]]:
    """The rows of a split, read by a process of its own."""
    backend = open_backend(uri)
    try:
        return rows(backend, [split])
    finally:
        backend.close()


def rows(backend: Backend, splits: Sequence[Split]) -> list[tuple[object, ...]]:
    """All rows of some splits, as tuples, in the order of the scan."""
    found: list[tuple[object, ...]] = []
    for split in splits:
        for batch in backend.scan(split):
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return found


def _increment(backend: Backend, realm: str, name: str) -> bool | None:
    """True when done for certain, None when it may have been done and then overwritten."""
    while True:
        current = until_it_works(lambda: backend.read_reference(realm, name))
        assert current is not None, "the reference to increment is gone"
        new = ReferenceRow(os.urandom(16), b"%d" % (int(current.value) + 1))
        outcome = _swap(backend, realm, name, current.version, new)
        if not isinstance(outcome, Conflict):
            return True if isinstance(outcome, Swapped) else None


def _swap(
    backend: Backend, realm: str, name: str, expected: bytes, new: ReferenceRow
) -> Swapped | Conflict | None:
    """A swap repeated until its outcome is known; None if it never will be."""
    doubtful = False

    def swap() -> Swapped | Conflict:
        nonlocal doubtful
        try:
            return backend.swap_reference(realm, name, expected, new)
        except OutcomeUnknownError:
            doubtful = True
            raise

    outcome = until_it_works(swap)
    if isinstance(outcome, Swapped) or not doubtful:
        return outcome
    current = until_it_works(lambda: backend.read_reference(realm, name))
    return Swapped() if current is not None and current.version == new.version else None
