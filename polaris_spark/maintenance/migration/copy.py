"""Copy of a realm's object rows from one database to another, byte for byte.

Objects whose type is not installed are copied, too. Object rows never change, and writing a row again changes nothing.
An interrupted copy can therefore be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from polaris_spark.backends.base import Backend, ObjectKey, ObjectRow, Split
from polaris_spark.backends.chunks import sized, value_bytes
from polaris_spark.catalog.engine import Engine, MapFunction, Reach
from polaris_spark.clock import Clock
from polaris_spark.commits.lineage import ancestors
from polaris_spark.commits.retry import retried
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.errors import MissingObjectError
from polaris_spark.objects import decode, decode_header, part_count, type_name

if TYPE_CHECKING:
    import pyarrow as pa

TOGETHER: Final = 256
"""Maximum number of objects that are read in one batch."""

_ROWS_TOGETHER: Final = 1_000
"""Maximum number of rows that are written in one batch."""
_BYTES_TOGETHER: Final = 4 * 2**20
"""Maximum total size of the values that are written in one batch, in bytes."""

_SPLITS_PER_PART: Final = 8
_THREADS: Final = 4

T = TypeVar("T")


class RealmRows(NamedTuple):
    """The rows of one realm in one database."""

    backend: Backend
    realm: str
    """Instance id of the realm."""
    clock: Clock
    """Clock for retries."""


class Copied(NamedTuple):
    """The number, total size in bytes and highest id of copied rows."""

    rows: int = 0
    bytes: int = 0
    highest: int = 0
    """The highest id of a copied row; 0 if no row was copied."""

    def plus(self, other: Copied) -> Copied:
        """Return the totals for the rows of both."""
        return Copied(self.rows + other.rows, self.bytes + other.bytes, max(self.highest, other.highest))


class CopySplit(MapFunction[Split, Copied]):
    """Function that copies the rows of one split (a range of rows)."""

    result = Copied
    few = 0
    threads = _THREADS
    tasks_per_core = 4
    waves = 4

    def __init__(self, source: str, target: str, open_target: Callable[[], Backend]) -> None:
        """
        Args:
            source, target: instance ids of the realm in the source and in the target.
            open_target: returns the target's database; can be pickled for executors.
        """
        self._source = source
        self._target = target
        self._open_target = open_target

    def __call__(self, reach: Reach, item: Split) -> Copied:
        source = RealmRows(reach.backend, self._source, reach.clock)
        return copy_split(source, RealmRows(self._open_target(), self._target, reach.clock), item)


def copy_all(
    source: RealmRows, target: RealmRows, engine: Engine, open_target: Callable[[], Backend]
) -> Copied:
    """Copy every object row that was written before the call, also rows that no reference needs.

    Args:
        engine: an engine whose store is the source.
        open_target: returns the target's database; called in every process in which the engine works.
    """
    splits = source.backend.splits("objects", [source.realm], _SPLITS_PER_PART * max(_THREADS, engine.parts))
    copy = CopySplit(source.realm, target.realm, open_target)
    total = Copied()
    for copied in engine.map(copy, splits, "copying rows"):
        total = total.plus(copied)
    return total


def copy_split(source: RealmRows, target: RealmRows, split: Split) -> Copied:
    """Copy the rows of one split (a range of rows). Return their number, total size and highest id."""

    def once() -> Copied:
        copied = Copied()
        for batch in source.backend.scan(split):
            for rows in together(rows_of_batch(batch)):
                write_rows(target, rows)
                copied = copied.plus(_counted(rows))
        return copied

    return retried(source.clock, once)


def highest_id(place: RealmRows) -> int:
    """Return the highest id of a realm's object rows; 0 if the realm has no rows."""
    highest = 0
    for split in place.backend.splits("objects", [place.realm], 1):
        for batch in place.backend.scan(split):
            highest = max(highest, *batch.column("id").to_pylist(), 0)
    return highest


def copy_since(
    source: RealmRows, target: RealmRows, heads: Collection[Head], fence: int, watch: Callable[[int], None]
) -> Copied:
    """Copy the objects with ids above `fence` that can be reached from heads and from their histories.

    Args:
        heads: the heads of the source's references, read after the fence was set.
        fence: an id. The caller must have copied all objects with lower ids that the heads need.
        watch: called with the number of objects that have been copied.
    Raises:
        MissingObjectError: a row is missing in the source. This is harmless if history was trimmed after the heads were
            read, because a sweep may then have deleted the row; read the heads again.
    """
    copied = Copied()
    walk = Walk(heads, fence)
    objects = 0
    for ids in walk.levels():
        found = read_whole(source, ids)
        rows = [row for parts in found.values() for row in parts]
        for portion in together(rows):
            write_rows(target, portion)
        copied = copied.plus(_counted(rows))
        walk.saw(source.realm, found)
        objects += len(ids)
        watch(objects)
    return copied


