"""Check of single rows: whether each row can be decoded, and whether the rows of one object belong together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Literal, NamedTuple, TypeVar

import msgspec

from polaris_spark import objects
from polaris_spark.backends.base import Backend, ObjectKey, Split
from polaris_spark.errors import CorruptionError, NewerFormatError
from polaris_spark.ids import id_time_ms
from polaris_spark.index import Shard
from polaris_spark.objects import Decoded
from polaris_spark.store.cache import ObjectCache
from polaris_spark.store.lenient import BATCH, Read, read_each
from polaris_spark.store.objects import ObjectStore

S = TypeVar("S", bound=msgspec.Struct)

ERROR: Literal["error"] = "error"
WARNING: Literal["warning"] = "warning"

MISSING = "missing"
UNREADABLE = "unreadable"
INCOMPLETE = "incomplete"
ORPHAN_PART = "orphan-part"
WRONG_HEADER = "wrong-header"
LEFTOVER = "leftover"
AHEAD = "ahead"

REPAIR = (
    "a process whose clock was ahead wrote it; if this machine's clock is right, "
    "run polaris-spark fsck --repair STORE"
)

CACHE_BYTES = 64 * 2**20
"""Maximum size of a check's cache of decoded objects, in bytes."""


class Problem(NamedTuple):
    """A problem that `fsck` found in a store."""

    severity: Literal["error", "warning"]
    """`warning` for a harmless problem: rows that a killed process left, or a state that a later job corrects."""
    kind: str
    realm: str
    """Name of the realm; the instance id for rows that belong to no realm, and for the system realm."""
    reference: str | None
    """Name of the reference from which the damaged row can be reached; None if there is none."""
    key: str
    """Key of the damaged row: `id/part` for an object, or the name of a reference's row."""
    path: str
    """The path by which the check reached the row, in words; may be empty."""
    message: str


class CheckedRealm(NamedTuple):
    """The name and the instance id of a realm that is checked."""

    realm: str
    """Name of the realm."""
    instance: str
    """Instance id of the realm, which is the value of the column `realm` in its rows."""


class RowReader:
    """Reader of the objects of one realm, with a cache of its own.

    The cache of the process is not used, because it may contain objects whose rows the database has lost.
    """

    def __init__(self, backend: Backend, place: CheckedRealm) -> None:
        self.backend = backend
        self.place = place
        self.store = ObjectStore(backend, place.instance, ObjectCache(CACHE_BYTES), store_key="check")

    def read(self, ids: Collection[int]) -> dict[int, Decoded]:
        """Return the objects with these ids, by id. Objects that are missing or unreadable are left out."""
        wanted = [id for id in dict.fromkeys(ids) if id]
        try:
            return self.store.read(wanted)
        except (CorruptionError, NewerFormatError):
            if len(wanted) == 1:
                return {}
        return {id: found for one in wanted for id, found in self.read([one]).items()}

    def values(self, ids: Collection[int], cls: type[S]) -> dict[int, S]:
        """Return the values of the objects with these ids, by id.

        Objects that are missing, unreadable or not of type `cls` are left out.
        """
        found = self.read(ids)
        return {id: one.value for id, one in found.items() if isinstance(one.value, cls)}

    def shards(self, ids: Collection[int]) -> Mapping[int, Shard]:
        """Return the index shards (nodes of an index) with these ids, by id.

        Raises:
            CorruptionError: a shard is missing or unreadable.
        """
        try:
            found = self.store.read(ids)
        except NewerFormatError as error:
            raise CorruptionError(str(error)) from error
        return {id: decoded.value for id, decoded in found.items()}  # type: ignore[misc]  # callers check the types

    def problem(
        self,
        kind: str,
        id: int,
        message: str,
        *,
        reference: str | None = None,
        path: str = "",
        part: int = 0,
        severity: Literal["error", "warning"] = "error",
    ) -> Problem:
        """Return a `Problem` of a row of the object `id`."""
        return Problem(severity, kind, self.place.realm, reference, row_key(id, part), path, message)


def row_key(id: int, part: int = 0) -> str:
    """Return the text for `Problem.key` that names one row of an object."""
    return f"{id}/{part}"


