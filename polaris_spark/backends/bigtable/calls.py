"""Calls of Bigtable's gRPC service: deadlines, repetitions and bounds.

The messages are those of google-cloud-bigtable, without the layers over them, which wrap each message in objects of
their own and repeat calls by rules of their own.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import grpc

from polaris_spark.backends.bigtable import failures
from polaris_spark.backends.bigtable.channels import Channel, refuse_in_child
from polaris_spark.backends.bigtable.messages import Cells, merged
from polaris_spark.backends.bigtable.settings import Settings
from polaris_spark.errors import StateError, TryAgainError

Settle = Callable[[Any, Sequence[Any]], None]
Ask = Callable[[str, Iterable[Any], Settle, str], None]

_SIDE_BY_SIDE: Final = 3
"""Most calls that one operation has under way."""
_OPERATIONS: Final = 32
"""Most operations on a channel at the same time: a server admits a hundred calls on a connection."""
_ERRORS: Final = (grpc.RpcError, failures.RefusedEntryError)


class Calls:
    """The calls on one store. Thread-safe; the first one connects."""

    def __init__(self, settings: Settings, check: Callable[[Ask, Settings], None]) -> None:
        """
        Args:
            check: looks at the store once on each new channel, and raises what is wrong with it.
        """
        self._settings, self._check = settings, check
        self._guard = threading.Lock()
        self._channels: list[Channel] = []
        self._numbers = itertools.count()
        self._free = threading.BoundedSemaphore(_OPERATIONS * settings.channels)
        self._closed = False

    def open(self, check: Callable[[Ask, Settings], None] | None) -> None:
        """Connect, if that was not done.

        Raises:
            StoreURIError, StateError, TryAgainError: as `check` and `failures` say.
        """
        self._refuse_if_unusable()
        with self._guard:
            if self._channels:
                return
            channels: list[Channel] = []
            try:
                for _ in range(self._settings.channels):
                    channels.append(channel := Channel(self._settings))
                    if check is not None:
                        check(lambda *asked, channel=channel: self._each(channel, *asked), self._settings)
            except BaseException:
                for channel in channels:
                    channel.close()
                raise
            self._channels = channels

    def close(self) -> None:
        """Break off calls under way, and refuse later ones."""
        if not self._closed:
            self._closed = True
            try:
                refuse_in_child(self._settings)
            except StateError:
                return  # the channels are the parent's
            for channel in self._channels:
                channel.close()

    def condition(self, request: Any, doing: str) -> bool:
        """Whether the condition of a CheckAndMutateRow was met. It is sent once.

        Raises:
            OutcomeUnknownError: the answer was lost.
            TryAgainError: the server could not be reached, or has no capacity; nothing was changed.
        """
        patience = _Patience(self._settings)
        with self._channel() as channel:
            while True:
                try:
                    return bool(channel.condition(request, patience.end).predicate_matched)
                except grpc.RpcError as error:
                    if not failures.was_not_sent(error) or not patience.waits_after(error):
                        raise failures.of_condition(error, self._settings.where, doing) from None

    def each(self, method: str, requests: Iterable[Any], settle: Settle, doing: str) -> None:
        """Ask requests that may be repeated, a few side by side, each until it is answered.

        Args:
            method: whose answers are streams.
            settle: takes a request and all its answers; a `RefusedEntryError` has what is left asked again.
        Raises:
            TryAgainError, OutcomeUnknownError: as `failures` says, when the store's time-out has passed.
        """
        with self._channel() as channel:
            self._each(channel, method, requests, settle, doing)

    def rows(self, request: Any, after: Callable[[bytes], Any], doing: str) -> Iterator[tuple[bytes, Cells]]:
        """Rows in the order of their keys, for as long as they keep coming.

        Args:
            request: a ReadRows.
            after: gives the request for the rows after a key.
        """
        patience = _Patience(self._settings)
        while True:
            with self._channel() as channel:
                call = channel.stream("ReadRows", request, patience.end)
            try:
                for key, cells in merged(call):
                    request = after(key)
                    yield key, cells
                    patience = _Patience(self._settings)
                return
            except grpc.RpcError as error:
                if not patience.waits_after(error):
                    raise failures.explained(error, self._settings.where, doing, writes=False) from None
            finally:
                call.cancel()

    def _each(
        self, channel: Channel, method: str, requests: Iterable[Any], settle: Settle, doing: str
    ) -> None:
        waiting, running = deque(requests), deque[tuple[Any, Any]]()
        patience = _Patience(self._settings)
        try:
            while waiting or running:
                while waiting and len(running) < _SIDE_BY_SIDE:
                    request = waiting.popleft()
                    running.append((request, channel.stream(method, request, patience.end)))
                request, call = running.popleft()
                try:
                    settle(request, list(call))
                except _ERRORS as error:
                    if not patience.waits_after(error):
                        writes = method == "MutateRows"
                        raise failures.explained(error, self._settings.where, doing, writes=writes) from None
                    waiting.appendleft(getattr(error, "left", request))
        finally:
            for _, call in running:
                call.cancel()

    @contextmanager
    def _channel(self) -> Iterator[Channel]:
        """One of the channels, in turn."""
        self._refuse_if_unusable()
        if not self._channels:
            self.open(self._check)
        if not self._free.acquire(timeout=self._settings.timeout / 1_000):
            raise TryAgainError(
                f"all {_OPERATIONS * len(self._channels)} operations on {self._settings.where} were busy for "
                f"{self._settings.timeout} ms; nothing was changed"
            )
        try:
            yield self._channels[next(self._numbers) % len(self._channels)]
        except ValueError:  # what the library raises for a channel that is closed
            self._refuse_if_unusable()
            raise
        finally:
            self._free.release()

    def _refuse_if_unusable(self) -> None:
        if self._closed:
            raise StateError(f"{self._settings.where} is closed")
        refuse_in_child(self._settings)


class _Patience:
    """How long an operation goes on, and how it waits before it tries again."""

    def __init__(self, settings: Settings) -> None:
        now = time.monotonic()
        self.end = now + settings.timeout / 1_000
        self._while_unreachable = now + settings.timeout / 3_000
        self._pause = 0.02

    def waits_after(self, error: Exception) -> bool:
        """Wait before the next attempt; False at once if there is to be none."""
        end = self._while_unreachable if failures.was_not_sent(error) else self.end
        if not failures.may_be_repeated(error) or time.monotonic() + self._pause > end:
            return False
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, 1.0)
        return True
