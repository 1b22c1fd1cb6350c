"""Calls of Bigtable's gRPC service: deadlines, repetitions and bounds.

The messages are those of google-cloud-bigtable, without the layers over them, which wrap each message in objects of
their own and repeat calls by rules of their own.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import grpc

from polaris_spark.backends.bigtable import failures
from polaris_spark.backends.bigtable.channels import Channel, refuse_in_child
from polaris_spark.backends.bigtable.messages import Cells, merged
from polaris_spark.backends.bigtable.settings import Settings
from polaris_spark.errors import StateError, TryAgainError

Settle = Callable[[Any, Sequence[Any]], None]
Ask = Callable[[str, Iterable[Any], Settle, str], None]
Check = Callable[[Ask, Settings], None]

_SIDE_BY_SIDE: Final = 3
"""Most calls that one operation has under way."""
_OPERATIONS: Final = 32
"""Most operations on a channel at the same time: a server admits a hundred calls on a connection."""
_ERRORS: Final = (grpc.RpcError, failures.RefusedEntryError)


class Calls:
    """The calls on one store. Thread-safe; the first one connects."""

    def __init__(self, settings: Settings, check: Check) -> None:
        """
        Args:
            check: looks at the store once on each new channel, and raises what is wrong with it.
        """
        self._settings, self._check = settings, check
        self._opening = threading.RLock()
        self._channels: list[Channel] = []
        # Places of channels, each as often as there may be operations on it. A semaphore of the library would cost
        # eight threads a tenth of their swaps.
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._closed = False

    def open(self, check: Check | None) -> bool:
        """Connect; False if that was done before.

        Raises:
            StoreURIError, StateError, TryAgainError: as `check` and `failures` say.
        """
        self._refuse_if_unusable()
        if not self._opening.acquire(timeout=self._settings.timeout / 1_000):
            raise TryAgainError(
                f"{self._settings.where} could not be reached by another thread for {self._settings.timeout} ms; "
                "nothing was changed"
            )
        try:
            if self._channels:
                return False
            self._channels = self._connected(check)
            if self._closed:  # meanwhile, by another thread, which had no channels to close
                self._close_channels()
                self._refuse_if_unusable()
            for place in [*range(len(self._channels))] * _OPERATIONS:
                self._free.put(place)
            return True
        finally:
            self._opening.release()

    def close(self) -> None:
        """Break off calls under way, and refuse later ones."""
        if not self._closed:
            self._closed = True
            try:
                refuse_in_child(self._settings)
            except StateError:
                return  # the channels are the parent's
            self._close_channels()

    def _close_channels(self) -> None:
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
                    channel = self._replaced_after(error, channel)
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
            asked = request
            with self._channel() as channel:
                call = channel.stream("ReadRows", asked, patience.attempt())
            try:
                for key, cells in merged(call):
                    request = after(key)
                    yield key, cells
                    patience = _Patience(self._settings)
                return
            except grpc.RpcError as error:
                if request is asked:  # else rows came, and the stream has only lasted long
                    self._replaced_after(error, channel)
                if not patience.waits_after(error):
                    raise failures.explained(error, self._settings.where, doing, writes=False) from None
            finally:
                call.cancel()

    def _connected(self, check: Check | None) -> list[Channel]:
        channels = [Channel(self._settings) for _ in range(self._settings.channels)]
        try:
            if check is not None:
                for channel in channels:
                    check(partial(self._each, channel), self._settings)
        except BaseException:
            for channel in channels:
                channel.close()
            raise
        return channels

    def _each(
        self, channel: Channel, method: str, requests: Iterable[Any], settle: Settle, doing: str
    ) -> None:
        waiting, running = deque(requests), deque[tuple[Any, Any]]()
        patience, doubtful = _Patience(self._settings), False
        try:
            while waiting or running:
                while waiting and len(running) < _SIDE_BY_SIDE:
                    request = waiting.popleft()
                    running.append((request, channel.stream(method, request, patience.attempt())))
                request, call = running.popleft()
                try:
                    settle(request, list(call))
                    doubtful = True  # whether nothing was changed, whatever comes next
                except _ERRORS as error:
                    doubtful = doubtful or bool(running) or failures.may_have_been_done(error)
                    channel = self._replaced_after(error, channel)
                    if not patience.waits_after(error):
                        writes = method == "MutateRows"
                        raise failures.explained(
                            error, self._settings.where, doing, writes=writes, doubtful=doubtful
                        ) from None
                    waiting.appendleft(getattr(error, "left", request))
        finally:
            for _, call in running:
                call.cancel()

    def _replaced_after(self, error: Exception, channel: Channel) -> Channel:
        """The channel to go on with: another one, if no answer came in time, for its connection may be dead.

        gRPC would find that out by a keepalive, half a minute later. Calls under way on the old channel go on.
        """
        if failures.status_of(error) != "DEADLINE_EXCEEDED" or self._closed:
            return channel
        with self._opening:
            if channel in self._channels:
                place = self._channels.index(channel)
                self._channels[place] = Channel(self._settings)
                if self._closed:
                    self._close_channels()
                return self._channels[place]
        return channel

    @contextmanager
    def _channel(self) -> Iterator[Channel]:
        """One of the channels, in turn."""
        self._refuse_if_unusable()
        if not self._channels:
            self.open(self._check)
        try:
            place = self._free.get(timeout=self._settings.timeout / 1_000)
        except queue.Empty:
            raise TryAgainError(
                f"all {_OPERATIONS * len(self._channels)} operations on {self._settings.where} were busy for "
                f"{self._settings.timeout} ms; nothing was changed"
            ) from None
        try:
            yield self._channels[place]
        except ValueError:  # what the library raises for a channel that is closed
            self._refuse_if_unusable()
            raise
        finally:
            self._free.put(place)

    def _refuse_if_unusable(self) -> None:
        if self._closed:
            raise StateError(f"{self._settings.where} is closed")
        refuse_in_child(self._settings)


class _Patience:
    """How long an operation goes on, and how it waits before it tries again."""

    def __init__(self, settings: Settings) -> None:
        now = time.monotonic()
        self.end = now + settings.timeout / 1_000
        self._third = settings.timeout / 3_000
        self._while_unreachable = now + self._third
        self._pause = 0.02

    def attempt(self) -> float:
        """When an attempt that may be repeated ends."""
        return min(self.end, time.monotonic() + self._third)

    def waits_after(self, error: Exception) -> bool:
        """Wait before the next attempt; False at once if there is to be none."""
        end = self._while_unreachable if failures.was_not_sent(error) else self.end
        if not failures.may_be_repeated(error) or time.monotonic() + self._pause > end:
            return False
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, 1.0)
        return True
