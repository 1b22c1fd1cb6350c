"""Mark and delete the unreachable rows of a realm.

Without Spark, for stores that are small or live in one process, the process holds in memory the ids of all reachable
objects, about 100 bytes for each, and the ids of all garbage.
`polaris_spark.spark.jobs.sweep` finds and deletes the same rows on executors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple, Protocol

from polaris_spark import objects
from polaris_spark.backends.base import Backend, ObjectKey
from polaris_spark.catalog.engine import Progress
from polaris_spark.commits.change import Operation
from polaris_spark.errors import CorruptionError, PolarisError, TryAgainError
from polaris_spark.ids import id_time_ms
from polaris_spark.maintenance.sweeping import (
    Policy,
    Roots,
    list_roots,
    list_roots_only,
    was_overtaken,
)
from polaris_spark.objects import Header
from polaris_spark.system.registry import References

READ_TOGETHER = 256
DELETE_TOGETHER = 500
"""Number of rows deleted in one batch, in the order of their ids."""


class GarbageRow(NamedTuple):
    """A row to be deleted."""

    id: int
    part: int
    type: str | None
    """Type of the row's object; None if no header can be read."""
    bytes: int


class Count(NamedTuple):
    """Garbage of one type of object."""

    type: str | None
    objects: int
    rows: int
    bytes: int


class Garbage(Protocol):
    """The rows that a sweep deletes: all unreachable rows below its limit."""

    @property
    def counts(self) -> list[Count]:
        """Counts of the rows by type, sorted by type; rows without a type come last.

        Raises:
            TryAgainError, CorruptionError, NewerFormatError: as `sweep`.
        """
        ...

    def delete(self) -> None:
        """Delete the rows."""
        ...


class Swept(NamedTuple):
    """The result of a sweep or a dry run."""

    roots: Roots
    counts: list[Count]
    """The rows that were deleted, or would be, sorted by type; rows without a type come last."""


def sweep(
    references: References,
    policy: Policy,
    *,
    operation: Operation,
    progress: Progress = lambda _step, _done, _of: None,
    dry_run: bool = False,
    find: Callable[[References, Roots, Progress], Garbage] | None = None,
) -> Swept:
    """Delete the unreachable rows of a realm that serves. After an interruption, call this again.

    Args:
        operation: names the principal, for the log of the registry.
        progress: called between all steps.
        dry_run: change nothing.
        find: finds the garbage; by default in this process.
    Raises:
        ClockError: this machine's clock is too far behind the store's.
        TryAgainError: another sweep is running.
        CorruptionError: an object that is needed is missing or unreadable; nothing was deleted.
        NewerFormatError: a newer release wrote an object that is needed; nothing was deleted.
    """
    if dry_run:
        roots = list_roots_only(references, policy, progress)
    else:
        roots = list_roots(references, policy, operation, progress)
    found = (find or LocalGarbage)(references, roots, progress)
    counts = found.counts
    if not dry_run:
        found.delete()
    return Swept(roots, counts)


class LocalGarbage:
    """A `Garbage` in the memory of this process."""

    def __init__(self, references: References, roots: Roots, progress: Progress) -> None:
        self._backend, self._realm = references.store.backend, references.store.realm
        self._progress = progress
        marked = marked_from(references, roots, progress)
        progress("looking for garbage", 0, 0)
        self._rows = sorted(garbage(self._backend, self._realm, roots.limit, marked))

    @property
    def counts(self) -> list[Count]:
        return counted(self._rows)

    def delete(self) -> None:
        keys = [ObjectKey(row.id, row.part) for row in self._rows]
        for start in range(0, len(keys), DELETE_TOGETHER):
            self._progress("deleting rows", start, len(keys))
            self._backend.delete_objects(self._realm, keys[start : start + DELETE_TOGETHER])


def marked_from(references: References, roots: Roots, progress: Progress) -> set[int]:
    """Return the ids of all objects that can be reached from the roots, found breadth first.

    Raises:
        TryAgainError, CorruptionError, NewerFormatError: as `sweep`.
    """
    backend, realm = references.store.backend, references.store.realm
    marked: set[int] = set()
    level = dict.fromkeys(roots.commits, 0)
    try:
        while level:
            marked |= level.keys()
            deeper: dict[int, int] = {}
            for id, header in _headers(backend, realm, level):
                deeper |= {pointer: id for pointer in header.strong if pointer not in marked}
            progress("marking", len(marked), 0)
            level = deeper
    except CorruptionError as error:
        raise explained(references, roots, error) from error
    return marked


def explained(references: References, roots: Roots, error: CorruptionError) -> PolarisError:
    """Return the error to raise for a needed object that cannot be read: another sweep deleted it, or it is lost."""
    if was_overtaken(references, roots):
        return TryAgainError(f"another sweep of this realm is running: {error}")
    return CorruptionError(f"{error}; nothing was deleted: `fsck` shows what is damaged")


def _headers(backend: Backend, realm: str, level: Mapping[int, int]) -> Iterator[tuple[int, Header]]:
    """Yield the id and header of each object of a level.

    Args:
        level: ids of objects, each with the id of an object that points to it (0: a reference does).
    """
    ids = iter(sorted(level))
    while some := list(islice(ids, READ_TOGETHER)):
        rows = backend.read_objects(realm, [ObjectKey(id) for id in some])
        for id in some:
            row = rows.get(ObjectKey(id))
            if row is None:
                raise CorruptionError(missing(realm, id, level[id]))
            yield id, objects.decode_header(row, f"{realm}/{id}")


def missing(realm: str, id: int, holder: int) -> str:
    """Return the message for a needed object that does not exist.

    Args:
        holder: id of an object that points to it; 0 if a reference does.
    """
    return f"object {realm}/{id} is missing; {f'object {holder}' if holder else 'a reference'} points to it"


def garbage(backend: Backend, realm: str, limit: int, marked: Collection[int]) -> Iterator[GarbageRow]:
    """Yield the rows that are not marked and whose ids are below a limit, in no particular order."""
    for split in backend.splits("objects", [realm], 1):
        for batch in backend.scan(split):
            columns = (batch.column(name).to_pylist() for name in ("id", "part", "value"))
            for id, part, value in zip(*columns, strict=True):
                if id < limit and id not in marked:
                    first = (
                        value
                        if part == 0
                        else backend.read_objects(realm, [ObjectKey(id)]).get(ObjectKey(id))
                    )
                    yield GarbageRow(id, part, type_of(first), len(value))


def type_of(part_0: bytes | None) -> str | None:
    """Return the type in the header of an object's first row; None if the row is missing or unreadable."""
    if part_0 is None:
        return None
    try:
        return objects.decode_header(part_0, "").type
    except PolarisError:
        return None


def counted(rows: Iterable[GarbageRow]) -> list[Count]:
    """Return counts of rows by type, sorted by type."""
    ids: dict[str | None, set[int]] = {}
    sums: dict[str | None, list[int]] = {}
    for row in rows:
        ids.setdefault(row.type, set()).add(row.id)
        found = sums.setdefault(row.type, [0, 0])
        found[0] += 1
        found[1] += row.bytes
    counts = [Count(type, len(ids[type]), n, size) for type, (n, size) in sums.items()]
    return sorted(counts, key=lambda count: (count.type is None, count.type))


def age_ms(id: int, now_ms: int) -> int:
    """Return the age of an object by the clock of the process that made it, in milliseconds."""
    return now_ms - id_time_ms(id)
