"""The interface to object storage: the few kinds of requests that a store needs, including conditional writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, TypeVar

from polaris_spark.backends.workers import Workers
from polaris_spark.errors import StateError

T = TypeVar("T")
A = TypeVar("A")

Mark = dict[str, str]
"""Identifies one state of an object: its ETag, its generation, or both."""

AT_ONCE = 1_000
"""Maximum number of keys in one page of a listing, or in one bulk delete."""


class Requests(ABC):
    """Sends requests to one bucket or directory. Thread-safe."""

    conditional_deletes: ClassVar[bool] = False
    """Whether `delete_if` is implemented. It must not be implemented for storage where a PUT can arrive late, after its
    answer was lost: such a PUT would create an object again after its deletion."""

    def __init__(self, where: str, connections: int) -> None:
        """
        Args:
            where: name of the bucket or directory for error messages.
            connections: maximum number of concurrent calls that `each` makes.
        """
        self.where = where
        self._closed = False
        self._workers = Workers(where, connections)

    @abstractmethod
    def setup(self) -> None:
        """Prepare the bucket or directory to hold a store, or raise an error if it cannot hold one. Idempotent, and
        safe if several processes call it at the same time."""

    @abstractmethod
    def get(self, key: str) -> tuple[bytes, Mark] | None:
        """Return the body of an object and its mark (ETag or generation); None if the object does not exist."""

    @abstractmethod
    def put(self, key: str, body: bytes) -> None:
        """Write an object unconditionally. Use this only for objects that never change: all writes of a key have the
        same body."""

    @abstractmethod
    def put_if(self, key: str, body: bytes, mark: Mark | None) -> Mark | None:
        """Write an object if its mark (ETag or generation) is `mark` (None: if the object does not exist). Return its
        new mark, or None if the write was refused.

        The storage refuses a write if the condition is false, but sometimes also because of concurrent writers. So
        after None, the caller must read the object, and try again if its mark is still `mark`.

        Raises:
            OutcomeUnknownError: the answer was lost.
            TryAgainError: nothing was changed.
        """

    def now_ms(self) -> int | None:
        """Return the time of the storage's clock, in milliseconds since 1970; None if the storage has no clock other
        than this machine's."""
        return None

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. Missing objects are not an error."""

    def delete_if(self, key: str, mark: Mark) -> bool:
        """Delete an object if its mark (ETag or generation) is `mark`. Return whether it was deleted. Call this only if
        `conditional_deletes` is true."""
        raise NotImplementedError(f"{type(self).__name__} has no conditional deletes")

    @abstractmethod
    def pages(self, prefix: str) -> Iterator[Sequence[tuple[str, int]]]:
        """Yield the keys below a prefix with the sizes of their objects, in bytes, in pages of up to `AT_ONCE` keys."""

    @abstractmethod
    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders (common prefixes) directly below a prefix."""

    def each(self, function: Callable[[A], T], arguments: Iterable[A]) -> list[T]:
        """Call `function` for each argument in parallel, and return the results in the order of the arguments; see
        `Workers.each`."""
        self.refuse_if_unusable()
        return self._workers.each(function, arguments)

    def refuse_if_unusable(self) -> None:
        """Check that requests can be sent.

        Raises:
            StateError: the store was closed, or cannot be used in this process.
        """
        if self._closed:
            raise StateError(f"{self.where} is closed; open the store again")

    def close(self) -> None:
        """Wait until requests in progress have ended. Later requests raise `StateError`."""
        self._closed = True
        self._workers.close()

    def begin_in_child(self) -> None:
        """Begin without threads in a forked child, because the parent's threads do not exist there."""
        self._workers.begin_in_child()
