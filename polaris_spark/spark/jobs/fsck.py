"""The check of a store on executors: each unit separately, and pointers by a join of all rows with each other."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from polaris_spark.backends.base import Backend, Split
from polaris_spark.commits.completeness import Lost
from polaris_spark.errors import PolarisError
from polaris_spark.maintenance.checking.checker import Needed, Unit, carry_unit, lost_problem
from polaris_spark.maintenance.checking.rows import Place, Problem
from polaris_spark.objects import Header, decode_header, part_count
from polaris_spark.spark.jobs.scanning import scanned
from polaris_spark.spark.options import StoreLocation
from polaris_spark.spark.planned import PlannedStore
from polaris_spark.spark.reading import ReadStore
from polaris_spark.store.lenient import Read, Unreadable, read_each

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_PROBLEM = ", ".join(f"{name} string" for name in Problem._fields)
_OBJECT = "id bigint, type string, strong array<bigint>"
_TASKS_PER_CORE = 4
_LEVELS = 64
"""Maximum number of levels that `_above` follows. Paths from a commit to any object below it are shorter."""


class Executors:
    """Runs the parts of a check as Spark jobs."""

    def __init__(self, spark: SparkSession, location: StoreLocation) -> None:
        """
        Args:
            location: location of the store, with resolved secrets.
        """
        self._spark = spark
        self._store = PlannedStore(location)
        self.parts = spark.sparkContext.defaultParallelism

    def carry(self, units: Sequence[Unit]) -> Iterator[Problem]:
        """Run units of the check, and yield the problems found."""
        pickled = [pickle.dumps(unit) for unit in units]  # a task unpickles only its own units
        tasks = _TASKS_PER_CORE * self.parts
        found = scanned(self._spark, self._store, pickled, _problems, _PROBLEM, tasks=tasks)
        for row in found.toLocalIterator():
            yield Problem(*row)

    def follow(self, place: Place, needed: Sequence[Needed]) -> Iterator[Problem]:
        """Yield a problem for each object that is needed and missing.

        All pointers are joined with all existing objects. Pointers without an object remain; an intact store has none.
        Each remaining object is looked up once more, because it may have been written during the scan. If it is still
        missing, pointers are followed upwards from it, to find out whether a needed object leads to it.
        """
        backend = self._store.open().backend
        splits = backend.splits("objects", [place.instance], self.parts)
        objects = scanned(self._spark, self._store, splits, _headers, _OBJECT).persist()
        try:
            yield from self._lost(backend, place, needed, objects)
        finally:
            objects.unpersist()

    def _lost(
        self, backend: Backend, place: Place, needed: Sequence[Needed], objects: DataFrame
    ) -> Iterator[Problem]:
        from pyspark.sql.functions import col, explode

        edges = objects.select(col("id").alias("holder"), "type", explode("strong").alias("pointer"))
        there = objects.select(col("id").alias("pointer"))
        roots = self._spark.createDataFrame([(one.id,) for one in needed], "pointer bigint")
        wanted = edges.select("pointer").union(roots).distinct()
        candidates = [row[0] for row in wanted.join(there, "pointer", "left_anti").collect()]
        read = read_each(backend, place.instance, candidates, whole=False)
        lost = {id: why for id, why in read.items() if isinstance(why, Unreadable)}
        if lost:
            holders, types = self._above(edges, lost)
            yield from _told(place, needed, lost, holders, types)

    def _above(self, edges: DataFrame, lost: Collection[int]) -> tuple[dict[int, list[int]], dict[int, str]]:
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
            below = self._spark.createDataFrame([(id,) for id in level], "pointer bigint")
            found = edges.join(broadcast(below), "pointer").select("pointer", "holder", "type").collect()
            level = list({holder for _, holder, _ in found if holder not in types})
            for pointer, holder, type in found:
                holders.setdefault(pointer, []).append(holder)
                types[holder] = type
        return holders, types


def _told(
    place: Place,
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


def _problems(store: ReadStore, pickled: bytes) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    found = list(carry_unit(store.backend, pickle.loads(pickled)))  # made by `carry`
    columns = [pa.array([problem[i] for problem in found], pa.string()) for i in range(len(Problem._fields))]
    yield pa.RecordBatch.from_arrays(columns, names=list(Problem._fields))


def _headers(store: ReadStore, split: Split) -> Iterator[pa.RecordBatch]:
    """Yield the headers of a split's objects. Unreadable headers are left out."""
    for rows in store.backend.scan(split):
        yield _headers_of(store.backend, rows)


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
