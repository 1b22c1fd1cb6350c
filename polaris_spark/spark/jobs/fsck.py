"""The check of pointers on executors, by a join of all rows with each other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from polaris_spark.backends.base import Backend, Split
from polaris_spark.catalog.engine import Reach
from polaris_spark.commits.completeness import Lost
from polaris_spark.errors import PolarisError
from polaris_spark.maintenance.checking.checker import Needed, lost_problem
from polaris_spark.maintenance.checking.rows import CheckedRealm, Problem
from polaris_spark.objects import Header, decode_header, part_count
from polaris_spark.spark.engine import SparkEngine
from polaris_spark.store.lenient import Read, Unreadable, read_each

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_OBJECT = "id bigint, type string, strong array<bigint>"
_LEVELS = 64
"""Maximum number of levels that `_above` follows. Paths from a commit to any object below it are shorter."""


def find_lost(engine: SparkEngine, place: CheckedRealm, needed: Sequence[Needed]) -> Iterator[Problem]:
    """Yield a problem for each object that is needed and missing.

    All pointers are joined with all existing objects. Pointers without an object remain; an intact store has none.
    Each remaining object is looked up once more, because it may have been written during the scan. If it is still
    missing, pointers are followed upwards from it, to find out whether a needed object leads to it.
    """
    backend = engine.reach.backend
    splits = backend.splits("objects", [place.instance], engine.parts)
    objects = engine.scan(_headers, splits, _OBJECT).persist()
    try:
        yield from _lost(engine.spark, backend, place, needed, objects)
    finally:
        objects.unpersist()


def _lost(
    spark: SparkSession, backend: Backend, place: CheckedRealm, needed: Sequence[Needed], objects: DataFrame
) -> Iterator[Problem]:
    from pyspark.sql.functions import col, explode

    edges = objects.select(col("id").alias("holder"), "type", explode("strong").alias("pointer"))
    there = objects.select(col("id").alias("pointer"))
    roots = spark.createDataFrame([(one.id,) for one in needed], "pointer bigint")
    wanted = edges.select("pointer").union(roots).distinct()
    candidates = [row[0] for row in wanted.join(there, "pointer", "left_anti").collect()]
    read = read_each(backend, place.instance, candidates, whole=False)
    lost = {id: why for id, why in read.items() if isinstance(why, Unreadable)}
    if lost:
        holders, types = _above(spark, edges, lost)
        yield from _told(place, needed, lost, holders, types)


def _above(
    spark: SparkSession, edges: DataFrame, lost: Collection[int]
) -> tuple[dict[int, list[int]], dict[int, str]]:
    """Return the objects that lead to lost objects: the holders of each object on the way, and types of holders.

    A holder of an object is an object that points to it.
    """
    from pyspark.sql.functions import broadcast

    holders: dict[int, list[int]] = {}
    types: dict[int, str] = {}
    level = list(lost)
    for _ in range(_LEVELS):
        if not level:
            break
        below = spark.createDataFrame([(id,) for id in level], "pointer bigint")
        found = edges.join(broadcast(below), "pointer").select("pointer", "holder", "type").collect()
        level = list({holder for _, holder, _ in found if holder not in types})
        for pointer, holder, type in found:
            holders.setdefault(pointer, []).append(holder)
            types[holder] = type
    return holders, types


def _told(
    place: CheckedRealm,
    needed: Sequence[Needed],
    lost: dict[int, Unreadable],
    holders: dict[int, list[int]],
    types: dict[int, str],
) -> Iterator[Problem]:
    roots = {one.id: one for one in needed}
    for id, why in lost.items():
        path = _path_up(id, holders, roots)
        if path:
            holder = path[-2] if len(path) > 1 else 0
            found = Lost(id, holder, types.get(holder, ""), why.reason, why.part)
            yield lost_problem(place, roots[path[0]], found, path)


def _path_up(id: int, holders: dict[int, list[int]], roots: Collection[int]) -> list[int]:
    """Return the shortest path from a root down to an object; empty if no root leads to the object."""
    after: dict[int, int] = {id: 0}
    level = [id]
    while level:
        for at in level:
            if at in roots:
                path = [at]
                while after[path[-1]]:
                    path.append(after[path[-1]])
                return path
        above: list[int] = []
        for at in level:
            for holder in holders.get(at, ()):
                if holder not in after:
                    after[holder] = at
                    above.append(holder)
        level = above
    return []


def _headers(reach: Reach, split: Split) -> Iterator[pa.RecordBatch]:
    """Yield the headers of a split's objects. Unreadable headers are left out."""
    for rows in reach.backend.scan(split):
        yield _headers_of(reach.backend, rows)


def _headers_of(backend: Backend, rows: pa.RecordBatch) -> pa.RecordBatch:
    import pyarrow as pa

    found: list[tuple[int, Header]] = []
    several: dict[str, list[int]] = {}
    columns = (rows.column(name).to_pylist() for name in ("realm", "id", "part", "value"))
    for realm, id, part, value in zip(*columns, strict=True):
        if part:
            continue
        try:
            if part_count(value, "") > 1:
                several.setdefault(realm, []).append(id)
            else:
                found.append((id, decode_header(value, "")))
        except PolarisError:  # an unreadable object counts as missing
            continue
    for realm, ids in several.items():
        read = read_each(backend, realm, ids, whole=False)
        found += [(id, one.header) for id, one in read.items() if isinstance(one, Read)]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([id for id, _ in found], pa.int64()),
            pa.array([header.type for _, header in found], pa.string()),
            pa.array([list(header.strong) for _, header in found], pa.list_(pa.int64())),
        ],
        names=["id", "type", "strong"],
    )
