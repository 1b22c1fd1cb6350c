"""Sweep of a realm: marks the reachable objects, and deletes all other object rows.

Headers are read once, in a scan that also finds the rows to delete. Reading headers by id, level by level, would read
most rows a second time, in random order. The caller's process only stores the ids of the commits from which marking
starts, eight bytes each. The engine stores all other ids.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from polaris_spark import objects
from polaris_spark.backends.base import ObjectKey, Split
from polaris_spark.catalog.engine import Engine, LocalEngine, Reach, Row, Rows
from polaris_spark.catalog.files.files import Files
from polaris_spark.clock import Clock
from polaris_spark.commits.change import Operation
from polaris_spark.errors import CorruptionError, PolarisError, TryAgainError
from polaris_spark.maintenance.periods import Policy
from polaris_spark.maintenance.sweep_roots import (
    Roots,
    list_roots_only,
    trim_fence_and_list_roots,
    was_overtaken,
)
from polaris_spark.store.objects import ObjectStore
from polaris_spark.system.registry import References

DELETE_TOGETHER = 500
"""Maximum number of rows that are deleted in one batch. Rows are deleted in the order of their ids."""

_POINTERS_TOGETHER = 5_000
"""Number of objects whose pointers are collected at a time, to remove duplicates."""
_SPLITS_PER_PART = 2
HEADERS = "id bigint, part int, type string, bytes bigint, points binary"
"""Columns that a scan returns for each object row. `points` has the ids of the objects to which the object has strong
pointers, eight bytes each.

