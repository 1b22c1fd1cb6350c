"""Whether everything that an object points to is there: strong pointers followed level by level, by headers only.

Headers say what an object points to whatever its type, so types that are not installed are followed like all others.
The cache is not asked: it may hold rows that the database lost.
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
    """An object that is pointed to and cannot be read."""

    id: int
    holder: int
    """The object that points to it; 0 for a commit, which a reference names."""
    holder_type: str
    reason: str
    """What is wrong with it, in words."""
    part: int = 0
    """The part of it that is wrong."""


class Completeness:
    """What is known of the objects of one realm. Nothing is read twice; not thread-safe.

    It remembers about 100 bytes for each object that was found complete, and who points to what is lost.
    """

    def __init__(
        self,
        backend: Backend,
        realm: str,
        on_read: Callable[[int], None] = lambda _: None,
        *,
        newer_is_lost: bool = False,
    ) -> None:
        """
        Args:
            realm: instance id of the realm.
            on_read: told how many objects were read, each time.
            newer_is_lost: whether rows of an unknown format count as lost; else they raise.
        """
        self._newer_is_lost = newer_is_lost
        self._backend = backend
        self._realm = realm
        self._on_read = on_read
        self._complete: set[int] = set()
        self._broken: dict[int, list[int]] = {}
        self._lost: dict[int, Lost] = {}

    def check(self, ids: Collection[int]) -> bool:
        """Whether these objects, and everything below them, are there and readable.

        Raises:
            NewerFormatError: a newer release wrote a row; it is not lost, unless that was asked for.
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
        """Whether an object that was checked is there with everything below it."""
        return id in self._complete

    def lost_below(self, id: int) -> list[Lost]:
        """What is missing at or below an object that was checked, each once, by id."""
        found, pending, seen = [], [id], {id}
        while pending:
            at = pending.pop()
            if at in self._lost:
                found.append(self._lost[at])
            further = [pointer for pointer in self._broken.get(at, ()) if pointer not in seen]
            seen.update(further)
            pending += further
        return sorted(found)

    def path_to(self, lost: int, top: int) -> tuple[int, ...]:
        """The shortest way by strong pointers from an object that was checked to a lost one below it, both included."""
        before, level = {top: 0}, [top]
        while level and lost not in before:
            following: list[int] = []
            for at in level:
                for pointer in self._broken.get(at, ()):
                    if pointer not in before:
                        before[pointer] = at
                        following.append(pointer)
            level = following
        path = [lost]
        while before.get(path[-1]):
            path.append(before[path[-1]])
        return tuple(reversed(path))

    def values(self, ids: Collection[int], cls: type[S]) -> dict[int, S]:
        """Those of these objects that can be read and are of a type, decoded."""
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
        """The headers of a level's objects; what cannot be read is noted as lost."""
        ids = list(level)
        for start in range(0, len(ids), BATCH):
            for id, read in self._read(ids[start : start + BATCH], whole=False).items():
                if isinstance(read, Read):
                    yield id, read.header
                else:
                    self._lost[id] = Lost(id, *level[id], read.reason, read.part)

    def _conclude(self, visited: set[int], holders: array[int], pointers: array[int]) -> None:
        """Tell the visited objects that lead to lost ones from those that are complete."""
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
        """Objects by id, in the order of `ids`: read, or what is wrong with them."""
        found = read_each(self._backend, self._realm, ids, whole=whole, on_read=self._on_read)
        for read in found.values():
            if isinstance(read, Unreadable) and read.newer is not None and not self._newer_is_lost:
                raise read.newer
        return found
