"""The engine that runs the work of jobs on Spark's executors. Its rows are DataFrames."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from polaris_spark.backends.base import Backend
from polaris_spark.catalog.engine import (
    Engine,
    I,
    LocalEngine,
    MapFunction,
    P,
    R,
    Reach,
    Row,
    RowFunction,
    Rows,
    ScanFunction,
    run_here,
)
from polaris_spark.catalog.files.files import Files
from polaris_spark.config import Properties
from polaris_spark.errors import StateError
from polaris_spark.spark.options import StoreLocation, location_of
from polaris_spark.spark.realm_reader import ReadStore
from polaris_spark.spark.task_store import PlannedStore
from polaris_spark.store.objects import ObjectStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

BatchFunction = Callable[[Reach, "Iterable[pa.RecordBatch]"], "Iterable[pa.RecordBatch]"]
"""A picklable function that executors apply to the record batches of a partition. It returns record batches."""

_TASKS_PER_CORE = 2
_ROWS_TOGETHER = 4_096

_TOGETHER = 10_000
"""Maximum number of items in one Spark job. It limits the results that the driver keeps in memory."""


class SparkEngine(Engine):
    """An engine that runs work on executors. A call with few items runs in this process instead."""

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        location: StoreLocation,
        files: Mapping[str, str],
        local: LocalEngine,
        *,
        realm: str,
    ) -> None:
        """
        Args:
            spark: returns the Spark session; called when a session is first needed.
            location: location of the store; its secrets are values, not names of environment variables.
            files: properties of the FileIO that accesses the files.
            local: the engine that processes small numbers of items in this process.
            realm: name of the realm (a tenant of the store) that the job processes.
        """
        super().__init__(local.reach, local.progress)
        self._session = spark
        self._open = _OpenReach(PlannedStore(location), dict(files), realm, local.reach.own.realm)
        self._local = local

    @cached_property
    def spark(self) -> SparkSession:
        """The Spark session whose executors do the work."""
        return self._session()

    @property
    def parts(self) -> int:
        """Number of cores of all executors together."""
        return self.spark.sparkContext.defaultParallelism

    def _results(self, function: MapFunction[I, R], items: Sequence[I]) -> Iterator[R]:
        if len(items) <= function.few:
            yield from self._local.map(function, items)
            return
        size = min(_TOGETHER, -(-len(items) // function.waves))
        for start in range(0, len(items), size):
            yield from self._wave(function, items[start : start + size])

    def _wave(self, function: MapFunction[I, R], items: Sequence[I]) -> Iterator[R]:
        """Apply the function to the items in one Spark job, and yield the results in the order of the items."""
        import pyarrow as pa

        encode = pickle.dumps if function.item is None else msgspec.msgpack.Encoder().encode
        # Spark cuts a local table into one slice per core. Round-robin order puts large neighboring items into
        # different slices.
        slices = self.parts  # read once: it changes when executors come and go
        dealt = [n for first in range(slices) for n in range(first, len(items), slices)]
        encoded = pa.array([encode(items[n]) for n in dealt], pa.binary())
        table = pa.table({"position": pa.array(dealt, pa.int32()), "item": encoded})
        frame = self.spark.createDataFrame(table)
        if function.tasks_per_core > 1:
            frame = frame.repartition(min(len(items), function.tasks_per_core * slices))
        each = partial(_each_item, function=function)
        found = self.batches(each, frame, "position int, result binary").collect()
        decode = msgspec.msgpack.Decoder(function.result).decode
        for row in sorted(found, key=itemgetter(0)):
            yield decode(row[1])

    def rows(self, values: Iterable[Row], schema: str) -> SparkRows:
        return self._rows(self.spark.createDataFrame(_table(values, schema)))

    def scan(self, function: ScanFunction[P], parts: Sequence[P], schema: str, doing: str = "") -> SparkRows:
        if doing:
            self.progress(doing, 0, 0)
        # Distribute numbers of parts: a table of the parts would be so small that Spark would put it into one task.
        numbers = self.spark.range(0, len(parts), 1, max(1, len(parts)))
        each = partial(_each_part, parts=parts, function=function)
        return self.apply(each, self._rows(numbers), schema)

    def apply(
        self,
        function: RowFunction,
        rows: Rows,
        schema: str,
        *,
        by: Sequence[str] = (),
        tasks_per_core: int = 0,
        doing: str = "",
    ) -> SparkRows:
        if doing:
            self.progress(doing, 0, 0)
        frame = frame_of(rows)
        if by:
            frame = frame.repartitionByRange(self._tasks, *by).sortWithinPartitions(*by)
        elif tasks_per_core:
            frame = frame.repartition(tasks_per_core * self.parts)
        return self._rows(self.batches(partial(_each_row, function=function, schema=schema), frame, schema))

    def query(self, sql: str, **rows: Rows) -> SparkRows:
        frames: dict[str, Any] = {name: frame_of(one) for name, one in rows.items()}
        return self._rows(self.spark.sql(sql, **frames))

    def without(self, rows: Rows, others: Rows, on: Sequence[str], where: str = "true") -> SparkRows:
        from pyspark.sql.functions import expr

        match = " AND ".join([*(f"mine.{column} = other.{column}" for column in on), f"({where})"])
        mine, other = frame_of(rows).alias("mine"), frame_of(others).alias("other")
        return self._rows(mine.join(other, expr(match), "left_anti"))

    def closure(self, start: Rows, further: Callable[[Rows], Rows], doing: str) -> SparkRows:
        def spread(frame: DataFrame) -> DataFrame:
            return frame.repartition(self._tasks, "id").distinct()

        level = spread(frame_of(start)).localCheckpoint()
        marked, n, reached = level, level.count(), 0
        while n:
            reached += n
            self.progress(doing, reached, 0)
            found = spread(frame_of(further(self._rows(level))))
            level = found.join(marked, "id", "left_anti").localCheckpoint()
            n = level.count()
            marked = marked.union(level)
        return self._rows(marked)

    def opener(self, properties: Properties, backend: Backend) -> Callable[[], Backend]:
        return partial(_opened, PlannedStore(location_of(properties).resolved()))

    @property
    def _tasks(self) -> int:
        return _TASKS_PER_CORE * self.parts

    def _rows(self, frame: DataFrame) -> SparkRows:
        return SparkRows(frame, self._tasks)

    def batches(self, function: BatchFunction, frame: DataFrame, schema: str) -> DataFrame:
        """Return the DataFrame that results if executors apply a function to the record batches of `frame`."""
        return frame.mapInArrow(_WithReach(self._open, function), schema)


class SparkRows(Rows):
    """Rows of an engine, stored as a DataFrame."""

    def __init__(self, frame: DataFrame, tasks: int) -> None:
        self.frame = frame
        self._tasks = tasks

    def kept(self) -> SparkRows:
        return SparkRows(self.frame.persist(), self._tasks)

    def fixed(self, *by: str) -> SparkRows:
        frame = self.frame.repartition(self._tasks, *by) if by else self.frame
        return SparkRows(frame.localCheckpoint(), self._tasks)

    def collect(self) -> list[Row]:
        return [tuple(row) for row in self.frame.collect()]

    def release(self) -> None:
        self.frame.unpersist()


def frame_of(rows: Rows) -> DataFrame:
    """Return the DataFrame that contains the rows. The rows must come from a `SparkEngine`."""
    assert isinstance(rows, SparkRows)
    return rows.frame


def _opened(store: PlannedStore) -> Backend:
    return store.open().backend


@dataclass(frozen=True, repr=False)  # `files` may contain secrets
class _OpenReach:
    """A picklable function that opens the store in an executor's process, and returns access to the store and files."""

    store: PlannedStore
    files: dict[str, str]
    realm: str
    instance: str

    def __call__(self) -> Reach:
        return _ExecutorReach(self.store.open(), self)


