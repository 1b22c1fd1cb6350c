"""Migration of a realm by executors: they copy rows from splits of the source, and compare both sides as DataFrames."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from polaris_spark.clock import SystemClock
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.errors import PolarisError
from polaris_spark.maintenance.migrating.check import Compared, compare_objects
from polaris_spark.maintenance.migrating.copy import Copied, Place, Watch, copy_split, rows_of_batch
from polaris_spark.maintenance.migrating.marks import Held
from polaris_spark.maintenance.migrating.steps import Work
from polaris_spark.objects import decode_header, type_name
from polaris_spark.spark.options import StoreLocation
from polaris_spark.spark.reading import machine, open_for_reading, refuse_other_machine

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from polaris_spark.backends.base import Split

_WAVES = 4
"""Between so many parts of the copy it is told how far that has come."""

_MANY = 10_000
"""When so many objects differ, it is not worth while to ask whether they are needed before each is compared."""

_COPIED = "rows bigint, bytes bigint, highest bigint"
_SIDE = "id bigint, part int, digest binary, points array<bigint>"
_COMMIT = type_name(Commit)


def spark_work(spark: SparkSession, source: StoreLocation, target: StoreLocation) -> Work:
    """Copying and comparing by the executors of a session.

    Args:
        source, target: the stores, their secrets resolved.
    """
    job = _Sides(spark, source, target)
    return Work(job.copy, job.compare)


class _Sides:
    def __init__(self, spark: SparkSession, source: StoreLocation, target: StoreLocation) -> None:
        self._spark = spark
        self._source = source
        self._target = target

    def copy(self, source: Place, target: Place, watch: Watch) -> Copied:
        """Copy every row that was written before this began, needed or not."""
        tasks = self._spark.sparkContext.defaultParallelism * 2
        splits = source.backend.splits("objects", [source.realm], tasks * _WAVES)
        copied = Copied()
        for start in range(0, len(splits), tasks):
            watch("copying rows", start, len(splits))
            some = splits[start : start + tasks]
            job = _Copy(self._source, self._target, source.realm, target.realm, some, machine())
            for row in self._over(some).mapInArrow(job, _COPIED).collect():
                copied = copied.plus(Copied(row["rows"], row["bytes"], row["highest"]))
        return copied

    def compare(self, source: Place, target: Place, heads: Sequence[Held], watch: Watch) -> Compared:
        """Compare the rows of all objects that heads need: both sides are joined by key, and what differs is looked
        at. Rows that attempts left behind that failed after the copy are in the source alone, and nothing points to
        them; only where something does, this process looks closer, object by object.

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
            watch("looking at rows that differ", 0, 0)
            ids = both.where(differs).select("id").distinct().limit(_MANY).collect()
            suspects = {row["id"] for row in ids}
            found = [held.head for held in heads]
            if len(suspects) == _MANY or self._needed(source, suspects, found):
                return compare_objects(
                    source, target, found, lambda done: watch("comparing objects", done, 0)
                )
        return Compared(0, counted["rows"], (), 0)

    def _needed(self, source: Place, suspects: set[int], heads: Sequence[Head]) -> set[int]:
        """Those suspects that a head, or an object that is none of them, leads to."""
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

    def _side(self, location: StoreLocation, place: Place) -> DataFrame:
        """The rows of one side: id, part, a digest of the value, and the ids that the object points to."""
        n = self._spark.sparkContext.defaultParallelism * 2
        splits = place.backend.splits("objects", [place.realm], n)
        return self._over(splits).mapInArrow(_Digests(location, splits, machine()), _SIDE)

    def _over(self, splits: Sequence[Split]) -> DataFrame:
        return self._spark.range(0, len(splits), 1, max(1, len(splits)))


class _Copy:
    """What executors run: numbers of splits in, what was copied of each out."""

    def __init__(
        self,
        source: StoreLocation,
        target: StoreLocation,
        source_realm: str,
        target_realm: str,
        splits: Sequence[Split],
        planned_on: str,
    ) -> None:
        self._source = source
        self._target = target
        self._realms = source_realm, target_realm
        self._splits = splits
        self._planned_on = planned_on

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        source, target = (
            self._place(location, realm)
            for location, realm in zip((self._source, self._target), self._realms, strict=True)
        )
        for batch in batches:
            for number in batch.column(0).to_pylist():
                copied = copy_split(source, target, self._splits[number])
                yield pa.RecordBatch.from_pydict(
                    {
                        "rows": pa.array([copied.rows], pa.int64()),
                        "bytes": pa.array([copied.bytes], pa.int64()),
                        "highest": pa.array([copied.highest], pa.int64()),
                    }
                )

    def _place(self, location: StoreLocation, realm: str) -> Place:
        refuse_other_machine(location, self._planned_on)
        return Place(open_for_reading(location).backend, realm, SystemClock())


class _Digests:
    """What executors run: numbers of splits in, the rows of these splits out, with a digest instead of the value."""

    def __init__(self, location: StoreLocation, splits: Sequence[Split], planned_on: str) -> None:
        self._location = location
        self._splits = splits
        self._planned_on = planned_on

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        refuse_other_machine(self._location, self._planned_on)
        backend = open_for_reading(self._location).backend
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for scanned in backend.scan(self._splits[number]):
                    rows = rows_of_batch(scanned)
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
    """What an object needs, by its first row; a commit needs its ancestors. Of a row that cannot be read: nothing."""
    try:
        header = decode_header(value, "")
    except PolarisError:
        return []
    return list(header.strong + header.weak) if header.type == _COMMIT else list(header.strong)
