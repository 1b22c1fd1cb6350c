"""Work on many items, in this process or spread over executors: the same work either way."""

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
"""Items that one process works on at a time, since most of it is waiting for files."""


class Reach:
    """What work on an item can reach, wherever it runs. Thread-safe."""

    def __init__(self, objects: Callable[[str], ObjectReader], files: Files) -> None:
        """
        Args:
            objects: the objects of the realm with an instance id.
        """
        self.objects = objects
        self.files = files


class Work(ABC, Generic[I, R]):
    """What is done with each item. Pickled for executors, items and results are encoded as MessagePack."""

    item: type[I]
    result: type[R]
    few: int = 16
    """So many items are done faster in one process than a Spark job starts."""

    @abstractmethod
    def __call__(self, reach: Reach, item: I) -> R:
        """The result for one item; several threads may ask at a time."""


class Spread(Protocol):
    """Does work on many items."""

    def __call__(self, work: Work[I, R], items: Sequence[I]) -> Iterator[R]:
        """The results, in any order, as they come."""
        ...


class Here:
    """Does the work in this process, some items at a time."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    def __call__(self, work: Work[I, R], items: Sequence[I]) -> Iterator[R]:
        """The results, in the order of the items."""
        if len(items) < 2:
            yield from (work(self._reach, item) for item in items)
            return
        with ThreadPoolExecutor(THREADS) as pool:
            yield from pool.map(lambda item: work(self._reach, item), items)