class Walk:
    """Walk over the objects with ids above `fence` that can be reached from heads, level by level.

    Each history is followed back to its floor (the oldest commit that is kept).
    """

    def __init__(self, heads: Collection[Head], fence: int) -> None:
        self._fence = fence
        self._floors: dict[int, int] = {}
        """For each commit id, the number of the commit down to which the walk follows that commit's history."""
        self._seen: set[int] = set()
        self._next: set[int] = set()
        for head in heads:
            self._history(head.commit, head.floor_number)

    def levels(self) -> Iterator[list[int]]:
        """Yield batches of object ids to read. Call `saw` with the objects of a batch before taking the next batch."""
        while self._next:
            level = sorted(self._next)
            self._next = set()
            self._seen.update(level)
            for start in range(0, len(level), TOGETHER):
                yield level[start : start + TOGETHER]

    def saw(self, realm: str, found: dict[int, list[ObjectRow]]) -> None:
        """Continue the walk with the objects to which the given objects point.

        Args:
            realm: instance id of the realm, for messages.
            found: the rows of each object, by id.
        """
        for id, rows in found.items():
            header = decode_header(rows[0].value, f"{realm}/{id}")
            self._next.update(p for p in header.strong if p > self._fence and p not in self._seen)
            floor = self._floors.get(id)
            if floor is not None and header.type == _COMMIT:
                commit = decode(b"".join(row.value for row in rows), f"{realm}/{id}").value
                assert isinstance(commit, Commit)
                for number, ancestor in ancestors(commit):
                    if number >= floor:
                        self._history(ancestor, floor)

    def _history(self, commit: int, floor: int) -> None:
        if commit > self._fence and self._floors.get(commit, floor + 1) > floor:
            self._floors[commit] = floor
            self._next.add(commit)


_COMMIT = type_name(Commit)


def read_whole(place: RealmRows, ids: Sequence[int]) -> dict[int, list[ObjectRow]]:
    """Return all rows of some objects, by object id; the rows of an object are in the order of their parts.

    Raises:
        MissingObjectError: a row is missing; the message names the row.
    """
    first = retried(
        place.clock, lambda: place.backend.read_objects(place.realm, [ObjectKey(id) for id in ids])
    )
    whole: dict[int, list[ObjectRow]] = {}
    further: list[ObjectKey] = []
    for id in ids:
        value = first.get(ObjectKey(id))
        if value is None:
            raise MissingObjectError(f"object {place.realm}/{id} is missing from the store")
        whole[id] = [ObjectRow(id, 0, value)]
        further += [ObjectKey(id, part) for part in range(1, part_count(value, f"{place.realm}/{id}"))]
    if further:
        rest = retried(place.clock, lambda: place.backend.read_objects(place.realm, further))
        for key in further:
            if key not in rest:
                raise MissingObjectError(
                    f"part {key.part} of object {place.realm}/{key.id} is missing from the store"
                )
            whole[key.id].append(ObjectRow(key.id, key.part, rest[key]))
    return whole


def rows_of_batch(batch: pa.RecordBatch) -> list[ObjectRow]:
    """Return the rows in a batch that `Backend.scan` yielded for objects."""
    columns = (batch.column(name).to_pylist() for name in ("id", "part", "value"))
    return [ObjectRow(*row) for row in zip(*columns, strict=True)]


def write_rows(place: RealmRows, rows: Sequence[ObjectRow]) -> None:
    """Write object rows. Retry while the database fails.

    Raises:
        TryAgainError, OutcomeUnknownError: retries failed for a minute. Rows may have been written or not.
    """
    retried(place.clock, lambda: place.backend.write_objects(place.realm, rows))


def together(rows: Iterable[ObjectRow]) -> Iterator[list[ObjectRow]]:
    """Divide rows into the batches in which they are written."""
    return sized(rows, value_bytes, most_bytes=_BYTES_TOGETHER, most=_ROWS_TOGETHER)


def _counted(rows: Sequence[ObjectRow]) -> Copied:
    return Copied(len(rows), sum(len(row.value) for row in rows), max((row.id for row in rows), default=0))