If the row has no readable header, `type` is null and `points` is empty.
"""


class Rate:
    """Bounds the number of rows that are read and deleted in a second, by pauses. For one thread."""

    def __init__(self, rows_per_second: int, clock: Clock) -> None:
        """
        Args:
            rows_per_second: the bound, at least 1.
        """
        self._ms_per_row = 1_000 / rows_per_second
        self._clock = clock
        self._free_at = clock.monotonic_ms()

    def take(self, rows: int) -> None:
        """Wait as long as the rows that were counted before require, and then count `rows` more rows."""
        now = self._clock.monotonic_ms()
        if self._free_at > now:
            self._clock.sleep_ms(self._free_at - now)
        self._free_at = max(self._free_at, now) + rows * self._ms_per_row


class Count(NamedTuple):
    """The unreachable rows of one object type: the numbers of objects and rows, and the total size in bytes.

    `type` is None for rows whose object type is not known.
    """

    type: str | None
    objects: int
    rows: int
    bytes: int


class Swept(NamedTuple):
    """The result of a sweep or a dry run."""

    roots: Roots
    counts: list[Count]
    """The rows that were deleted, or in a dry run would be deleted, sorted by type; rows of unknown type come last."""


def sweep(
    references: References,
    policy: Policy,
    *,
    operation: Operation,
    engine: Engine | None = None,
    dry_run: bool = False,
) -> Swept:
    """Delete the unreachable rows of an ACTIVE realm. After an interruption, call this function again.

    Args:
        policy: how long history, dropped references and unreachable rows are kept.
        operation: names the principal, for the log of the registry.
        engine: finds and deletes the rows; by default in this process.
        dry_run: whether to change nothing, and only count the rows that would be deleted.
    Raises:
        ClockError: this machine's clock differs from the database's, or is too far behind the time noted in the store.
        TryAgainError: another sweep is running.
        CorruptionError: an object that is needed is missing or unreadable; nothing was deleted.
        NewerFormatError: a newer release wrote an object that is needed; nothing was deleted.
    """
    engine = engine or LocalEngine(Reach(references.store, Files({}), references.clock))
    roots = roots_of(references, policy, operation, engine, dry_run=dry_run)
    return sweep_from(roots, references, engine, dry_run=dry_run)


def roots_of(
    references: References, policy: Policy, operation: Operation, engine: Engine, *, dry_run: bool
) -> Roots:
    """Carry out the steps of a sweep before the rows are read, and return the roots. A dry run changes nothing.

    Raises:
        PolarisError: as for `sweep`.
    """
    if dry_run:
        return list_roots_only(references, policy, engine.progress)
    return trim_fence_and_list_roots(references, policy, operation, engine.progress)


def sweep_from(
    roots: Roots,
    references: References,
    engine: Engine,
    *,
    dry_run: bool,
    rows: Rows | None = None,
    rate: Rate | None = None,
) -> Swept:
    """Delete the rows of a realm that cannot be reached from roots and that a sweep may delete.

    Args:
        rows: all object rows of the realm, as `reachable` returns them, read after the roots were listed; None to read
            them now.
        rate: bounds the number of rows that are deleted in a second, by an engine in this process; None for no bound.
    Raises:
        PolarisError: as for `sweep`.
    """
    found = garbage(engine, references, roots, rows).fixed()
    counts = _counted(engine, found)
    if not dry_run:
        delete = partial(_delete, realm=references.store.realm, rate=rate)
        engine.apply(delete, found, "rows bigint", by=("id", "part"), doing="deleting rows").collect()
    return Swept(roots, counts)


def garbage(engine: Engine, references: References, roots: Roots, rows: Rows | None = None) -> Rows:
    """Return the object rows that a sweep may delete: unreachable rows whose ids are below `roots.limit`.

    Args:
        rows: as for `reachable`.
    Returns:
        rows with the columns `id`, `part`, `type` (null if no header contains it) and `bytes`.
    Raises:
        TryAgainError: another sweep is running.
        CorruptionError: an object that is needed is missing or unreadable.
        NewerFormatError: a newer release wrote an object that is needed.
    """
    try:
        rows, marked = reachable(engine, references.store, roots.commits, rows)
    except CorruptionError as error:
        raise explained(references, roots, error) from error
    engine.progress("looking for garbage", 0, 0)
    below = engine.query(f"SELECT id, part, type, bytes FROM {{rows}} WHERE id < {roots.limit}", rows=rows)
    return engine.query(
        "SELECT id, part, max(type) OVER (PARTITION BY id) AS type, bytes FROM {found}",
        found=engine.without(below, marked, ["id"]),
    )


def reachable(
    engine: Engine, store: ObjectStore, commits: Sequence[int], rows: Rows | None = None
) -> tuple[Rows, Rows]:
    """Return (rows, marked): all object rows of a realm, and the ids of the objects that can be reached from commits.

    Args:
        engine: an engine whose store is `store`.
        commits: ids of the commits from which strong pointers are followed.
        rows: all object rows of the realm, if they were read already, with the columns of `HEADERS`.
    Returns:
        rows with the columns of `HEADERS`, and rows with the column `id`.
    Raises:
        CorruptionError: an object that can be reached is missing or unreadable.
        NewerFormatError: a newer release wrote an object that can be reached.
    """
    if rows is None:
        splits = store.backend.splits("objects", [store.realm], _SPLITS_PER_PART * engine.parts)
        rows = engine.scan(_headers, splits, HEADERS, "reading headers").fixed("id")
    first = engine.query("SELECT id, type, points FROM {rows} WHERE part = 0", rows=rows)
    marked = _marked(engine, commits, first)
    _check(engine, store, first, marked)
    return rows, marked


def _marked(engine: Engine, commits: Sequence[int], first: Rows) -> Rows:
    """Return the ids of all objects that can be reached from commits, by strong pointers."""

    def pointed_to(level: Rows) -> Rows:
        points = "SELECT points FROM {first} first JOIN {level} level ON first.id = level.id"
        return engine.apply(_pointers, engine.query(points, first=first, level=level), "id bigint")

    start = engine.rows(((id,) for id in commits), "id bigint")
    return engine.closure(start, pointed_to, "marking")


def _check(engine: Engine, store: ObjectStore, first: Rows, marked: Rows) -> None:
    """Raise an error if a reachable (marked) object is missing or its header cannot be read.

    Args:
        first: the first row of each existing object.
        marked: ids of the reachable objects.
    """
    realm = store.realm
    lost = engine.query("SELECT id FROM {lost} LIMIT 1", lost=engine.without(marked, first, ["id"])).collect()
    joined = "FROM {first} first JOIN {marked} marked ON first.id = marked.id"
    for (id,) in lost:
        needed = engine.query(f"SELECT first.id, points {joined}", first=first, marked=marked)
        holders = engine.apply(partial(_holders, pointer=id), needed, "id bigint")
        holder = engine.query("SELECT id FROM {holders} LIMIT 1", holders=holders).collect()
        raise CorruptionError(missing(realm, id, holder[0][0] if holder else 0))
    unread = f"SELECT first.id {joined} WHERE type IS NULL LIMIT 1"
    for (id,) in engine.query(unread, first=first, marked=marked).collect():
        row = store.backend.read_objects(realm, [ObjectKey(id)]).get(ObjectKey(id), b"")
        objects.decode_header(row, f"{realm}/{id}")
        raise CorruptionError(f"the header of object {realm}/{id} could not be read")


def _counted(engine: Engine, found: Rows) -> list[Count]:
    """Return counts of rows by type, sorted by type."""
    sums = "SELECT type, count(DISTINCT id), count(*), sum(bytes) FROM {found} GROUP BY type"
    counts = [Count(*row) for row in engine.query(sums, found=found).collect()]
    return sorted(counts, key=lambda count: (count.type is None, count.type))


def explained(references: References, roots: Roots, error: CorruptionError) -> PolarisError:
    """Return the error to raise for a needed object that is missing or unreadable.

    It is a `TryAgainError` if another sweep may have deleted the object, else a `CorruptionError`.
    """
    if was_overtaken(references, roots):
        return TryAgainError(
            f"another sweep of this realm is running: {error}; sweep again after the other sweep has ended"
        )
    return CorruptionError(f"{error}; nothing was deleted: `fsck` shows what is damaged")


def missing(realm: str, id: int, holder: int) -> str:
    """Return the message for a needed object that does not exist.

    Args:
        holder: id of an object that points to the missing object; 0 if a reference points to it.
    """
    return f"object {realm}/{id} is missing; {f'object {holder}' if holder else 'a reference'} points to it"


def _headers(reach: Reach, split: Split) -> Iterator[Row]:
    """Yield the object rows of a split (a range of rows), with the columns of `HEADERS`."""
    for _, *row in headers_by_realm(reach, split):
        yield tuple(row)


def headers_by_realm(reach: Reach, split: Split, rate: Rate | None = None) -> Iterator[Row]:
    """Yield the object rows of a split, each with the instance id of its realm and the columns of `HEADERS`.

    Args:
        rate: bounds the number of rows that are read in a second; None for no bound.
    """
    for batch in reach.backend.scan(split):
        if rate is not None:
            rate.take(batch.num_rows)
        columns = (batch.column(name).to_pylist() for name in ("realm", "id", "part", "value"))
        for realm, id, part, value in zip(*columns, strict=True):
            type, points = None, b""
            if part == 0:
                try:
                    header = objects.decode_header(value, f"{realm}/{id}")
                    type, points = header.type, array("q", header.strong).tobytes()
                except PolarisError:  # `_check` raises the error if the object is needed
                    pass
            yield realm, id, part, type, len(value), points


def _pointers(_: Reach, rows: Iterator[Row]) -> Iterator[Row]:
    """Yield the object ids in the column `points` of the rows, without most of the duplicates."""
    while some := list(islice(rows, _POINTERS_TOGETHER)):
        found: set[int] = set()
        for (points,) in some:
            found.update(array("q", points))
        yield from ((id,) for id in found)


def _holders(_: Reach, rows: Iterator[Row], *, pointer: int) -> Iterator[Row]:
    for id, points in rows:
        if pointer in array("q", points):
            yield (id,)


def _delete(reach: Reach, rows: Iterator[Row], *, realm: str, rate: Rate | None = None) -> Iterable[Row]:
    """Delete object rows, which are sorted by key. Yield the number of rows of each batch that was deleted."""
    while some := [ObjectKey(id, part) for id, part, _, _ in islice(rows, DELETE_TOGETHER)]:
        if rate is not None:
            rate.take(len(some))
        reach.backend.delete_objects(realm, some)
        yield (len(some),)
