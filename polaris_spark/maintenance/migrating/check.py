"""Comparison of a realm in two databases: all rows that the realm's references need."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from polaris_spark.backends.base import ObjectKey
from polaris_spark.commits.log import ancestor
from polaris_spark.commits.publishing import read_head
from polaris_spark.commits.retry import retried
from polaris_spark.commits.rows import Head
from polaris_spark.maintenance.migrating.copy import RealmRows, Walk, read_whole
from polaris_spark.maintenance.migrating.marks import Held, concurrently
from polaris_spark.store.objects import ObjectStore


class Difference(NamedTuple):
    """A difference between the source and the target."""

    what: str
    """`object` or `reference`."""
    key: str
    """Id and part of a row, such as `123/0`, or the name of a reference's row."""
    found: str
    """The state of the row in the target, in words."""


class Compared(NamedTuple):
    """The result of a comparison."""

    objects: int
    """Number of objects that were compared."""
    rows: int
    """Number of rows that were compared."""
    differences: Sequence[Difference]
    """The first `MOST` differences."""
    different: int
    """Number of all differences."""


MOST = 1_000
"""Largest number of differences that a comparison lists."""


def compare_objects(
    source: RealmRows, target: RealmRows, heads: Collection[Head], watch: Callable[[int], None]
) -> Compared:
    """Compare the rows of all objects that heads and their histories need.

    Uses about 100 bytes of memory per object; for large realms, use `spark.jobs.migrating`.

    Args:
        watch: called with the number of objects compared so far.
    Raises:
        CorruptionError: a row is missing in the source.
    """
    walk = Walk(heads, 0)
    listed: list[Difference] = []
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
    return Compared(objects, rows, listed, different)


def _different(found: dict[int, list], target: RealmRows) -> Iterator[Difference]:  # type: ignore[type-arg]
    keys = [ObjectKey(row.id, row.part) for rows in found.values() for row in rows]
    there = retried(target.clock, lambda: target.backend.read_objects(target.realm, keys))
    for rows in found.values():
        for row in rows:
            value = there.get(ObjectKey(row.id, row.part))
            if value != row.value:
                yield Difference("object", f"{row.id}/{row.part}", "missing" if value is None else "altered")


def compare_references(heads: Sequence[Held], target: ObjectStore) -> list[Difference]:
    """Compare the heads of a realm that takes no commits with those of its copy, which may have newer commits."""
    return [one for one in concurrently(partial(_reference, target=target), heads) if one is not None]


def _reference(held: Held, target: ObjectStore) -> Difference | None:
    row = target.backend.read_reference(target.realm, held.row_name)
    if row is None:
        return Difference("reference", held.row_name, "missing")
    before, now = held.head, read_head(row, held.row_name)
    if now.number < before.number:
        return Difference("reference", held.row_name, f"at commit {now.number}, not at {before.number}")
    if now.floor_number < before.floor_number or (before.sealed and not now.sealed):
        return Difference("reference", held.row_name, "its floor or its seal differs")
    if now.floor_number <= before.number and ancestor(target, now, before.number) != before.commit:
        return Difference("reference", held.row_name, f"commit {before.number} differs")
    return None