class ScanUnit(NamedTuple):
    """A range of the rows of objects, which are checked together."""

    split: Split
    realms: Mapping[str, str]
    """Names of realms by instance id. Rows with other instance ids are reported as problems of the kind `LEFTOVER`."""
    young_ms: int
    """Time in milliseconds since 1970. Objects made at or after this time may be incomplete, because their writer may
    still be at work."""


def scan_problems(backend: Backend, unit: ScanUnit) -> Iterator[Problem]:
    """Check each row of a range by itself. Yield all problems, also of rows that no other row needs."""
    strangers: dict[str, int] = {}
    for batch in backend.scan(unit.split):
        columns = (batch.column(name).to_pylist() for name in ("realm", "id", "part", "value"))
        by_realm: dict[str, list[tuple[int, int, bytes]]] = {}
        for realm, id, part, value in zip(*columns, strict=True):
            if realm in unit.realms:
                by_realm.setdefault(realm, []).append((id, part, value))
            else:
                strangers[realm] = strangers.get(realm, 0) + 1
        for realm, rows in by_realm.items():
            place = RowReader(backend, CheckedRealm(unit.realms[realm], realm))
            yield from _first_parts(place, rows, unit.young_ms)
            yield from _further_parts(place, rows, unit.young_ms)
    for realm, count in strangers.items():
        message = (
            f"{count:,} or more object rows have this instance id, which belongs to no realm: purge_realm deletes "
            "them"
        )
        yield Problem(WARNING, LEFTOVER, realm, None, realm, "", message)


def _first_parts(
    place: RowReader, rows: Collection[tuple[int, int, bytes]], young_ms: int
) -> Iterator[Problem]:
    several = []
    for id, part, value in rows:
        if part:
            continue
        try:
            parts = objects.part_count(value, row_key(id))
            if parts > 1:
                several.append(id)
            else:
                yield from _decoded_problems(place, id, value)
        except (CorruptionError, NewerFormatError) as error:
            yield place.problem(UNREADABLE, id, str(error))
    for start in range(0, len(several), BATCH):
        some = several[start : start + BATCH]
        for id, read in read_each(place.backend, place.place.instance, some, whole=True).items():
            if isinstance(read, Read):
                yield from _decoded_problems(place, id, read.data)
            elif not read.missing:
                yield place.problem(UNREADABLE, id, read.reason)
            elif read.part and id_time_ms(id) < young_ms:
                message = f"{read.reason}: harmless if the writer of the object died, and no other row needs the object"
                yield place.problem(INCOMPLETE, id, message, part=read.part, severity=WARNING)


def _decoded_problems(place: RowReader, id: int, data: bytes) -> Iterator[Problem]:
    key = row_key(id)
    try:
        decoded = objects.decode(data, key)
        if decoded.value is None or decoded.header.revision != objects.written_revision(decoded.value):
            return
        header = objects.encode_with_header(decoded.value)[0]
    except (CorruptionError, NewerFormatError) as error:
        yield place.problem(UNREADABLE, id, str(error))
        return
    if header != decoded.header:
        message = (
            f"its header has {_pointers(decoded.header)}, but its payload needs {_pointers(header)} (the first "
            "strong pointers are listed)"
        )
        yield place.problem(WRONG_HEADER, id, message)


def _pointers(header: objects.Header) -> str:
    return (
        f"{len(header.strong)} strong pointers {list(header.strong[:3])} and {len(header.weak)} weak pointers"
    )


def _further_parts(
    place: RowReader, rows: Collection[tuple[int, int, bytes]], young_ms: int
) -> Iterator[Problem]:
    further = [(id, part) for id, part, _ in rows if part]
    for start in range(0, len(further), BATCH):
        some = further[start : start + BATCH]
        keys = {ObjectKey(id) for id, _ in some}
        first = place.backend.read_objects(place.place.instance, keys)
        for id, part in some:
            value = first.get(ObjectKey(id))
            if value is None:
                if id_time_ms(id) < young_ms:
                    message = f"it is part {part} of an object whose first part is missing"
                    yield place.problem(ORPHAN_PART, id, message, part=part, severity=WARNING)
                continue
            try:
                parts = objects.part_count(value, row_key(id))
            except (CorruptionError, NewerFormatError):
                continue  # reported for the first part
            if part >= parts:
                message = f"it is part {part} of an object that has only the parts 0 to {parts - 1}"
                yield place.problem(ORPHAN_PART, id, message, part=part)
