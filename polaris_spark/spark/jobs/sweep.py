"""The garbage of a sweep on executors: one scan reads all headers, joins mark objects, then rows are deleted.

Headers are read once, in a scan that also finds the rows to delete. Reading headers by id, level by level, would read
most rows a second time, and in random order. Ids stay in DataFrames. The driver only holds the ids of the commits from
which marking starts, eight bytes each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

from polaris_spark import objects
from polaris_spark.backends.base import ObjectKey
from polaris_spark.catalog.engine import Progress, Reach
from polaris_spark.clock import EPOCH_MS
from polaris_spark.errors import CorruptionError, PolarisError
from polaris_spark.ids import NODE_BITS, SEQUENCE_BITS
from polaris_spark.maintenance.marking import DELETE_TOGETHER, Count, explained, missing
from polaris_spark.maintenance.sweeping import Policy, Roots, list_roots_only
from polaris_spark.spark.engine import SparkEngine
from polaris_spark.system.registry import References

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from polaris_spark.backends.base import Split

_TASKS_PER_CORE = 2
_ROW = "id bigint, part int, type string, bytes bigint, points array<bigint>, problem string"


def garbage(engine: SparkEngine, references: References, policy: Policy) -> DataFrame:
    """Return the rows that a sweep would delete now. Nothing is changed.

    Returns:
        columns `id`, `part`, `type` (null if no header contains it), `bytes`, and `age`: time since the object's id was
        generated, by the clock of its writer, in milliseconds.
    """
    from pyspark.sql import functions as f

    def quiet(_step: str, _done: int, _of: int) -> None:
        return None

    roots = list_roots_only(references, policy, quiet)
    made = f.shiftright("id", NODE_BITS + SEQUENCE_BITS) + EPOCH_MS
    found = SparkGarbage(engine, references, roots, quiet).rows()
    return found.withColumn("age", f.lit(references.clock.now_ms()) - made)


class SparkGarbage:
    """A `Garbage` on executors."""

    def __init__(self, engine: SparkEngine, references: References, roots: Roots, progress: Progress) -> None:
        self._engine = engine
        self._references = references
        self._roots = roots
        self._progress = progress
        self._realm = references.store.realm
        self._tasks = _TASKS_PER_CORE * engine.parts

    @cached_property
    def _found(self) -> DataFrame:
        return self.rows().localCheckpoint()

    @cached_property
    def counts(self) -> list[Count]:
        """Counts of the rows by type, sorted by type."""
        from pyspark.sql import functions as f

        sums = self._found.groupBy("type").agg(
            f.count_distinct("id").alias("objects"),
            f.count(f.lit(1)).alias("n"),
            f.sum("bytes").alias("bytes"),
        )
        counts = [Count(row["type"], row["objects"], row["n"], row["bytes"]) for row in sums.collect()]
        return sorted(counts, key=lambda count: (count.type is None, count.type))

    def delete(self) -> None:
        """Delete the rows, with neighboring ids in the same requests. May be repeated."""
        self._progress("deleting rows", 0, sum(count.rows for count in self.counts))
        keys = self._found.select("id", "part").repartitionByRange(self._tasks, "id")
        delete = partial(_delete, realm=self._realm)
        keys = keys.sortWithinPartitions("id", "part")
        self._engine.apply(delete, keys, "rows bigint").agg({"rows": "sum"}).collect()

    def rows(self) -> DataFrame:
        """Return the unmarked rows whose ids are below the limit: id, part, type, bytes.

        Raises:
            TryAgainError: another sweep is running.
            CorruptionError: a needed object is missing or unreadable.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        self._progress("reading headers", 0, 0)
        rows = self._headers().repartition(self._tasks, "id").localCheckpoint()
        marked = self._marked(rows.where("part = 0").select("id", "points"))
        self._check(rows, marked)
        self._progress("looking for garbage", 0, 0)
        found = rows.where(f.col("id") < self._roots.limit).join(marked, "id", "left_anti")
        type = f.max("type").over(Window.partitionBy("id"))
        return found.select("id", "part", type.alias("type"), "bytes")

    def _headers(self) -> DataFrame:
        """Return the header data of each row, with the columns of `_ROW`."""
        backend = self._references.store.backend
        splits = backend.splits("objects", [self._realm], self._tasks)
        headers = partial(_headers, realm=self._realm)
        return self._engine.scan(headers, splits, _ROW)

    def _marked(self, edges: DataFrame) -> DataFrame:
        """Return the ids of all reachable objects, found breadth first.

        A level consists of the objects that the previous level points to, without those that were reached before.
        """
        from pyspark.sql import functions as f

        level = self._ids(self._roots.commits).localCheckpoint()
        marked, n, reached = level, len(self._roots.commits), 0
        while n:
            reached += n
            self._progress("marking", reached, 0)
            further = edges.join(level, "id").select(f.explode("points").alias("id"))
            further = further.repartition(self._tasks, "id").distinct().join(marked, "id", "left_anti")
            level = further.localCheckpoint()
            n = level.count()
            marked = marked.union(level)
        return marked

    def _ids(self, ids: Sequence[int]) -> DataFrame:
        import pyarrow as pa

        table = pa.table({"id": pa.array(ids, pa.int64())})
        return self._engine.spark.createDataFrame(table).repartition(self._tasks, "id").distinct()

    def _check(self, rows: DataFrame, marked: DataFrame) -> None:
        """Raise an error if a marked object is missing, or if its pointers cannot be read."""
        from pyspark.sql import functions as f

        first = rows.where("part = 0")
        lost = marked.join(first, "id", "left_anti").first()
        if lost is not None:
            holder = (
                first.where(f.array_contains("points", lost["id"])).join(marked, "id", "left_semi").first()
            )
            message = missing(self._realm, lost["id"], 0 if holder is None else holder["id"])
            raise explained(self._references, self._roots, CorruptionError(message))
        unread = first.where("problem is not null").join(marked, "id", "left_semi").first()
        if unread is not None:
            raise explained(self._references, self._roots, CorruptionError(unread["problem"]))


