"""Check whether every object reachable from an object exists.

The check follows strong pointers level by level and reads only headers. A header lists the pointers of an object of any
type, so objects whose type is not installed are followed too. The cache is not used, because it may hold rows that the
database lost.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple, TypeVar

import msgspec

from polaris_spark.backends.base import Backend
from polaris_spark.errors import CorruptionError
from polaris_spark.objects import Header, decode
from polaris_spark.store.lenient import BATCH as BATCH
from polaris_spark.store.lenient import Read, Unreadable, read_each

S = TypeVar("S", bound=msgspec.Struct)


class Lost(NamedTuple):
    """An object that cannot be read although it is needed: another object or a reference points to it."""

    id: int
    holder: int
    """Id of the object that points to the lost object; 0 if the lost object is a commit, because references point to
    commits."""
    holder_type: str
    reason: str
    """Message that says why the object cannot be read."""
    part: int = 0
    """Number of the part that cannot be read, from 0; a large object has several parts (rows)."""


class Completeness:
    """Checks which objects of one realm exist with all objects reachable from them, and stores the results.

    `check` reads no header twice. Takes about 100 bytes of memory for each complete object. Also stores which objects
    point to lost objects. Not thread-safe.
    """

    def __init__(
        self,
        backend: Backend,
        realm: str,
        on_read: Callable[[int], None] = lambda _: None,
    ) -> None:
        """
        Args:
            realm: instance id of the realm.
            on_read: called after each read, with the number of objects that were read.
        """
        self._backend = backend
        self._realm = realm
        self._on_read = on_read
        self._complete: set[int] = set()
        self._broken: dict[int, list[int]] = {}
        self._lost: dict[int, Lost] = {}

    def check(self, ids: Collection[int]) -> bool:
        """Check these objects and all objects that are reachable from them. Return True if all exist and can be read.

        Raises:
            NewerFormatError: a newer release wrote a row.
        """
        roots = {id: (0, "") for id in ids if id not in self._complete}
        level = {id: holder for id, holder in roots.items() if not self._known(id)}
        visited = set(level)
        holders, pointers = array("q"), array("q")
        while level:
            deeper: dict[int, tuple[int, str]] = {}
            for id, header in self._headers(level):
                for pointer in header.strong:
                    if pointer in self._complete:
                        continue
                    holders.append(id)
                    pointers.append(pointer)
                    if pointer not in visited and not self._known(pointer):
                        visited.add(pointer)
                        deeper[pointer] = (id, header.type)
            level = deeper
        self._conclude(visited, holders, pointers)
        return all(self.complete(id) for id in ids)

    def complete(self, id: int) -> bool:
        """Whether an object that `check` has visited and all objects reachable from it exist and can be read."""
        return id in self._complete

    def lost_below(self, id: int) -> list[Lost]:
        """Return the lost objects among a checked object and all objects reachable from it, without duplicates, by
        ascending id."""
        found, pending, seen = [], [id], {id}
        while pending:
            at = pending.pop()
            if at in self._lost:
                found.append(self._lost[at])
            further = [pointer for pointer in self._broken.get(at, ()) if pointer not in seen]
            seen.update(further)
            pending += further
        return sorted(found)

    def values(self, ids: Collection[int], cls: type[S]) -> dict[int, S]:
        """Return the decoded objects by id. Objects that cannot be read or are not of type `cls` are left out."""
        values: dict[int, S] = {}
        for id, read in self._read(ids, whole=True).items():
            if isinstance(read, Read):
                try:
                    value = decode(read.data, f"{self._realm}/{id}").value
                except CorruptionError:
                    continue
                if isinstance(value, cls):
                    values[id] = value
        return values

    def _known(self, id: int) -> bool:
        return id in self._complete or id in self._broken or id in self._lost

    def _headers(self, level: dict[int, tuple[int, str]]) -> Iterator[tuple[int, Header]]:
        """Yield the headers of a level's objects, by id; record the objects that cannot be read as lost."""
        ids = list(level)
        for start in range(0, len(ids), BATCH):
            for id, read in self._read(ids[start : start + BATCH], whole=False).items():
                if isinstance(read, Read):
                    yield id, read.header
                else:
                    self._lost[id] = Lost(id, *level[id], read.reason, read.part)

    def _conclude(self, visited: set[int], holders: array[int], pointers: array[int]) -> None:
        """Divide the visited objects into those from which a lost object is reachable and those that are complete."""
        above: dict[int, list[int]] = {}
        if any(pointer in self._lost or pointer in self._broken for pointer in pointers):
            for holder, pointer in zip(holders, pointers, strict=True):
                above.setdefault(pointer, []).append(holder)
        pending = [pointer for pointer in above if pointer in self._lost or pointer in self._broken]
        reached = set(pending)
        while pending:
            pointer = pending.pop()
            for holder in above.get(pointer, ()):
                self._broken.setdefault(holder, []).append(pointer)
                if holder not in reached:
                    reached.add(holder)
                    pending.append(holder)
        self._complete.update(id for id in visited if id not in self._broken and id not in self._lost)

    def _read(self, ids: Collection[int], *, whole: bool) -> dict[int, Read | Unreadable]:
        """Return, by id and in the order of `ids`, each object or the reason why it cannot be read."""
        found = read_each(self._backend, self._realm, ids, whole=whole, on_read=self._on_read)
        for read in found.values():
            if isinstance(read, Unreadable) and read.newer is not None:
                raise read.newer
        return found
