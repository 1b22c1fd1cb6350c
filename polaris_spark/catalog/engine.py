"""Functions of many items, which an engine runs in this process or on executors with the same code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from polaris_spark.backends.base import Backend
from polaris_spark.catalog.files import Files
from polaris_spark.clock import Clock, SystemClock
from polaris_spark.commits.state import StoredObjects
from polaris_spark.store.objects import ObjectStore

I = TypeVar("I")  # noqa: E741  # an item
R = TypeVar("R")

Progress = Callable[[str, int, int], None]
"""Called with the step, the amount done, and the total (0 if not known). An exception that it raises ends the work."""


class Reach:
    """The store and files that a function of items can access, in any process. Thread-safe."""

    def __init__(self, own: ObjectStore, files: Files, clock: Clock | None = None) -> None:
        """
        Args:
            own: objects of the realm that the job is for.
            clock: clock for retries; by default the system's.
        """
        self.own = own
        self.files = files
        self.clock = clock or SystemClock()

    @property
    def backend(self) -> Backend:
        """Access to the rows of all realms."""
        return self.own.backend

    def reader(self, realm: str) -> StoredObjects:
        """Return a reader of the objects of a realm, given its instance id."""
        return StoredObjects(self.own.of_realm(realm))

    def writable(self) -> ObjectStore:
        """Return the objects of the realm that the job is for, for writing.

        Raises:
            StateError: the realm was dropped and created anew since the job began.
        """
        return self.own


class MapFunction(ABC, Generic[I, R]):
    """A function of one item, for `Engine.map`. It is pickled for executors."""

    item: type[I] | None = None
    """Type of the items, which are encoded as MessagePack for executors. If it is None, they are pickled."""
    result: type[R]
    """Type of the results, which are encoded as MessagePack."""
    few: int = 16
    """Number of items up to which one process is faster than starting a Spark job."""
    threads: int = 8
    """Number of items that one process works on at a time. Threads help if most of the time is spent on file I/O."""
    tasks_per_core: int = 1
    """Number of Spark tasks for each core. More than one balances the load if items differ much in size."""
    waves: int = 1
    """Number of Spark jobs that the items are divided into. Progress is reported between them."""

    @abstractmethod
    def __call__(self, reach: Reach, item: I) -> R:
        """Return the result for one item. Several threads may call this at a time."""


class Engine(ABC):
    """Runs functions of many items. Reports progress, and ends the work if the caller of the job no longer waits."""

    def __init__(self, reach: Reach, progress: Progress = lambda _step, _done, _total: None) -> None:
        """
        Args:
            reach: the store and files, as this process accesses them.
            progress: receives the progress. It raises an error if the job was cancelled or has lost its lease.
        """
        self.reach = reach
        self.progress = progress

    @property
    def parts(self) -> int:
        """Number of items that keeps all executors busy; 1 if this process does the work."""
        return 1

    def map(self, function: MapFunction[I, R], items: Sequence[I], doing: str = "") -> Iterator[R]:
        """Yield the result of each item, in the order of the items.

        Args:
            doing: the step that is reported as progress; empty if the caller reports progress.
        """
        if doing and items:
            self.progress(doing, 0, len(items))
        for done, result in enumerate(self._results(function, items), start=1):
            if doing:
                self.progress(doing, done, len(items))
            yield result

    @abstractmethod
    def _results(self, function: MapFunction[I, R], items: Sequence[I]) -> Iterator[R]:
        """Yield the result of each item, in the order of the items."""


class LocalEngine(Engine):
    """An engine that works in this process, on several items at a time."""

    def _results(self, function: MapFunction[I, R], items: Sequence[I]) -> Iterator[R]:
        return run_here(function, self.reach, items)


def run_here(function: MapFunction[I, R], reach: Reach, items: Sequence[I]) -> Iterator[R]:
    """Yield the result of each item, in the order of the items, with the threads of the function."""
    threads = min(function.threads, len(items))
    if threads < 2:
        yield from (function(reach, item) for item in items)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(lambda item: function(reach, item), items)