def _headers(reach: Reach, split: Split, *, realm: str) -> Iterator[pa.RecordBatch]:
    """Yield the header data of each row of a split."""
    for batch in reach.backend.scan(split):
        yield _headers_of(batch, realm)


def _headers_of(batch: pa.RecordBatch, realm: str) -> pa.RecordBatch:
    import pyarrow as pa
    import pyarrow.compute as pc

    types: list[str | None] = []
    points: list[tuple[int, ...]] = []
    problems: list[str | None] = []
    ids, parts, values = (batch.column(name) for name in ("id", "part", "value"))
    for id, part, value in zip(ids.to_pylist(), parts.to_pylist(), values.to_pylist(), strict=True):
        type: str | None = None
        strong: tuple[int, ...] = ()
        problem: str | None = None
        if part == 0:
            try:
                header = objects.decode_header(value, f"{realm}/{id}")
                type, strong = header.type, header.strong
            except PolarisError as error:
                problem = str(error)
        types.append(type)
        points.append(strong)
        problems.append(problem)
    columns = [
        ids,
        parts,
        pa.array(types, pa.string()),
        pc.binary_length(values).cast(pa.int64()),
        pa.array(points, pa.list_(pa.int64())),
        pa.array(problems, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["id", "part", "type", "bytes", "points", "problem"])


def _delete(reach: Reach, batches: Iterable[pa.RecordBatch], *, realm: str) -> Iterator[pa.RecordBatch]:
    """Delete rows by their sorted keys. Yield the numbers of deleted rows."""
    import pyarrow as pa

    for batch in batches:
        ids, parts = (batch.column(name).to_pylist() for name in ("id", "part"))
        keys = [ObjectKey(id, part) for id, part in zip(ids, parts, strict=True)]
        for start in range(0, len(keys), DELETE_TOGETHER):
            reach.backend.delete_objects(realm, keys[start : start + DELETE_TOGETHER])
        yield pa.RecordBatch.from_arrays([pa.array([len(keys)], pa.int64())], names=["rows"])
