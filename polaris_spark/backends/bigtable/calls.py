"""Calls to Bigtable's gRPC service, with deadlines, retries and limits.

The library google-cloud-bigtable provides the gRPC messages. Its higher layers are not used, because they wrap each
message in other objects and retry calls by their own rules.
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
"""Function that handles a request and all its answers (see `Calls.each`)."""
Ask = Callable[[str, Iterable[Any], Settle, str], None]
"""Function that sends requests, with the parameters of `Calls.each`."""
Check = Callable[[Ask, Settings], None]
"""Function that raises an error if the store cannot be used."""

_SIDE_BY_SIDE: Final = 3
"""Maximum number of calls that one operation has in flight."""
_OPERATIONS: Final = 32
"""Maximum number of concurrent operations on a channel. A server allows 100 calls on a connection."""
_ERRORS: Final = (grpc.RpcError, failures.RefusedEntryError)


class Calls:
    """Sends gRPC calls to Bigtable for one store. Thread-safe. The first call connects."""

    def __init__(self, settings: Settings, check: Check) -> None:
        """
        Args:
            check: called once with each new connection; raises an error if the store cannot be used.
        """
        self._settings, self._check = settings, check
        self._opening = threading.RLock()
        self._channels: list[Channel] = []
        # Free permits for operations. Each is the index of its channel. With a semaphore of Python's library instead,
        # eight threads would do a tenth fewer swaps.
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._closed = False

    def open(self, check: Check | None) -> bool:
        """Connect, and return True. Return False if the store was already connected.

        Args:
            check: called with each new connection; raises an error if the store cannot be used. None: no check.
        Raises:
            StoreURIError, StateError, TryAgainError: an error of `check`, or the connection failed (see `failures`).
        """
        self._refuse_if_unusable()
        if not self._opening.acquire(timeout=self._settings.timeout / 1_000):
            raise TryAgainError(
                f"gave up after waiting {self._settings.timeout} ms for another thread to connect to "
                f"{self._settings.where}; nothing was changed; try again"
            )
        try:
            if self._channels:
                return False
            self._channels = self._connected(check)
            if self._closed:  # in the meantime, by another thread that found no channels to close
                self._close_channels()
                self._refuse_if_unusable()
            for place in [*range(len(self._channels))] * _OPERATIONS:
                self._free.put(place)
            return True
        finally:
            self._opening.release()

    def close(self) -> None:
        """Cancel the calls in flight. Later calls raise `StateError`."""
        if not self._closed:
            self._closed = True
            try:
                refuse_in_child(self._settings)
            except StateError:
                return  # the channels belong to the parent process
            self._close_channels()

    def _close_channels(self) -> None:
        for channel in self._channels:
            channel.close()

    def condition(self, request: Any, doing: str) -> bool:
        """Send a CheckAndMutateRow request, which is carried out at most once. Return whether its condition was met.

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
        """Send idempotent requests, a few in parallel, and retry each of them until it succeeds.

        Args:
            method: name of a gRPC method that returns a stream of answers.
            settle: called with a request and all its answers. If it raises a `RefusedEntryError`, the entries that were
                not applied are sent again.
            doing: description of the operation, for error messages.
        Raises:
            TryAgainError, OutcomeUnknownError: the retries did not succeed within the store's time-out, or within a
                third of the time-out if the server cannot be reached.
        """
        with self._channel() as channel:
            self._each(channel, method, requests, settle, doing)

    def rows(self, request: Any, after: Callable[[bytes], Any], doing: str) -> Iterator[tuple[bytes, Cells]]:
        """Yield rows in the order of their keys. After each row, the time-out starts again.

        Args:
            request: a ReadRows request.
            after: returns the request for the rows after a key.
            doing: description of the operation, for error messages.
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
                if request is asked:  # otherwise rows arrived, so the connection works
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
                    doubtful = True  # from now on, an error cannot mean that nothing was changed
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
        """Return the channel to use after an error. If there was no answer before the deadline, this is a new channel,
        because the connection may be dead. Otherwise it is `channel`.

        gRPC would detect a dead connection only half a minute later, by a keepalive. Calls in flight on the old channel
        continue.
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
        """Yield a channel for one operation. If every channel already has `_OPERATIONS` operations, wait until an
        operation ends."""
        self._refuse_if_unusable()
        if not self._channels:
            self.open(self._check)
        try:
            place = self._free.get(timeout=self._settings.timeout / 1_000)
        except queue.Empty:
            raise TryAgainError(
                f"{self._settings.where}: {_OPERATIONS * len(self._channels)} operations, the maximum, were in "
                f"progress for {self._settings.timeout} ms; nothing was changed; try again later, or raise the "
                "option 'channels'"
            ) from None
        try:
            yield self._channels[place]
        except ValueError:  # raised by the library for a closed channel
            self._refuse_if_unusable()
            raise
        finally:
            self._free.put(place)

    def _refuse_if_unusable(self) -> None:
        if self._closed:
            raise StateError(f"{self._settings.where} is closed; open the store again")
        refuse_in_child(self._settings)


class _Patience:
    """The deadline of an operation, and the pauses between attempts to carry it out."""

    def __init__(self, settings: Settings) -> None:
        now = time.monotonic()
        self.end = now + settings.timeout / 1_000
        self._third = settings.timeout / 3_000
        self._while_unreachable = now + self._third
        self._pause = 0.02

    def attempt(self) -> float:
        """Return the deadline of an attempt of an idempotent operation that begins now, in seconds on the monotonic
        clock. One attempt gets at most a third of the time-out."""
        return min(self.end, time.monotonic() + self._third)

    def waits_after(self, error: Exception) -> bool:
        """Pause before the next attempt, and return True. Return False without a pause if a retry cannot succeed after
        this error, or no time is left."""
        end = self._while_unreachable if failures.was_not_sent(error) else self.end
        if not failures.may_be_repeated(error) or time.monotonic() + self._pause > end:
            return False
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, 1.0)
        return True
