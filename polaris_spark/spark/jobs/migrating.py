"""Migration of a realm by executors: they copy rows from splits of the source, and compare stores as DataFrames."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from polaris_spark.clock import SystemClock
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.errors import PolarisError
from polaris_spark.maintenance.migrating.check import Compared, compare_objects
from polaris_spark.maintenance.migrating.copy import Copied, Place, Watch, copy_split, rows_of_batch
from polaris_spark.maintenance.migrating.marks import Held
from polaris_spark.maintenance.migrating.steps import Work
from polaris_spark.objects import decode_header, type_name
from polaris_spark.spark.jobs.scanning import scanned
from polaris_spark.spark.options import StoreLocation
from polaris_spark.spark.planned import PlannedStore
from polaris_spark.spark.reading import ReadStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from polaris_spark.backends.base import Split

_WAVES = 4
"""Number of parts of the copy. Progress is reported before each part."""

_MANY = 10_000
"""From this many differing objects on, it is not worth checking whether heads need them before comparing each object.
"""

_COPIED = "rows bigint, bytes bigint, highest bigint"
_SIDE = "id bigint, part int, digest binary, points array<bigint>"
_COMMIT = type_name(Commit)


def spark_work(spark: SparkSession, source: StoreLocation, target: StoreLocation) -> Work:
    """Return the work of a migration, which copies and compares on the executors of a session.

    Args:
        source, target: the stores, with resolved secrets.
    """
    sides = _Sides(spark, PlannedStore(source), PlannedStore(target))
    return Work(sides.copy, sides.compare)


class _Sides:
    def __init__(self, spark: SparkSession, source: PlannedStore, target: PlannedStore) -> None:
        self._spark = spark
        self._source = source
        self._target = target

    def copy(self, source: Place, target: Place, watch: Watch) -> Copied:
        """Copy every row that was written before the copy began, even if no head needs it."""
        tasks = self._spark.sparkContext.defaultParallelism * 2
        splits = source.backend.splits("objects", [source.realm], tasks * _WAVES)
        copy = partial(_copied, target=self._target, realms=(source.realm, target.realm))
        copied = Copied()
        for start in range(0, len(splits), tasks):
            watch("copying rows", start, len(splits))
            some = splits[start : start + tasks]
            for row in scanned(self._spark, self._source, some, copy, _COPIED).collect():
                copied = copied.plus(Copied(row["rows"], row["bytes"], row["highest"]))
        return copied

    def compare(self, source: Place, target: Place, heads: Sequence[Held], watch: Watch) -> Compared:
        """Compare the rows of all objects that heads need.

        Both sides are joined by key. Rows that differ may be harmless: commit attempts that failed after the copy left
        rows in the source only, and no object points to them. If a head or another object needs an object that differs,
        this process compares object by object.

        Raises:
            CorruptionError: a row is missing in the source.
        """
        from pyspark.sql import functions as f

        watch("comparing rows", 0, 0)
        here = self._side(self._source, source).select("id", "part", "digest")
        there = self._side(self._target, target).select("id", "part", f.col("digest").alias("copy"))
        both = here.join(there, ["id", "part"], "left")
        differs = ~f.col("digest").eqNullSafe(f.col("copy"))
        counted = both.select(f.count(f.lit(1)).alias("rows"), f.count_if(differs).alias("differ")).first()
        assert counted is not None
        if counted["differ"]:
            watch("reading rows that differ", 0, 0)
            ids = both.where(differs).select("id").distinct().limit(_MANY).collect()
            suspects = {row["id"] for row in ids}
            found = [held.head for held in heads]
            if len(suspects) == _MANY or self._needed(source, suspects, found):
                return compare_objects(
                    source, target, found, lambda done: watch("comparing objects", done, 0)
                )
        return Compared(0, counted["rows"], (), 0)

    def _needed(self, source: Place, suspects: set[int], heads: Sequence[Head]) -> set[int]:
        """Return the suspects that are reachable from a head, or from an object that is not a suspect."""
        from pyspark.sql import functions as f

        side = self._side(self._source, source)
        edges = side.select("id", f.explode("points").alias("to"))
        pairs = edges.where(f.col("to").isin(*suspects)).distinct().collect()
        needed = {head.commit for head in heads} & suspects
        needed |= {row["to"] for row in pairs if row["id"] not in suspects}
        below: dict[int, set[int]] = {}
        for row in pairs:
            below.setdefault(row["id"], set()).add(row["to"])
        waiting = list(needed)
        while waiting:
            further = below.get(waiting.pop(), set()) - needed
            needed |= further
            waiting += further
        return needed

    def _side(self, store: PlannedStore, place: Place) -> DataFrame:
        """Return the rows of one store: id, part, a digest of the value, and the ids that the object points to."""
        n = self._spark.sparkContext.defaultParallelism * 2
        splits = place.backend.splits("objects", [place.realm], n)
        return scanned(self._spark, store, splits, _digests, _SIDE)


def _copied(
    source: ReadStore, split: Split, *, target: PlannedStore, realms: tuple[str, str]
) -> Iterator[pa.RecordBatch]:
    """Copy a split.

    Args:
        realms: instance ids of the realm in the source and of the realm in the target.
    """
    import pyarrow as pa

    here, there = (
        Place(store.backend, realm, SystemClock())
        for store, realm in zip((source, target.open()), realms, strict=True)
    )
    copied = copy_split(here, there, split)
    columns = [pa.array([number], pa.int64()) for number in copied]
    yield pa.RecordBatch.from_arrays(columns, names=list(Copied._fields))


def _digests(store: ReadStore, split: Split) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split, with a digest in place of the value."""
    import pyarrow as pa

    for batch in store.backend.scan(split):
        rows = rows_of_batch(batch)
        digests = [hashlib.sha256(row.value).digest() for row in rows]
        points = [_points(row.value) if row.part == 0 else [] for row in rows]
        yield pa.RecordBatch.from_pydict(
            {
                "id": pa.array([row.id for row in rows], pa.int64()),
                "part": pa.array([row.part for row in rows], pa.int32()),
                "digest": pa.array(digests, pa.binary()),
                "points": pa.array(points, pa.list_(pa.int64())),
            }
        )


def _points(value: bytes) -> list[int]:
    """Return the ids that an object needs, from its first row. A commit also needs its ancestors.

    The result is empty for a row that cannot be read.
    """
    try:
        header = decode_header(value, "")
    except PolarisError:
        return []
    return list(header.strong + header.weak) if header.type == _COMMIT else list(header.strong)
