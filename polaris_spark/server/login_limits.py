"""Limits on failed logins, and the verification of client secrets with bounded work."""

from __future__ import annotations

import asyncio
import hashlib
import math
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar

from polaris_spark.errors import TryAgainError

KEYS: Final = 10_000
"""Maximum number of addresses or client ids whose failures are remembered. The same maximum applies to verified secrets
and tokens."""

V = TypeVar("V")

KEPT_SECONDS: Final = 1.0
"""Time for which a verified token is cached. A revoked token can be accepted for this time plus the time of the
property `access-refresh`."""
REALMS_PER_ADDRESS: Final = 10
"""Number of realms in which one address may reach the maximum number of failed logins. Then the address is refused in
all realms, so a client that invents names of realms does not avoid the limit."""
FAILURES_PER_CLIENT: Final = 10
"""Maximum number of failed logins with one client id per minute."""
VERIFIED_SECONDS: Final = 60.0
"""Time for which a verified secret is cached, so that it is not hashed again."""

_THREADS: Final = 4
_WAITING: Final = 256
"""Maximum number of tokens that wait for verification. Further ones get status 503."""
_SECRET_THREADS: Final = 2
_SECRETS_WAITING: Final = 64


class Verifications:
    """Threads that verify tokens or secrets, so that slow logins, or many of them, do not delay other requests. Only
    the thread of the event loop may use it."""

    def __init__(self, threads: int, most: int, name: str) -> None:
        """
        Args:
            most: maximum number of verifications in progress or waiting.
        """
        self._pool = ThreadPoolExecutor(threads, name)
        self._most = most
        self._waiting = 0

    async def run(self, work: Callable[[], V]) -> V:
        """Call a function in a thread, and return its result.

        Raises:
            TryAgainError: too many verifications are in progress.
        """
        if self._waiting >= self._most:
            raise TryAgainError(
                f"{self._waiting} logins are being verified, the maximum of this server; try again"
            )
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class VerifyingThreads:
    """The threads that verify logins. All realms of a server share them."""

    def __init__(self) -> None:
        self.tokens = Verifications(_THREADS, _WAITING, "polaris-logins")
        self.secrets = Verifications(_SECRET_THREADS, _SECRETS_WAITING, "polaris-secrets")

    def close(self) -> None:
        """End the threads."""
        self.tokens.close()
        self.secrets.close()


class LoginMemory:
    """What a server remembers of logins, for all its realms: failures, and verified tokens and secrets. Each key begins
    with a realm, so no realm affects the logins of another one, and nothing is forgotten when a realm is closed."""

    def __init__(self, failures_per_address: int, everywhere: FailureLimit | None = None) -> None:
        """
        Args:
            failures_per_address: maximum number of failed attempts per minute, in one realm, from one IPv4 address or
                one IPv6 network of 64 bits; 0 for no limit.
            everywhere: limits the failed attempts from an address in all realms together, whether they exist or not;
                None for a limit of this memory, which allows `REALMS_PER_ADDRESS` times as many as one realm.
        """
        self.addresses = FailureLimit(failures_per_address, 60.0)
        if everywhere is None:
            everywhere = FailureLimit(failures_per_address * REALMS_PER_ADDRESS, 60.0)
        self.everywhere = everywhere
        self.clients = FailureLimit(FAILURES_PER_CLIENT, 60.0)
        self.tokens: Remembered[Any] = Remembered(KEPT_SECONDS)
        self.secrets: Remembered[Any] = Remembered(VERIFIED_SECONDS)
        self.seen: Remembered[bool] = Remembered(float("inf"))


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
        self._full_at: OrderedDict[bytes, float] = OrderedDict()
        """For each key, the time at which all its failures will be forgotten."""
        self._guard = threading.Lock()
        self._secret = secrets.token_bytes(32)

    def _digest(self, key: Hashable) -> bytes:
        """Return what is remembered of a key, so that clients do not choose its size."""
        text = repr(key).encode(errors="surrogatepass")
        return hashlib.blake2b(text, digest_size=16, key=self._secret).digest()

    def wait_seconds(self, key: Hashable) -> int:
        """Return for how many seconds the attempts of a key are refused; 0 if they are allowed."""
        if not self._most:
            return 0
        with self._guard:
            left = (
                self._full_at.get(self._digest(key), 0.0) - self._clock() - (self._most - 1) * self._interval
            )
        return max(0, math.ceil(left)) if left > 1e-9 else 0

    def fail(self, key: Hashable) -> None:
        """Count a failed attempt."""
        if not self._most:
            return
        now, digest = self._clock(), self._digest(key)
        with self._guard:
            until = max(self._full_at.pop(digest, now), now) + self._interval
            self._full_at[digest] = min(until, now + self._most * self._interval)
            if len(self._full_at) > self._keys:
                self._full_at.popitem(last=False)

    def __len__(self) -> int:
        return len(self._full_at)


class Remembered(Generic[V]):
    """A cache from secrets to values, each kept for a short time. Only a keyed hash of each secret is in memory, with a
    key of this process. Thread-safe, and bounded in size."""

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
