"""Check of pointers: finds objects that commits need and that are missing or unreadable."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from polaris_spark.backends.base import Split
from polaris_spark.catalog.engine import Engine, Reach, Row, Rows
from polaris_spark.commits.completeness import Lost
from polaris_spark.errors import PolarisError
from polaris_spark.maintenance.fsck.rows import (
    ERROR,
    MISSING,
    UNREADABLE,
    CheckedRealm,
    Problem,
    row_key,
)
from polaris_spark.objects import Header, decode_header, part_count
from polaris_spark.store.lenient import Read, Unreadable, read_each
from polaris_spark.system.registry import ROOT

_OBJECTS = "id bigint, type string, pointer bigint"
_LEVELS = 64
"""Maximum number of levels of pointers that `_above` follows. Every path from a commit to an object is shorter."""


class NeededCommit(NamedTuple):
    """A commit that must exist, together with all objects that can be reached from it."""

    reference: str
    number: int
    id: int


def find_lost(engine: Engine, place: CheckedRealm, needed: Sequence[NeededCommit]) -> Iterator[Problem]:
    """Yield a problem for each missing or unreadable object that can be reached from the commits in `needed`.

    A join of all pointers with all existing objects finds the pointers to missing objects. Each missing object is
    looked up once more, because it may have been written during the scan. If it is still missing, pointers are followed
    backwards from it, to find out whether it can be reached from one of these commits.
    """
    backend = engine.reach.backend
    splits = backend.splits("objects", [place.instance], engine.parts)
    doing = f"reading pointers of {place.realm}"
    objects = engine.scan(_pointers, splits, _OBJECTS, doing).kept()
    try:
        wanted = engine.query(
            "SELECT pointer AS id FROM {objects} WHERE pointer IS NOT NULL UNION SELECT id FROM {roots}",
            objects=objects,
            roots=engine.rows([(one.id,) for one in needed], "id bigint"),
        )
        there = engine.query("SELECT id FROM {objects} WHERE pointer IS NULL", objects=objects)
        candidates = [id for (id,) in engine.without(wanted, there, ["id"]).collect()]
        read = read_each(backend, place.instance, candidates, whole=False)
        lost = {id: why for id, why in read.items() if isinstance(why, Unreadable)}
        if lost:
            holders, types = _above(engine, objects, lost)
            yield from _problems(place, needed, lost, holders, types)
    finally:
        objects.release()


def _above(
    engine: Engine, objects: Rows, lost: Collection[int]
) -> tuple[dict[int, list[int]], dict[int, str]]:
    """Find the holders of lost objects, the holders of these, and so on. A holder of an object points to it.

    Returns:
        a dict from the id of an object to the ids of its holders, and a dict from the id of a holder to its type.
    """
    holders: dict[int, list[int]] = {}
    types: dict[int, str] = {}
    level = list(lost)
    for _ in range(_LEVELS):
        if not level:
            break
        found = engine.query(
            "SELECT pointer, objects.id, type FROM {objects} objects JOIN {below} below ON pointer = below.id",
            objects=objects,
            below=engine.rows([(id,) for id in level], "id bigint"),
        ).collect()
        level = list({holder for _, holder, _ in found if holder not in types})
        for pointer, holder, type in found:
            holders.setdefault(pointer, []).append(holder)
            types[holder] = type
    return holders, types


def _problems(
    place: CheckedRealm,
    needed: Sequence[NeededCommit],
    lost: dict[int, Unreadable],
    holders: dict[int, list[int]],
    types: dict[int, str],
) -> Iterator[Problem]:
    # The registry comes last, because it points to the commits where the other references began.
    ordered = sorted(needed, key=lambda one: one.reference == ROOT)
    roots = {one.id: (position, one) for position, one in reversed(list(enumerate(ordered)))}
    for id, why in lost.items():
        after = _leading_to(id, holders)
        leading = [roots[one] for one in after.keys() & roots.keys()]
        if leading:
            _, root = min(leading)
            path = [root.id]
            while after[path[-1]]:
                path.append(after[path[-1]])
            holder = path[-2] if len(path) > 1 else 0
            found = Lost(id, holder, types.get(holder, ""), why.reason, why.part)
            yield _problem(place, root, found, path)


def _leading_to(id: int, holders: dict[int, list[int]]) -> dict[int, int]:
    """Return the ids of the objects from which the object `id` can be reached, and of this object itself.

    Each id is mapped to the id of the next object on the path to `id`; the object itself is mapped to 0.
    """
    after, level = {id: 0}, [id]
    while level:
        above: list[int] = []
        for at in level:
            for holder in holders.get(at, ()):
                if holder not in after:
                    after[holder] = at
                    above.append(holder)
        level = above
    return after


def _problem(place: CheckedRealm, needed: NeededCommit, lost: Lost, path: Sequence[int]) -> Problem:
    """Return the problem to report for a lost object.

    Args:
        needed: the commit from which the object can be reached.
        path: ids of the objects from this commit to the lost object.
    """
    steps = [f"{needed.reference}: commit {needed.number}", *map(str, path)]
    by = f", which {lost.holder_type} {lost.holder} points to" if lost.holder else ""
    kind = MISSING if "missing" in lost.reason else UNREADABLE
    key = row_key(lost.id, lost.part)
    message = f"object {lost.id}{by}: {lost.reason}"
    return Problem(ERROR, kind, place.realm, needed.reference, key, " > ".join(steps), message)


def _pointers(reach: Reach, split: Split) -> Iterator[Row]:
    """Yield rows with the columns of `_OBJECTS` for the objects in a split (a range of database rows).

    Each readable object yields one row without a pointer, and one row for each of its pointers. An unreadable object
    yields nothing, so it counts as missing.
    """
    for batch in reach.backend.scan(split):
        several: dict[str, list[int]] = {}
        columns = (batch.column(name).to_pylist() for name in ("realm", "id", "part", "value"))
        for realm, id, part, value in zip(*columns, strict=True):
            if part:
                continue
            try:
                if part_count(value, "") > 1:
                    several.setdefault(realm, []).append(id)
                    continue
                header = decode_header(value, "")
            except PolarisError:
                continue
            yield from _rows_of(id, header)
        for realm, ids in several.items():
            for id, read in read_each(reach.backend, realm, ids, whole=False).items():
                if isinstance(read, Read):
                    yield from _rows_of(id, read.header)


def _rows_of(id: int, header: Header) -> Iterator[Row]:
    yield id, header.type, None
    for pointer in header.strong:
        yield id, header.type, pointer
