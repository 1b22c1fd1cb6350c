"""Whether everything that an object points to is there: strong pointers followed level by level, by headers only.

Headers say what an object points to whatever its type, so types that are not installed are followed like all others.
The cache is not asked: it may hold rows that the database lost.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple, TypeVar

import msgspec

from polaris_spark.backends.base import Backend, ObjectKey
from polaris_spark.errors import CorruptionError
from polaris_spark.objects import Header, decode, decode_header, part_count

S = TypeVar("S", bound=msgspec.Struct)

BATCH = 256
"""Objects, or further parts of them, that are read together."""


class Lost(NamedTuple):
    """An object that is pointed to and cannot be read."""

    id: int
    holder: int
    """The object that points to it; 0 for a commit, which a reference names."""
    holder_type: str
    reason: str
    """What is wrong with it, in words."""


class _Read(NamedTuple):
    header: Header
    data: bytes
    """The object's bytes; of part 0 only where further ones were only to be there."""


class Completeness:
    """What is known of the objects of one realm. Nothing is read twice; not thread-safe.

    It remembers about 100 bytes for each object that was found complete, and who points to what is lost.
    """

    def __init__(self, backend: Backend, realm: str, on_read: Callable[[int], None] = lambda _: None) -> None:
        """
        Args:
            realm: instance id of the realm.
            on_read: told how many objects were read, each time.
        """
        self._backend = backend
        self._realm = realm
        self._on_read = on_read
        self._complete: set[int] = set()
        self._broken: dict[int, list[int]] = {}
        self._lost: dict[int, Lost] = {}

    def check(self, ids: Collection[int]) -> bool:
        """Whether these objects, and everything below them, are there and readable.

        Raises:
            NewerFormatError: a newer release wrote a row; it is not lost.
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

    def values(self, ids: Collection[int], cls: type[S]) -> dict[int, S]:
        """Those of these objects that can be read and are of a type, decoded."""
        values: dict[int, S] = {}
        for id, read in self._read(list(ids), whole=True).items():
            if isinstance(read, _Read):
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
                if isinstance(read, _Read):
                    yield id, read.header
                else:
                    self._lost[id] = Lost(id, *level[id], read)

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

    def _read(self, ids: list[int], *, whole: bool) -> dict[int, _Read | str]:
        """Objects by id, in the order of `ids`: read, or what is wrong with them."""
        result: dict[int, _Read | str] = {}
        further: list[ObjectKey] = []
        for start in range(0, len(ids), BATCH):
            some = ids[start : start + BATCH]
            rows = self._backend.read_objects(self._realm, [ObjectKey(id) for id in some])
            self._on_read(len(some))
            for id in some:
                result[id] = _first_part(rows.get(ObjectKey(id)), f"{self._realm}/{id}", further, id)
        for start in range(0, len(further), BATCH):
            keys = further[start : start + BATCH]
            rows = self._backend.read_objects(self._realm, keys)
            for key in keys:
                read = result[key.id]
                if key not in rows:
                    result[key.id] = f"its part {key.part} is missing"
                elif whole and isinstance(read, _Read):
                    result[key.id] = read._replace(data=read.data + rows[key])
        return result


def _first_part(value: bytes | None, key: str, further: list[ObjectKey], id: int) -> _Read | str:
    if value is None:
        return "missing"
    try:
        header, parts = decode_header(value, key), part_count(value, key)
    except CorruptionError as error:
        return str(error)
    further.extend(ObjectKey(id, part) for part in range(1, parts))
    return _Read(header, value)
