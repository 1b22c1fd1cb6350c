"""A limit on the memory that all requests of a server together use while they are read, handled and answered.

A server has one `MemoryBound`. Each request has a `Claim`, which counts the bytes that the request may use. The claim
grows before memory is allocated, and ends with the request. `charge` adds memory, such as that of a metadata file, to
the claim of the request that the current thread handles. After a request is handled, its claim covers only the answer,
until the client has read the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Final

from polaris_spark.errors import RequestTooLargeError, TryAgainError

PATIENCE_SECONDS: Final = 10.0
"""Maximum time that a claim waits for other claims to end, in seconds. After that, its request is refused."""

_DICT: Final = 200
_LIST: Final = 90
_ENTRY: Final = 90
_ITEM: Final = 64
"""Upper bounds of the memory for a parsed JSON object (`_DICT`), a JSON array (`_LIST`), each entry of an object
(`_ENTRY`) and each item of an array (`_ITEM`), in bytes, measured with msgspec on CPython 3.10 to 3.13."""


def parsed_bytes(text: str | bytes) -> int:
    """Return an upper estimate of the memory that parsing a JSON text needs, in bytes, without the text itself."""
    if isinstance(text, bytes):
        dicts, lists, entries, items = text.count(b"{"), text.count(b"["), text.count(b":"), text.count(b",")
        narrow = text.isascii() and b"\\u" not in text
    else:
        dicts, lists, entries, items = text.count("{"), text.count("["), text.count(":"), text.count(",")
        narrow = text.isascii() and "\\u" not in text
    # One wide character makes a Python string use four bytes for every character, and the parser's buffer grows by half
    # its size at a time.
    copies = 2 if narrow else 7
    return copies * len(text) + _DICT * dicts + _LIST * lists + _ENTRY * entries + _ITEM * items


class _Waiter:
    """A claim that waits for memory."""

    __slots__ = ("amount", "granted", "held", "wake")

    def __init__(self, amount: int, held: int, wake: Callable[[], object]) -> None:
        self.amount = amount
        self.held = held
        self.wake = wake
        self.granted = False


class MemoryBound:
    """Limit on the total bytes of all claims. Claims that exceed the limit wait in order of arrival. Thread-safe."""

    def __init__(self, capacity: int, *, patience: float = PATIENCE_SECONDS) -> None:
        """
        Args:
            capacity: maximum total of all claims, in bytes.
            patience: maximum time that a claim waits, in seconds.
        """
        self.capacity = capacity
        self.patience = patience
        self._claimed = 0
        self._waiting: deque[_Waiter] = deque()
        self._guard = threading.Lock()

    @property
    def claimed(self) -> int:
        """Bytes that are claimed now."""
        return self._claimed

    def _take(self, amount: int, held: int, wake: Callable[[], object]) -> _Waiter | None:
        """Claim bytes now if there is room, otherwise join the queue.

        Args:
            amount: bytes to claim.
            held: bytes that the claim holds already.
            wake: called when queued bytes are granted.
        Returns:
            None if the bytes are claimed; otherwise the entry in the queue.
        Raises:
            TryAgainError: waiting would be a deadlock, because every claim that holds bytes would be waiting.
        """
        with self._guard:
            if not self._waiting and self._claimed + amount <= self.capacity:
                self._claimed += amount
                return None
            if held and held + sum([waiter.held for waiter in self._waiting]) >= self._claimed:
                raise self._busy(amount)
            waiter = _Waiter(amount, held, wake)
            self._waiting.append(waiter)
            return waiter

    def _abandon(self, waiter: _Waiter) -> bool:
        """Remove a claim from the queue. Return whether its bytes were granted before this call; if so, they stay
        claimed."""
        with self._guard:
            if not waiter.granted:
                self._waiting.remove(waiter)
                granted = self._granted()
            else:
                granted = []
        _wake(granted)
        return waiter.granted

    def _give_back(self, amount: int) -> None:
        with self._guard:
            self._claimed -= amount
            granted = self._granted()
        _wake(granted)

    def _exchange(self, held: int, amount: int, *, beyond: bool) -> bool:
        """Replace the `held` bytes of a claim by `amount` bytes, without waiting.

        Args:
            beyond: whether all claims together may exceed the capacity.
        Returns:
            True if the bytes were replaced; False if there is not enough room, and nothing was changed.
        """
        with self._guard:
            others = self._claimed - held
            if others and amount > held and others + amount > self.capacity and not beyond:
                return False
            self._claimed = others + amount
            granted = self._granted()
        _wake(granted)
        return True

    def _busy(self, amount: int) -> TryAgainError:
        return TryAgainError(
            f"this request needs {amount} bytes of memory, but other requests use too much of the {self.capacity} "
            "bytes that this server gives to all requests together (--max-memory); nothing was changed: try again later"
        )

    def _granted(self) -> list[_Waiter]:
        """Grant waiting claims in the order of arrival while there is room, and return the granted claims. The caller
        must hold the lock `_guard`."""
        granted = []
        while self._waiting and self._claimed + self._waiting[0].amount <= self.capacity:
            waiter = self._waiting.popleft()
            self._claimed += waiter.amount
            waiter.granted = True
            granted.append(waiter)
        return granted


def _wake(waiters: list[_Waiter]) -> None:
    for waiter in waiters:
        waiter.wake()


class Claim:
    """The bytes of memory that one request may use. As a context manager, it releases them at the end. A claim is used
    by only one thread or task at a time."""

    def __init__(self, bound: MemoryBound) -> None:
        self._bound = bound
        self._amount = 0

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def give_back(self) -> None:
        """Release all bytes of the claim."""
        if self._amount:
            amount, self._amount = self._amount, 0
            self._bound._give_back(amount)

    def require_room(self) -> None:
        """Check that a change may begin: the claims of all requests together must not exceed the limit.

        Raises:
            TryAgainError: the claims exceed the limit.
        """
        if self._bound.claimed > self._bound.capacity:
            raise self._bound._busy(self._amount)

    def answer(self, size: int, *, changed: bool) -> None:
        """Replace the claim of the request by a claim for its answer, without waiting.

        The answer to a change must be sent, so its claim may exceed the limit. `require_room` then refuses new changes,
        so only requests that are already being handled can add to the excess. The answer to a read may exceed the
        limit only if no other request claims memory.

        Args:
            size: bytes of the answer.
            changed: True if the request was a change, False if it was a read.
        Raises:
            TryAgainError: the answer is to a read, and other requests use the memory.
        """
        if not self._bound._exchange(self._amount, size, beyond=changed):
            raise self._bound._busy(size)
        self._amount = size

    @contextlib.contextmanager
    def charged(self) -> Iterator[None]:
        """Context manager in which calls of `charge` by this thread add to this claim."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    async def reserve(self, amount: int) -> None:
        """Add bytes to the claim. If necessary, wait until other requests release memory, without blocking the event
        loop.

        Raises:
            RequestTooLargeError: the request alone needs more than the limit.
            TryAgainError: other requests did not release enough memory in time, or every claim would be waiting.
        """
        self._refuse_excess(amount)
        loop = asyncio.get_running_loop()
        granted = asyncio.Event()
        waiter = self._bound._take(amount, self._amount, lambda: loop.call_soon_threadsafe(granted.set))
        if waiter is not None:
            try:
                await asyncio.wait_for(granted.wait(), self._bound.patience)
            except asyncio.TimeoutError:
                if not self._bound._abandon(waiter):
                    raise self._bound._busy(amount) from None
            except BaseException:
                if self._bound._abandon(waiter):
                    self._bound._give_back(amount)
                raise
        self._amount += amount

    def grow(self, amount: int) -> None:
        """Add bytes to the claim. If necessary, block the thread until other requests release memory.

        Raises:
            RequestTooLargeError: the request alone needs more than the limit.
            TryAgainError: other requests did not release enough memory in time, or every claim would be waiting.
        """
        self._refuse_excess(amount)
        granted = threading.Event()
        waiter = self._bound._take(amount, self._amount, granted.set)
        if waiter is not None and not granted.wait(self._bound.patience) and not self._bound._abandon(waiter):
            raise self._bound._busy(amount)
        self._amount += amount

    def shrink(self, amount: int) -> None:
        """Release bytes that `grow` added. If the claim has fewer bytes, for example after `give_back`, release only
        those."""
        amount = min(amount, self._amount)
        self._amount -= amount
        self._bound._give_back(amount)

    def _refuse_excess(self, amount: int) -> None:
        total = self._amount + amount
        if total > self._bound.capacity:
            raise RequestTooLargeError(
                f"the request needs about {total} bytes of memory, but this server gives only {self._bound.capacity} "
                "bytes to all requests together; start it with a larger --max-memory, or send a smaller request"
            )


_current: ContextVar[Claim | None] = ContextVar("polaris_spark_memory_claim", default=None)


def charge(amount: int) -> None:
    """Add bytes to the claim of the request that this thread handles. Do nothing if there is no claim, for example
    outside a server.

    Raises:
        RequestTooLargeError: the request alone needs more than the server's limit.
        TryAgainError: other requests did not release enough memory in time.
    """
    claim = _current.get()
    if claim is not None:
        claim.grow(amount)


@contextlib.contextmanager
def holding(amount: int) -> Iterator[None]:
    """Context manager that adds bytes to the claim of the request that this thread handles, and releases them at its
    end.

    Raises:
        RequestTooLargeError: the request alone needs more than the server's limit.
        TryAgainError: other requests did not release enough memory in time.
    """
    claim = _current.get()
    if claim is None:
        yield
        return
    claim.grow(amount)
    try:
        yield
    finally:
        claim.shrink(amount)
