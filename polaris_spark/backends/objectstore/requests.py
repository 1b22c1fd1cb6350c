"""What rows and references need of a place that keeps objects: a few requests, one of them conditional."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ClassVar, TypeVar

from polaris_spark.errors import OutcomeUnknownError, StateError, TryAgainError

T = TypeVar("T")
A = TypeVar("A")

Mark = dict[str, str]
"""What names one state of an object: its ETag, or generation."""

AT_ONCE = 1_000
"""Most keys of one page of a listing, or of one bulk delete."""


class Requests(ABC):
    """Requests to one place. Thread-safe."""

    conditional_deletes: ClassVar[bool] = False
    """Whether `delete_if` is offered. Only for a place where no PUT arrives late, after its answer was lost: it would
    create anew what was deleted in between."""

    def __init__(self, where: str, connections: int) -> None:
        """
        Args:
            where: how errors name the place.
            connections: most requests at the same time of one `each`.
        """
        self.where = where
        self._connections = connections
        self._closed = False
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    @abstractmethod
    def setup(self) -> None:
        """Make the place fit to hold a store, or refuse it; safe to repeat and to race."""

    @abstractmethod
    def get(self, key: str) -> tuple[bytes, Mark] | None:
        """Body and mark of an object, or None."""

    @abstractmethod
    def put(self, key: str, body: bytes) -> None:
        """Write an object whose key and body belong together for good."""

    @abstractmethod
    def put_if(self, key: str, body: bytes, mark: Mark | None) -> Mark | None:
        """Write an object if it is as `mark` says (None: if there is none); its new mark, or None if it is not.

        None may also mean that the place would not decide between several writers: look, then ask again.

        Raises:
            OutcomeUnknownError: the answer was lost.
            TryAgainError: nothing was changed.
        """

    def now_ms(self) -> int | None:
        """The time of the storage's own clock, in milliseconds since 1970; None if it has no clock other than this
        machine's."""
        return None

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; missing ones are no error."""

    def delete_if(self, key: str, mark: Mark) -> bool:
        """Remove an object if it is as `mark` says; whether it was. Only where `conditional_deletes` is true."""
        raise NotImplementedError(f"{type(self).__name__} has no conditional deletes")

    @abstractmethod
    def pages(self, prefix: str) -> Iterator[Sequence[tuple[str, int]]]:
        """Keys below a prefix with the sizes of their objects, in bytes, in pages of up to `AT_ONCE`."""

    @abstractmethod
    def folders(self, prefix: str) -> list[str]:
        """Names of what lies directly below a prefix and has more below it."""

    def each(self, function: Callable[[A], T], arguments: Iterable[A]) -> list[T]:
        """Call `function` for each argument in parallel, and return the results. Raise errors after all calls end."""
        self.refuse_if_unusable()
        given = list(arguments)
        if not given:
            return []
        try:
            others: list[Future[T]] = [self._threads().submit(function, each) for each in given[1:]]
        except RuntimeError:
            raise self._closed_error() from None
        results: list[T] = []
        errors: list[BaseException] = []
        try:
            results.append(function(given[0]))
        except Exception as error:
            errors.append(error)
        for other in others:
            try:
                results.append(other.result())
            except Exception as error:
                errors.append(error)
        if errors:
            raise _gravest(errors)
        return results

    def refuse_if_unusable(self) -> None:
        """
        Raises:
            StateError: it was closed, or cannot be used in this process.
        """
        if self._closed:
            raise self._closed_error()

    def close(self) -> None:
        """Refuse later requests, and wait until requests in progress end."""
        self._closed = True
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)

    def start_in_child(self) -> None:
        """Begin anew without threads: a forked child has none of its parent's."""
        self._lock = threading.Lock()
        self._pool = None

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._closed:
                raise self._closed_error()
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._connections, thread_name_prefix="objectstore")
            return self._pool

    def _closed_error(self) -> StateError:
        return StateError(f"{self.where} is closed")


def _gravest(errors: Sequence[BaseException]) -> BaseException:
    """Of several errors the one that says most about what to do: what is wrong, then doubt, then trouble."""
    for temporary in (True, False):
        for error in errors:
            if not isinstance(error, TryAgainError) and (
                not temporary or not isinstance(error, OutcomeUnknownError)
            ):
                return error
    return errors[0]
