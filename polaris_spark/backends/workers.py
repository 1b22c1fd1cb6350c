"""Threads that send the requests of one operation in parallel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from polaris_spark.errors import OutcomeUnknownError, StateError, TryAgainError

A = TypeVar("A")
T = TypeVar("T")


class Workers:
    """A pool of threads for the requests to one store. The threads start at first use. Thread-safe."""

    def __init__(self, where: str, most: int) -> None:
        """
        Args:
            where: name of the store for error messages.
            most: maximum number of threads.
        """
        self._where, self._most = where, most
        self._closed = False
        self.begin_in_child()

    def begin_in_child(self) -> None:
        """Begin without threads in a forked child, because the parent's threads do not exist there."""
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def each(self, function: Callable[[A], T], arguments: Iterable[A]) -> list[T]:
        """Call `function` for each argument in parallel, and return the results in the order of the arguments. If calls
        raise errors, one error is raised after all calls have ended: the gravest, by `_gravity`.

        Raises:
            StateError: the pool was closed.
        """
        given = list(arguments)
        if len(given) < 2:
            return [function(argument) for argument in given]
        others = self._submitted(function, given[1:])
        first = partial(function, given[0])  # called in this thread, while the others run
        waiting: list[Callable[[], T]] = [first, *(other.result for other in others)]
        results: list[T] = []
        errors: list[Exception] = []
        for result in waiting:
            try:
                results.append(result())
            except Exception as error:
                errors.append(error)
        if errors:
            raise min(errors, key=_gravity)
        return results

    def close(self) -> None:
        """Wait until calls in progress have ended, and end the threads."""
        with self._lock:
            self._closed = True
            pool = self._pool
        if pool is not None:
            pool.shutdown(wait=True)

    def _submitted(self, function: Callable[[A], T], arguments: Sequence[A]) -> list[Future[T]]:
        with self._lock:
            if self._closed:
                raise StateError(f"{self._where} is closed; open the store again")
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._most, thread_name_prefix="polaris-store")
            return [self._pool.submit(function, argument) for argument in arguments]


def _gravity(error: Exception) -> int:
    """Return how grave an error is; the lowest number is the gravest: 0 for a definite error, 1 for an unknown outcome,
    2 for a temporary error."""
    if isinstance(error, TryAgainError):
        return 2
    return 1 if isinstance(error, OutcomeUnknownError) else 0
