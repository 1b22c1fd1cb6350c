"""Functions that run test code in threads and in other processes, and functions that other processes run.

The functions are in this module because a new interpreter must be able to import them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from typing import Final, NamedTuple, TypeVar

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, Conflict, ObjectRow, ReferenceRow, Split, Swapped
from polaris_spark.errors import OutcomeUnknownError, PolarisError
from polaris_spark.testing.waiting import PATIENCE_S, until_it_works, wait_until

T = TypeVar("T")

_LONGEST_S: Final = 3 * PATIENCE_S
"""Time limit for the work of other processes, in seconds. A process can wait three times for `PATIENCE_S`."""


class Tally(NamedTuple):
    """How many increments one worker made (`done`), and how many have an unknown outcome (`perhaps`)."""

    done: int
    perhaps: int


def in_threads(n: int, work: Callable[[int], T]) -> list[T]:
    """Run `work(0)` to `work(n - 1)` in threads that all start at the same time, and return the results in this order.

    The threads are daemons, so a thread that hangs does not prevent the interpreter from exiting.
    """
    barrier = threading.Barrier(n, timeout=PATIENCE_S)
    outcomes = [futures.Future[T]() for _ in range(n)]

    def run(number: int) -> None:
        try:
            barrier.wait()
            outcomes[number].set_result(work(number))
        except BaseException as error:
            outcomes[number].set_exception(error)

    for number in range(n):
        threading.Thread(target=run, args=(number,), daemon=True).start()
    futures.wait(outcomes)
    return [outcome.result() for outcome in outcomes]


def started(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run `work` in a new thread. Return the thread and a list. When the thread ends, the list contains the result, or
    the `PolarisError` that was raised."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(work())
        except PolarisError as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def in_processes(work: Callable[..., T], arguments: Sequence[tuple[object, ...]]) -> list[T]:
    """Call `work` once for each tuple of arguments, each time in a new process, and return the results in this order.

    Raises:
        BrokenProcessPool: a process crashed.
        AssertionError: a process did not end within `_LONGEST_S` (nine minutes).
        Exception: any error that `work` raised.
    """
    pool = ProcessPoolExecutor(len(arguments), multiprocessing.get_context("spawn"))
    try:
        asked = [pool.submit(work, *each) for each in arguments]
        done, waiting = futures.wait(asked, _LONGEST_S, futures.FIRST_EXCEPTION)
        for one in done:
            one.result()
        assert not waiting, f"{len(waiting)} processes did not end in {_LONGEST_S} s"
        return [one.result() for one in asked]
    finally:
        for process in list(pool._processes.values()):  # otherwise the pool waits for running processes
            process.kill()
        pool.shutdown()


def exit_status(child: int) -> int:
    """Wait until a forked child ends. Return its exit code, or minus the signal number if a signal ended it.

    Raises:
        AssertionError: the child did not end within `PATIENCE_S`, and was killed.
    """
    ended: list[int] = []

    def look() -> bool:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            ended.append(os.waitstatus_to_exitcode(status))
        return bool(ended)

    try:
        wait_until(look, f"the child {child} ends")
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    return ended[0]


def set_up_store(uri: str, number: int) -> None:
    """Set up a store, and write an object with the id `number` and a reference. Meant to be run in another process."""
    with closing(open_backend(uri)) as backend:
        backend.setup()
        backend.write_objects("realm", [ObjectRow(number, 0, b"x")])
        assert backend.insert_reference("realm", f"name {number}", ReferenceRow(b"version", b"")) == Swapped()


def increments(backend: Backend, realm: str, name: str, n: int) -> Tally:
    """Add 1 to the number in a reference `n` times, each time by a read and a swap. Return the outcomes."""
    done = perhaps = 0
    for _ in range(n):
        outcome = _increment(backend, realm, name)
        done += outcome is True
        perhaps += outcome is None
    return Tally(done, perhaps)


def increments_of_store(uri: str, realm: str, name: str, n: int) -> Tally:
    """Open a store and call `increments`. Meant to be run in another process."""
    with closing(open_backend(uri)) as backend:
        return increments(backend, realm, name, n)


def increments_of_store_for(uri: str, realm: str, name: str, seconds: float) -> Tally:
    """Open a store and add 1 to a number in a reference for `seconds` seconds. Meant to be run in another process."""
    done = perhaps = 0
    with closing(open_backend(uri)) as backend:
        until_it_works(lambda: backend.read_reference(realm, name))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            one = increments(backend, realm, name, 1)
            done, perhaps = done + one.done, perhaps + one.perhaps
        return Tally(done, perhaps)


def count_in_store(uri: str, realm: str, name: str, told: Connection) -> None:
    """Write objects 1, 2, 3 and so on, forever, and increment the counter in a reference after each. Send the number of
    each object to `told` after both writes were acknowledged."""
    backend = open_backend(uri)
    number = 0
    while True:
        number += 1
        until_it_works(lambda n=number: backend.write_objects(realm, [ObjectRow(n, 0, b"%d" % n)]))  # type: ignore[misc]  # bound at once
        increments(backend, realm, name, 1)
        told.send(number)


def killed_counter(uri: str, realm: str, name: str, n: int) -> int:
    """Run `count_in_store` in another process, and kill the process when it has reported the number `n` or a later one.
    Return the last number that the process reported.

    Raises:
        EOFError: the process ended by itself.
        AssertionError: the process reported no number for `PATIENCE_S`.
    """
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=count_in_store, args=(uri, realm, name, sending))
    process.start()
    sending.close()
    number = 0
    try:
        while number < n:
            assert receiving.poll(PATIENCE_S), (
                f"the process reported no number after {number} for {PATIENCE_S} s"
            )
            number = receiving.recv()
        process.kill()
        with suppress(EOFError):
            while True:
                number = receiving.recv()
    finally:
        process.kill()
        process.join()
    return number


def read_of_store(uri: str, realm: str, name: str) -> ReferenceRow | None:
    """Open a store and return a reference. Meant to be run in another process."""
    with closing(open_backend(uri)) as backend:
        backend.setup()
        return backend.read_reference(realm, name)


def scan_of_store(uri: str, split: Split) -> list[tuple[object, ...]]:
    """Open a store and return the rows of a split. Meant to be run in another process."""
    with closing(open_backend(uri)) as backend:
        return rows(backend, [split])


def rows(backend: Backend, splits: Sequence[Split]) -> list[tuple[object, ...]]:
    """Scan the splits, and return all rows as tuples in the order of the scan."""
    found: list[tuple[object, ...]] = []
    for split in splits:
        for batch in backend.scan(split):
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return found


def _increment(backend: Backend, realm: str, name: str) -> bool | None:
    """Add 1 to the number in a reference. Return True if the addition was made.

    Return None if it is unknown whether the addition was made, because another client has changed the reference since.
    """
    end = time.monotonic() + PATIENCE_S
    while True:
        current = until_it_works(lambda: backend.read_reference(realm, name))
        assert current is not None, "the reference to increment is gone"
        new = ReferenceRow(os.urandom(16), b"%d" % (int(current.value) + 1))
        outcome = _swap(backend, realm, name, current.version, new)
        if not isinstance(outcome, Conflict):
            return True if isinstance(outcome, Swapped) else None
        assert time.monotonic() < end, f"lost each swap for {PATIENCE_S} s: {outcome}"


def _swap(
    backend: Backend, realm: str, name: str, expected: bytes, new: ReferenceRow
) -> Swapped | Conflict | None:
    """Repeat a swap until its outcome is known, and return the outcome. Return None if it remains unknown, because
    another client has changed the reference since."""
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