class _ExecutorReach(Reach):
    """Access to the store and files for a function that runs on an executor."""

    def __init__(self, store: ReadStore, opening: _OpenReach) -> None:
        super().__init__(store.objects(opening.instance), Files(opening.files))
        self._store = store
        self._name = opening.realm

    def writable(self) -> ObjectStore:
        record = self._store.realm(self._name).record
        if record.instance != self.own.realm:
            raise StateError(
                f"realm {self._name!r} was dropped and created again during the job; run the job again"
            )
        return self._store.objects(record.instance, record.revisions)


class _WithReach:
    """The function that executors call with record batches: it opens the store and calls the wrapped function."""

    def __init__(self, open: _OpenReach, function: BatchFunction) -> None:
        self._open = open
        self._function = function

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from self._function(self._open(), batches)


def _each_item(
    reach: Reach, batches: Iterable[pa.RecordBatch], *, function: MapFunction[I, R]
) -> Iterator[pa.RecordBatch]:
    """Apply a function to items. The rows of `batches` are (position, item); the result rows are (position, result)."""
    import pyarrow as pa

    # The driver pickled the items (`SparkEngine`).
    decode: Callable[[bytes], Any] = pickle.loads
    if function.item is not None:
        decode = msgspec.msgpack.Decoder(function.item).decode
    encode = msgspec.msgpack.Encoder().encode
    for batch in batches:
        items = [decode(item) for item in batch.column(1).to_pylist()]
        results = [encode(result) for result in run_here(function, reach, items)]
        columns = [batch.column(0), pa.array(results, pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, names=["position", "result"])


def _each_part(
    reach: Reach, numbers: Iterator[Row], *, parts: Sequence[P], function: ScanFunction[P]
) -> Iterator[Row]:
    """Yield the rows of the parts with the given numbers (indexes into `parts`)."""
    for (number,) in numbers:
        yield from function(reach, parts[number])


def _each_row(
    reach: Reach, batches: Iterable[pa.RecordBatch], *, function: RowFunction, schema: str
) -> Iterator[pa.RecordBatch]:
    """Apply a function to the rows of record batches, and yield its result rows as record batches."""
    rows = (row for batch in batches for row in zip(*(c.to_pylist() for c in batch.columns), strict=True))
    produced = iter(function(reach, rows))
    while run := list(islice(produced, _ROWS_TOGETHER)):
        yield from _table(run, schema).to_batches()


def _table(rows: Iterable[Row], schema: str) -> pa.Table:
    import pyarrow as pa

    types = {
        "bigint": pa.int64(),
        "int": pa.int32(),
        "string": pa.string(),
        "boolean": pa.bool_(),
        "binary": pa.binary(),
        "array<string>": pa.list_(pa.string()),
    }
    named = [column.split(" ") for column in schema.split(", ")]
    fields = [pa.field(name, types[type]) for name, type in named]
    columns = list(zip(*rows, strict=True)) or [()] * len(fields)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))
