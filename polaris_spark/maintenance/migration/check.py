"""Comparison of a realm in two databases: all rows that can be reached from the realm's references."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from polaris_spark.backends.base import Backend, ObjectKey, Split
from polaris_spark.catalog.engine import Engine, Reach, Row, Rows
from polaris_spark.commits.log import ancestor
from polaris_spark.commits.publication import read_head
from polaris_spark.commits.retry import retried
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.errors import PolarisError
from polaris_spark.maintenance.migration.copy import RealmRows, Walk, read_whole, rows_of_batch
from polaris_spark.maintenance.migration.marks import Held, concurrently
from polaris_spark.objects import decode_header, type_name
from polaris_spark.store.objects import ObjectStore


class RowDifference(NamedTuple):
    """A row that differs between the source and the target of a migration."""

    what: str
    """Kind of the row: `object` or `reference`."""
    key: str
    """Id and part of an object's row, such as `123/0`, or the name of a reference's row."""
    found: str
    """The state of the row in the target, in words, such as `missing`."""


class Compared(NamedTuple):
    """The result of comparing a realm's rows in the source and in the target of a migration."""

    rows: int
    """Number of rows that were compared."""
    differences: Sequence[RowDifference]
    """The first `MOST` differences."""
    different: int
    """Total number of differences."""


MOST = 1_000
"""Maximum number of differences that `Compared.differences` lists."""


_MANY = 10_000
"""If at least this number of objects differ, all objects that can be reached from the heads are compared one by one. If
fewer differ, this is done only if one of them can be reached from a head, or from an object that does not differ."""

_SPLITS_PER_PART = 2
DIGESTS = "id bigint, part int, digest binary"
"""Columns of the rows that `digests` yields."""
_COMMIT = type_name(Commit)


def compare(
    engine: Engine,
    open_target: Callable[[], Backend],
    source: RealmRows,
    target: RealmRows,
    heads: Sequence[Held],
) -> Compared:
    """Compare the source's rows with the target's rows.

    The rows of both databases are joined by key. A row that differs may be harmless: a commit attempt that failed after
    the copy leaves rows in the source only, and no object points to these rows. A second comparison follows if an
    object that differs can be reached from a head, or from an object that does not differ: this process compares all
    objects that can be reached from the heads, one by one. Then only the differences of the second comparison are
    returned.

    Args:
        engine: an engine whose store is the source.
        open_target: returns the target's database; called in every process in which the engine works.
        heads: the references of the realm with their heads.
    Raises:
        CorruptionError: a row is missing in the source.
    """
    here, there = _side(engine, source, None), _side(engine, target, open_target)
    differs = "copy.digest IS NULL OR copy.digest <> own.digest"
    both = "FROM {here} own LEFT JOIN {there} copy ON own.id = copy.id AND own.part = copy.part"
    count = f"SELECT count(*), count(CASE WHEN {differs} THEN 1 END) {both}"
    [(rows, different)] = engine.query(count, here=here, there=there).collect()
    if different:
        ids = f"SELECT DISTINCT own.id {both} WHERE {differs} LIMIT {_MANY}"
        suspects = {id for (id,) in engine.query(ids, here=here, there=there).collect()}
        found = [held.head for held in heads]
        if len(suspects) == _MANY or _needed(engine, source, suspects, found):
            return _compare_objects(
                source, target, found, lambda done: engine.progress("comparing objects", done, 0)
            )
    return Compared(rows, (), 0)


def _side(engine: Engine, place: RealmRows, opened: Callable[[], Backend] | None) -> Rows:
    """Return the realm's object rows in one database, with a digest in place of each value.

    Args:
        opened: returns the database; None for the database of the engine's store.
    """
    splits = _splits(engine, place)
    return engine.scan(partial(digests, opened=opened), splits, DIGESTS, "comparing rows")


def _splits(engine: Engine, place: RealmRows) -> Sequence[Split]:
    return place.backend.splits("objects", [place.realm], _SPLITS_PER_PART * engine.parts)


