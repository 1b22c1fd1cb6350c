"""Limits on failed logins, and the verification of client secrets with bounded work."""

from __future__ import annotations

import hashlib
import math
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

KEYS: Final = 10_000
"""Maximum number of addresses or client ids whose failures are remembered, and of verified secrets and tokens."""

V = TypeVar("V")


class FailureLimit:
    """Limits the failed attempts of each key, such as an address, by a token bucket: a number of failures may come at
    once, and then one in each interval. Thread-safe. Memory is bounded: if there are too many keys, those whose last
    failure was longest ago are forgotten."""

    def __init__(
        self, most: int, per_seconds: float, clock: Callable[[], float] = time.monotonic, keys: int = KEYS
    ) -> None:
        """
        Args:
            most: number of failures that are allowed in `per_seconds` seconds. 0 for no limit.
            clock: returns a monotonic time, in seconds.
            keys: maximum number of keys that are remembered.
        """
        self._most = most
        self._interval = per_seconds / most if most else 0.0
        self._clock = clock
        self._keys = keys
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()
        """For each key, the time at which all its failures will be forgotten."""
        self._guard = threading.Lock()

    def wait_seconds(self, key: Hashable) -> int:
        """Return for how many seconds the attempts of a key are refused; 0 if they are allowed."""
        if not self._most:
            return 0
        with self._guard:
            left = self._full_at.get(key, 0.0) - self._clock() - (self._most - 1) * self._interval
        return max(0, math.ceil(left)) if left > 1e-9 else 0

    def fail(self, key: Hashable) -> None:
        """Count a failed attempt."""
        if not self._most:
            return
        now = self._clock()
        with self._guard:
            until = max(self._full_at.pop(key, now), now) + self._interval
            self._full_at[key] = min(until, now + self._most * self._interval)
            if len(self._full_at) > self._keys:
                self._full_at.popitem(last=False)

    def __len__(self) -> int:
        return len(self._full_at)


class Remembered(Generic[V]):
    """Values by secret, for a short time. Only a keyed hash of each secret is in memory, with a key of this process.
    Thread-safe, and bounded in size."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic, most: int = KEYS) -> None:
        """
        Args:
            seconds: time for which a value is kept.
            clock: returns a monotonic time, in seconds.
        """
        self._seconds = seconds
        self._clock = clock
        self._most = most
        self._key = secrets.token_bytes(32)
        self._values: OrderedDict[bytes, tuple[float, V]] = OrderedDict()
        self._guard = threading.Lock()

    def get(self, secret: str) -> V | None:
        """Return the value of a secret; None if it is unknown or was kept for too long."""
        key = self._digest(secret)
        with self._guard:
            found = self._values.get(key)
            if found is None:
                return None
            if self._clock() >= found[0]:
                del self._values[key]
                return None
            return found[1]

    def put(self, secret: str, value: V) -> None:
        """Remember a value."""
        key = self._digest(secret)
        with self._guard:
            self._values.pop(key, None)
            self._values[key] = (self._clock() + self._seconds, value)
            if len(self._values) > self._most:
                self._values.popitem(last=False)

    def forget(self, secret: str) -> None:
        """Forget the value of a secret."""
        with self._guard:
            self._values.pop(self._digest(secret), None)

    def __len__(self) -> int:
        return len(self._values)

    def _digest(self, secret: str) -> bytes:
        return hashlib.blake2b(secret.encode(errors="surrogatepass"), digest_size=24, key=self._key).digest()
