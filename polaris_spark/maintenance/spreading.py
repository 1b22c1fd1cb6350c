"""Work on many items, which runs in this process or spread over executors with the same code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

import msgspec

from polaris_spark.catalog.files import Files
from polaris_spark.catalog.metadata import ObjectReader

I = TypeVar("I", bound=msgspec.Struct)  # noqa: E741  # an item
R = TypeVar("R", bound=msgspec.Struct)

THREADS = 8
"""Number of items that one process works on at a time. Threads help because most of the time is spent on file I/O."""


class Reach:
    """The objects and files that work on an item can read, in any process. Thread-safe."""

    def __init__(self, objects: Callable[[str], ObjectReader], files: Files) -> None:
        """
        Args:
            objects: returns the objects of a realm, given its instance id.
        """
        self.objects = objects
        self.files = files


class Work(ABC, Generic[I, R]):
    """A function of an item. It is pickled for executors; items and results are encoded as MessagePack."""

    item: type[I]
    result: type[R]
    few: int = 16
    """Number of items up to which one process is faster than starting a Spark job."""

    @abstractmethod
    def __call__(self, reach: Reach, item: I) -> R:
        """Return the result for one item. Several threads may call this at a time."""


class Spread(Protocol):
    """Protocol of a function that runs work on many items."""

    def __call__(self, work: Work[I, R], items: Sequence[I]) -> Iterator[R]:
        """Yield each result as soon as it is ready, in any order."""
        ...


class Here:
    """A `Spread` that runs the work in this process, several items at a time."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    def __call__(self, work: Work[I, R], items: Sequence[I]) -> Iterator[R]:
        """Yield the results in the order of the items."""
        if len(items) < 2:
            yield from (work(self._reach, item) for item in items)
            return
        with ThreadPoolExecutor(THREADS) as pool:
            yield from pool.map(lambda item: work(self._reach, item), items)
