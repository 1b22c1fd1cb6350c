"""Steps 3 and 4 of the commit protocol: rows, then the swap, until it is known whether it took place.

A swap whose outcome is unknown is repeated as it is, with the same version token, which is always safe. It is done if a
repetition succeeds, if the head's version is ours, or if the ancestor of the head at our commit's number is our commit.
It can never be done any more if another version is there and that ancestor is not ours. Once in doubt, no error of the
database may be passed on as "nothing was changed".
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import msgspec

from polaris_spark.backends.base import Conflict, ObjectRow, ReferenceRow, Swapped
from polaris_spark.clock import Clock
from polaris_spark.commits.log import ancestor
from polaris_spark.commits.retry import backoff_ms
from polaris_spark.commits.rows import Head
from polaris_spark.commits.state import Snapshot
from polaris_spark.errors import CorruptionError, OutcomeUnknownError, TryAgainError
from polaris_spark.store.objects import ObjectStore

R = TypeVar("R")

encode_head = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(Head).decode


class Built(NamedTuple):
    """A commit that is ready to be written: what the head will be, and all its new objects."""

    snapshot: Snapshot
    objects: list[tuple[int, msgspec.Struct]]


class Publisher:
    """Writes commits of one reference."""

    def __init__(
        self, store: ObjectStore, name: str, *, clock: Clock, rng: random.Random, deadline_ms: float
    ) -> None:
        self._store = store
        self._name = name
        self._clock = clock
        self._rng = rng
        self._deadline_ms = deadline_ms

    def publish(self, base: Snapshot, built: Built, started: float) -> bool:
        """Write the objects and swap the reference. True: committed; False: another commit came first.

        Args:
            started: when the batch began, on the monotonic clock, milliseconds.
        Raises:
            OutcomeUnknownError: the deadline passed, or history was trimmed, before it could be known.
            TryAgainError: the database refused; nothing was changed.
        """
        rows = self._store.rows(built.objects)
        new = ReferenceRow(built.snapshot.version, encode_head(built.snapshot.head))
        if not self._swap(base, rows, new, built.snapshot.head, started):
            return False
        self._store.remember(built.objects, rows)
        return True

    def _swap(
        self, base: Snapshot, rows: list[ObjectRow], new: ReferenceRow, head: Head, started: float
    ) -> bool:
        backend, realm, expected = self._store.backend, self._store.realm, base.version
        if backend.transactional:

            def once() -> Swapped | Conflict:
                return backend.write_and_swap(realm, rows, self._name, expected, new)
        else:
            try:
                self._until_known(lambda: backend.write_objects(realm, rows), started)
            except OutcomeUnknownError as error:  # whichever rows were written, nothing points to them
                raise TryAgainError(f"rows could not be written, nothing was changed: {error}") from error

            def once() -> Swapped | Conflict:
                return backend.swap_reference(realm, self._name, expected, new)

        result, doubted = self._until_known(once, started)
        if isinstance(result, Swapped):
            return True
        if not doubted:
            return False
        happened, _ = self._until_known(lambda: self._happened(new.version, head), started, doubted=True)
        return happened

    def _until_known(self, once: Callable[[], R], started: float, *, doubted: bool = False) -> tuple[R, bool]:
        """Repeat what may be repeated until its outcome is known: (what it returned, whether it was ever in doubt)."""
        attempt = 0
        while True:
            try:
                return once(), doubted
            except OutcomeUnknownError as error:
                doubted, cause = True, error
            except TryAgainError as error:
                if not doubted:
                    raise
                cause = OutcomeUnknownError(f"a commit of {self._name!r} is in doubt: {error}")
            except Exception as error:
                if not doubted:
                    raise
                raise OutcomeUnknownError(f"a commit of {self._name!r} is in doubt: {error}") from error
            attempt += 1
            if self._clock.monotonic_ms() - started > self._deadline_ms:
                raise cause
            self._clock.sleep_ms(backoff_ms(attempt, 0.0, self._rng))  # in trouble age buys nothing

    def _happened(self, version: bytes, head: Head) -> bool:
        """After a conflict of a repeated swap: did an earlier try of it succeed?"""
        row = self._store.backend.read_reference(self._store.realm, self._name)
        if row is None:
            raise CorruptionError(f"reference {self._name!r} vanished")
        if row.version == version:
            return True
        current = read_head(row, self._name)
        if current.number < head.number:
            return False
        return ancestor(self._store, current, head.number) == head.commit


def read_head(row: ReferenceRow, name: str) -> Head:
    """The value of a reference row that holds commits.

    Raises:
        CorruptionError: it cannot be decoded.
    """
    try:
        return _decode_head(row.value)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"reference {name!r} cannot be decoded: {error}") from error
