"""`WorkingCopy`: a copy of a store that a process changes in memory only."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

from polaris_spark.backends.base import Backend, Conflict, ObjectKey, ObjectRow, ReferenceRow, Swapped
from polaris_spark.backends.memory import MemoryBackend
from polaris_spark.clock import Clock
from polaris_spark.errors import BadRequestError


class WorkingCopy(MemoryBackend):
    """A store that shows the rows of another store and its own rows. Whatever is written stays in its memory."""

    def __init__(self, below: Backend, clock: Clock) -> None:
        """
        Args:
            below: the other store.
            clock: tells `used_ms`.
        """
        super().__init__(private=True)
        self._below = below
        self._clock = clock
        self.used_ms = clock.now_ms()
        """Time of the last read of a reference, which begins every request, in milliseconds since 1970."""
        self._closed_because = ""
        self._gate = threading.Lock()
        """Held by a write, and while writes are closed or opened."""
        self._below_too: set[tuple[int, int]] = set()

    def close_writes(self, reason: str) -> None:
        """Refuse all writes from now on. When this returns, earlier writes have ended.

        Args:
            reason: message of the BadRequestError that they raise.
        """
        with self._gate:
            self._closed_because = reason

    def open_writes(self) -> None:
        """Accept writes again."""
        with self._gate:
            self._closed_because = ""

    def write_below(self, realm: str) -> None:
        """Write the objects that were written to this store's own memory to the other store, too. Other processes can
        then read them. Nothing points to them there, so a sweep deletes them later."""
        objects = self._open().objects.get(realm, {})
        rows = [
            ObjectRow(id, part, value)
            for (id, part), value in list(objects.items())
            if (id, part) not in self._below_too
        ]
        if rows:
            self._below.write_objects(realm, rows)
            self._below_too.update((row.id, row.part) for row in rows)

    def contains(self, realm: str, id: int) -> bool:
        """Whether an object was written to this store's own memory."""
        return bool(super().read_objects(realm, [ObjectKey(id)]))

    def read_objects(self, realm: str, keys: Collection[ObjectKey]) -> dict[ObjectKey, bytes]:
        own = super().read_objects(realm, keys)
        rest = [key for key in keys if key not in own]
        return own | self._below.read_objects(realm, rest) if rest else own

    def write_objects(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        with self._gate:
            self._require_open_for_writes()
            super().write_objects(realm, rows)

    def read_reference(self, realm: str, name: str) -> ReferenceRow | None:
        self.used_ms = self._clock.now_ms()
        return super().read_reference(realm, name) or self._below.read_reference(realm, name)

    def write_and_swap(
        self, realm: str, rows: Sequence[ObjectRow], name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        with self._gate:
            self._require_open_for_writes()
            return super().write_and_swap(realm, rows, name, expected_version, new)

    def _require_open_for_writes(self) -> None:
        if self._closed_because:
            raise BadRequestError(self._closed_because)
