"""Requests to DynamoDB: how many at a time, which of them again, and how long.

The driver's own repetitions are off, because a conditional write that is repeated after a lost answer fails by its own
first try. Here a conditional write is repeated only where nothing was done (throttled, not connected); reads and
writes of immutable rows also where that is not known. Pauses grow from 25 ms to 2 s at random ("full jitter",
https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter).
"""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from polaris_spark.backends.dynamodb import failures
from polaris_spark.backends.dynamodb.items import Item
from polaris_spark.backends.dynamodb.settings import Settings
from polaris_spark.backends.places import NoPlaceError, Places
from polaris_spark.errors import OutcomeUnknownError, StateError, TryAgainError

T = TypeVar("T")
A = TypeVar("A")

_FIRST_S, _LONGEST_S = 0.025, 2.0


class Requests:
    """Requests of one process to one store. Thread-safe; a forked child opens connections of its own."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._closed = False
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        """Also after a fork, in the child: the parent's locks, threads and connections stay behind."""
        self._lock = threading.Lock()
        self._places = Places(self.settings.connections, self.settings.timeout)
        self._client: Any = None
        self._pool: ThreadPoolExecutor | None = None

    def close(self) -> None:
        """Refuse later requests, and wait until requests in progress end."""
        with self._lock:
            self._closed = True
            pool, client = self._pool, self._client
        if pool is not None:
            pool.shutdown(wait=True)
        if client is not None:
            client.close()

    def read(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a request that changes nothing.

        Raises:
            TryAgainError: there was none in time.
            StateError: it was refused.
        """
        return self._repeated(operation, parameters, writes=False)

    def write(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a request that may be repeated without harm.

        Raises:
            OutcomeUnknownError: there was none in time.
            TryAgainError: nothing was changed.
            StateError: it was refused.
        """
        return self._repeated(operation, parameters, writes=True)

    def change(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a conditional write, which is carried out once at most.

        Raises:
            failures.ConditionFailedError: the condition does not hold.
            OutcomeUnknownError: the answer was lost.
            TryAgainError: nothing was changed.
            StateError: it was refused.
        """
        pauses = _Pauses(self.settings)
        while True:
            try:
                return self._send(operation, parameters, writes=True)
            except TryAgainError:
                if not pauses.wait():
                    raise

    def get_batch(self, table: str, keys: Sequence[Item]) -> list[Item]:
        """The items that exist among up to 100 different keys."""
        found: list[Item] = []
        pending: Any = {table: {"Keys": keys, "ConsistentRead": True}}
        pauses = _Pauses(self.settings)
        while pending:
            answer = self.read("batch_get_item", RequestItems=pending)
            items, pending = answer["Responses"].get(table, []), answer.get("UnprocessedKeys")
            found += items
            if pending and not pauses.wait(again=bool(items)):
                raise TryAgainError(
                    f"{self.settings.where} is overloaded and gives no rows; nothing was changed"
                )
        return found

    def write_batch(self, table: str, requests: Sequence[dict[str, Any]]) -> None:
        """Put or delete up to 25 items of different keys, whatever is there."""
        pending: Any = {table: requests}
        pauses, left = _Pauses(self.settings), len(requests)
        while pending:
            pending = self.write("batch_write_item", RequestItems=pending).get("UnprocessedItems")
            before, left = left, len(pending[table]) if pending else 0
            if pending and not pauses.wait(again=left < before):
                raise OutcomeUnknownError(
                    f"{self.settings.where} is overloaded: {len(requests) - left} of {len(requests)} rows were written"
                )

    def each(self, function: Callable[[A], T], arguments: Iterable[A]) -> list[T]:
        """Call `function` for each argument in parallel, and return the results. Raise errors after all calls end."""
        given = list(arguments)
        if len(given) < 2:
            return [function(argument) for argument in given]
        others = self._submitted(function, given[1:])
        first = partial(function, given[0])
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

    def _submitted(self, function: Callable[[A], T], arguments: Sequence[A]) -> list[Future[T]]:
        with self._lock:
            self._refuse_if_closed()
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.settings.connections, thread_name_prefix="dynamodb")
            return [self._pool.submit(function, argument) for argument in arguments]

    def _repeated(self, operation: str, parameters: dict[str, Any], *, writes: bool) -> dict[str, Any]:
        pauses = _Pauses(self.settings)
        doubt: OutcomeUnknownError | None = None
        while True:
            try:
                return self._send(operation, parameters, writes=writes)
            except OutcomeUnknownError as error:
                doubt = error
                if not pauses.wait():
                    raise
            except TryAgainError as error:
                if not pauses.wait():
                    raise doubt or error from None

    def _send(self, operation: str, parameters: dict[str, Any], *, writes: bool) -> dict[str, Any]:
        self._refuse_if_closed()
        settings = self.settings
        try:
            return self._places.run(self._answer, operation, parameters, writes=writes)
        except NoPlaceError:
            raise TryAgainError(
                f"{settings.where}: all {settings.connections} connections were in use for {settings.timeout} ms; "
                "nothing was changed (option 'connections')"
            ) from None

    def _answer(self, operation: str, parameters: dict[str, Any], *, writes: bool) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = getattr(self._client or self._opened(), operation)(**parameters)
            return answer
        except failures.CAUGHT as error:
            explained = failures.explained(self.settings.where, operation, error, writes=writes)
            raise explained from None  # the driver's error holds the request

    def _opened(self) -> Any:
        with self._lock:
            self._refuse_if_closed()
            if self._client is None:
                self._client = self.settings.open()
            return self._client

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StateError(f"the store {self.settings.where} is closed")


class _Pauses:
    """Growing random pauses between tries, until two thirds of the time for a request are over."""

    def __init__(self, settings: Settings) -> None:
        self._allowed = settings.timeout / 1_500
        self._begin()

    def _begin(self) -> None:
        self._longest = _FIRST_S
        self._end = time.monotonic() + self._allowed

    def wait(self, *, again: bool = False) -> bool:
        """Pause; False if there is no time left for another try.

        Args:
            again: whether the last try went ahead, so that the count begins anew.
        """
        if again:
            self._begin()
        pause = random.uniform(0, self._longest)
        if time.monotonic() + pause > self._end:
            return False
        time.sleep(pause)
        self._longest = min(2 * self._longest, _LONGEST_S)
        return True


def _gravity(error: Exception) -> int:
    """Of several errors the one that says most about what to do comes first: what is wrong, doubt, trouble."""
    return (OutcomeUnknownError, TryAgainError).index(type(error)) + 1 if type(error) in _PASSING else 0


_PASSING: Final = frozenset({OutcomeUnknownError, TryAgainError})
_all: Final[weakref.WeakSet[Requests]] = weakref.WeakSet()


def _begin_in_child() -> None:
    for each in list(_all):
        each._begin()


os.register_at_fork(after_in_child=_begin_in_child)
