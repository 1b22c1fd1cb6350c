"""`UnwrittenObjects`: the objects of a store, and new objects that are only in the memory of this process."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeVar

import msgspec

from polaris_spark.objects import Decoded, described
from polaris_spark.store.objects import ObjectStore

S = TypeVar("S", bound=msgspec.Struct)

REWRITE_MS = 60_000
"""Time after which `UnwrittenObjects.write_own` writes all objects again, in milliseconds."""


class UnwrittenObjects(ObjectStore):
    """Reads the objects of another store and its own new objects, which it does not write. Thread-safe."""

    def __init__(self, below: ObjectStore) -> None:
        """
        Args:
            below: the other store.
        """
        super().__init__(
            below.backend,
            below.realm,
            below._cache,
            store_key=below._store_key,
            revisions=below._revisions,
        )
        self._own: dict[int, msgspec.Struct] = {}
        self._described: dict[int, Decoded] = {}
        """The objects of `_own` that `read` has returned, with their headers, by id. A header is built when it is first
        needed."""
        self._written: set[int] = set()
        self._all_written_ms = 0
        """Time at which `write_own` last wrote all own objects, in milliseconds since 1970."""

    def keep(self, objects: Iterable[tuple[int, msgspec.Struct]]) -> None:
        """Add new objects, given as (id, value).

        Raises:
            NewerFormatError: the realm does not yet allow a type's revision to be written.
        """
        for id, value in objects:
            if type(value) not in self._allowed:
                self._refuse_unallowed(value)
            self._own[id] = value

    def is_own(self, id: int) -> bool:
        """Whether an object was added by `keep`."""
        return id in self._own

    def write_own(self, now_ms: int) -> None:
        """Write the own objects to the database, so that other processes can read them. Nothing points to them there,
        so a sweep deletes them later, even if they are still used. Objects that were written before are therefore
        written again from time to time (`REWRITE_MS`)."""
        if not 0 <= now_ms - self._all_written_ms < REWRITE_MS:
            self._written.clear()
            self._all_written_ms = now_ms
        new = {id: value for id, value in list(self._own.items()) if id not in self._written}
        if new:
            self.backend.write_objects(self.realm, self.rows(new.items()))
            self._written.update(new)

    def get(self, id: int, cls: type[S]) -> S:
        own = self._own.get(id)
        if own is None:
            return super().get(id, cls)
        if type(own) is not cls:
            raise self._wrong_type(id, described(own), cls)
        return own

    def get_for_rewrite(self, id: int, cls: type[S]) -> S:
        return self.get(id, cls) if id in self._own else super().get_for_rewrite(id, cls)

    def get_many(self, ids: Collection[int], cls: type[S]) -> dict[int, S]:
        own = {id: self.get(id, cls) for id in ids if id in self._own}
        rest = [id for id in ids if id not in own] if own else ids
        return own | super().get_many(rest, cls) if rest else own

    def prefetch(self, ids: Collection[int]) -> None:
        super().prefetch([id for id in ids if id not in self._own])

    def read(self, ids: Collection[int]) -> dict[int, Decoded]:
        found: dict[int, Decoded] = {}
        for id in ids:
            own = self._own.get(id)
            if own is not None:
                found[id] = self._described.get(id) or self._described.setdefault(id, described(own))
        rest = [id for id in ids if id not in found] if found else ids
        return found | super().read(rest) if rest else found
