"""Requests to DynamoDB, with concurrency limits, retries and deadlines.

The driver's retries are off: a conditional write that succeeded, but whose answer was lost, would fail when retried.
This module retries a conditional write only if nothing was done (throttled, not connected). Reads, and writes of
immutable rows, are also retried if the outcome is unknown. Pauses are random and grow from 25 ms to 2 s ("full jitter",
https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from typing import Any

from polaris_spark.backends.concurrency import LimitReachedError, OperationLimit
from polaris_spark.backends.dynamodb import failures
from polaris_spark.backends.dynamodb.items import Item
from polaris_spark.backends.dynamodb.settings import Settings
from polaris_spark.backends.workers import Workers
from polaris_spark.errors import OutcomeUnknownError, StateError, TryAgainError
from polaris_spark.forks import begin_anew_in_children

_FIRST_S, _LONGEST_S = 0.025, 2.0


class Requests:
    """Sends the requests of one process to one store. Thread-safe; a forked child opens its own connections."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._closed = False
        self.workers = Workers(f"the store {settings.where}", settings.connections)
        """Threads that send several requests of one operation at the same time."""
        self.begin_in_child()
        begin_anew_in_children(self)

    def begin_in_child(self) -> None:
        """Start with new locks, and without threads and connections. The constructor calls this. A forked child calls
        it again, because it must not use the locks and connections of its parent."""
        self._lock = threading.Lock()
        self._places = OperationLimit(self.settings.connections, self.settings.timeout)
        self._client: Any = None
        self.workers.begin_in_child()

    def close(self) -> None:
        """Wait until the threads of `workers` have finished their requests, and close the connections. Later requests
        raise `StateError`."""
        with self._lock:
            self._closed = True
            client = self._client
        self.workers.close()
        if client is not None:
            client.close()

    def read(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Send a read-only request, and return its answer. `operation` is a method name of the driver's client.

        Raises:
            TryAgainError: there was no answer in time.
            StateError: the request was refused.
        """
        return self._repeated(operation, parameters, writes=False)

    def write(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Send an idempotent write, and return its answer. `operation` is a method name of the driver's client.

        Raises:
            OutcomeUnknownError: there was no answer in time.
            TryAgainError: nothing was changed.
            StateError: the request was refused.
        """
        return self._repeated(operation, parameters, writes=True)

    def change(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Send a conditional write, which is carried out at most once, and return its answer. `operation` is a method
        name of the driver's client.

        Raises:
            failures.ConditionFailedError: the condition is false.
            OutcomeUnknownError: the answer was lost.
            TryAgainError: nothing was changed.
            StateError: the request was refused.
        """
        pauses = _Pauses(self.settings)
        while True:
            try:
                return self._send(operation, parameters, writes=True)
            except TryAgainError:
                if not pauses.wait():
                    raise

    def get_batch(self, table: str, keys: Sequence[Item]) -> list[Item]:
        """Return the items of a table that exist among `keys` (at most 100 keys, all different)."""
        found: list[Item] = []
        pending: Any = {table: {"Keys": keys, "ConsistentRead": True}}
        pauses = _Pauses(self.settings)
        while pending:
            answer = self.read("batch_get_item", RequestItems=pending)
            items, pending = answer["Responses"].get(table, []), answer.get("UnprocessedKeys")
            found += items
            if pending and not pauses.wait(again=bool(items)):
                raise TryAgainError(
                    f"{self.settings.where} is overloaded and returns no rows; nothing was changed: try again "
                    "later, or raise the capacity of the tables"
                )
        return found

    def write_batch(self, table: str, requests: Sequence[dict[str, Any]]) -> None:
        """Put or delete up to 25 items of a table, unconditionally. The keys must be different."""
        pending: Any = {table: requests}
        pauses, left = _Pauses(self.settings), len(requests)
        while pending:
            pending = self.write("batch_write_item", RequestItems=pending).get("UnprocessedItems")
            before, left = left, len(pending[table]) if pending else 0
            if pending and not pauses.wait(again=left < before):
                raise OutcomeUnknownError(
                    f"{self.settings.where} is overloaded: only {len(requests) - left} of {len(requests)} rows "
                    "were written or deleted; try again later, or raise the capacity of the tables"
                )

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
        except LimitReachedError:
            raise TryAgainError(
                f"{settings.where}: all {settings.connections} connections were in use for {settings.timeout} ms; "
                "nothing was changed; try again later, or raise the option 'connections'"
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
            raise StateError(f"the store {self.settings.where} is closed; open it again")


class _Pauses:
    """Random, growing pauses between the attempts of a request. All pauses end within the first two thirds
    of the time-out."""

    def __init__(self, settings: Settings) -> None:
        self._allowed = settings.timeout / 1_500
        self._begin()

    def _begin(self) -> None:
        self._longest = _FIRST_S
        self._end = time.monotonic() + self._allowed

    def wait(self, *, again: bool = False) -> bool:
        """Pause, and return True. Return False without a pause if there is no time left for another attempt.

        Args:
            again: whether the last attempt made progress. If True, the pauses are short again, and the allowed time
                starts again.
        """
        if again:
            self._begin()
        pause = random.uniform(0, self._longest)
        if time.monotonic() + pause > self._end:
            return False
        time.sleep(pause)
        self._longest = min(2 * self._longest, _LONGEST_S)
        return True