def digests(reach: Reach, split: Split, *, opened: Callable[[], Backend] | None) -> Iterator[Row]:
    """Yield the object rows of a split, with the SHA-256 digest of each value in place of the value.

    Args:
        opened: returns the database; None for the database of the engine's store.
    """
    for batch in (opened() if opened else reach.backend).scan(split):
        for row in rows_of_batch(batch):
            yield row.id, row.part, hashlib.sha256(row.value).digest()


def _needed(engine: Engine, source: RealmRows, suspects: set[int], heads: Sequence[Head]) -> set[int]:
    """Return the ids in `suspects` that can be reached from a head, or from an object that is not in `suspects`."""
    pointing = partial(_pointing, suspects=suspects)
    pairs = engine.scan(
        pointing, _splits(engine, source), "id bigint, pointer bigint", "reading rows that differ"
    )
    needed = {head.commit for head in heads} & suspects
    below: dict[int, set[int]] = {}
    for id, pointer in engine.query("SELECT DISTINCT id, pointer FROM {pairs}", pairs=pairs).collect():
        below.setdefault(id, set()).add(pointer)
        if id not in suspects:
            needed.add(pointer)
    waiting = list(needed)
    while waiting:
        further = below.get(waiting.pop(), set()) - needed
        needed |= further
        waiting += further
    return needed


def _pointing(reach: Reach, split: Split, *, suspects: set[int]) -> Iterator[Row]:
    """Yield pairs of the id of an object in a split and the id of an object in `suspects` to which it points.

    For commits, pointers to ancestors count, too. Objects whose header cannot be read are left out.
    """
    for batch in reach.backend.scan(split):
        for row in rows_of_batch(batch):
            if row.part:
                continue
            try:
                header = decode_header(row.value, "")
            except PolarisError:
                continue
            points = header.strong + header.weak if header.type == _COMMIT else header.strong
            for pointer in suspects.intersection(points):
                yield row.id, pointer


def _compare_objects(
    source: RealmRows, target: RealmRows, heads: Collection[Head], watch: Callable[[int], None]
) -> Compared:
    """Compare the rows of all objects that can be reached from heads and from their histories, one by one.

    Uses about 100 bytes of memory per object.

    Args:
        watch: called with the number of objects that have been compared.
    Raises:
        CorruptionError: a row is missing in the source.
    """
    walk = Walk(heads, 0)
    listed: list[RowDifference] = []
    objects = rows = different = 0
    for ids in walk.levels():
        found = read_whole(source, ids)
        for difference in _different(found, target):
            different += 1
            listed += [difference][: MOST - len(listed)]
        walk.saw(source.realm, found)
        objects += len(found)
        rows += sum(map(len, found.values()))
        watch(objects)
    return Compared(rows, listed, different)


def _different(found: dict[int, list], target: RealmRows) -> Iterator[RowDifference]:  # type: ignore[type-arg]
    keys = [ObjectKey(row.id, row.part) for rows in found.values() for row in rows]
    there = retried(target.clock, lambda: target.backend.read_objects(target.realm, keys))
    for rows in found.values():
        for row in rows:
            value = there.get(ObjectKey(row.id, row.part))
            if value != row.value:
                yield RowDifference(
                    "object", f"{row.id}/{row.part}", "missing" if value is None else "altered"
                )


def compare_references(heads: Sequence[Held], target: ObjectStore) -> list[RowDifference]:
    """Return the differences between the heads of a moved realm and the references of its copy in another store.

    The moved realm no longer accepts commits. The copy may have newer commits. They do not count as differences.

    Args:
        heads: the heads of the moved realm.
        target: the object store of the copy.
    """
    return [one for one in concurrently(partial(_reference, target=target), heads) if one is not None]


def _reference(held: Held, target: ObjectStore) -> RowDifference | None:
    row = target.backend.read_reference(target.realm, held.row_name)
    if row is None:
        return RowDifference("reference", held.row_name, "missing")
    before, now = held.head, read_head(row, held.row_name)
    if now.number < before.number:
        return RowDifference("reference", held.row_name, f"at commit {now.number}, not at {before.number}")
    if now.floor_number < before.floor_number or (before.sealed and not now.sealed):
        return RowDifference("reference", held.row_name, "its floor or its seal differs")
    if now.floor_number <= before.number and ancestor(target, now, before.number) != before.commit:
        return RowDifference("reference", held.row_name, f"commit {before.number} differs")
    return None
