"""The engine that runs functions of many items on Spark's executors."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from polaris_spark.catalog.engine import Engine, I, LocalEngine, MapFunction, R, Reach, run_here
from polaris_spark.catalog.files import Files
from polaris_spark.errors import StateError
from polaris_spark.spark.options import StoreLocation
from polaris_spark.spark.planned import PlannedStore
from polaris_spark.spark.reading import ReadStore
from polaris_spark.store.objects import ObjectStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

P = TypeVar("P")

ScanFunction = Callable[[Reach, P], "Iterable[pa.RecordBatch]"]
"""A function that produces record batches from one part of a store.

It can be pickled: it is a module-level function, or a `partial` of a module-level function.
"""

BatchFunction = Callable[[Reach, "Iterable[pa.RecordBatch]"], "Iterable[pa.RecordBatch]"]
"""A function that produces record batches from record batches, such as rows of a DataFrame."""

_TOGETHER = 10_000
"""Maximum number of items of one Spark job, to limit the results that the driver holds at a time."""


class SparkEngine(Engine):
    """An engine that works on executors. A call with few items works in this process instead."""

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
            spark: returns the session; not called before it is needed.
            location: location of the store, with resolved secrets.
            files: properties of the FileIO that accesses the files.
            local: processes small numbers of items in this process.
            realm: name of the realm that the job is for.
        """
        super().__init__(local.reach, local.progress)
        self._session = spark
        self._open = _OpenReach(PlannedStore(location), dict(files), realm, local.reach.own.realm)
        self._local = local

    @cached_property
    def spark(self) -> SparkSession:
        """The session whose executors do the work."""
        return self._session()

    @property
    def parts(self) -> int:
        """Number of cores of the executors."""
        return self.spark.sparkContext.defaultParallelism

    def _results(self, function: MapFunction[I, R], items: Sequence[I]) -> Iterator[R]:
        if len(items) <= function.few:
            yield from self._local.map(function, items)
            return
        size = min(_TOGETHER, -(-len(items) // function.waves))
        for start in range(0, len(items), size):
            yield from self._wave(function, items[start : start + size])

    def _wave(self, function: MapFunction[I, R], items: Sequence[I]) -> Iterator[R]:
        """Yield the results of the items of one Spark job."""
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
        found = self.apply(each, frame, "position int, result binary").collect()
        decode = msgspec.msgpack.Decoder(function.result).decode
        for row in sorted(found, key=itemgetter(0)):
            yield decode(row[1])

    def scan(
        self,
        function: ScanFunction[P],
        parts: Sequence[P],
        schema: str,
        *,
        store: StoreLocation | None = None,
    ) -> DataFrame:
        """Return the rows that executors produce from the parts of a store, one Spark task for each part.

        Args:
            function: produces record batches from a part.
            parts: parts of the store, such as splits; can be pickled.
            schema: the columns of the record batches, as a Spark DDL string.
            store: another store to scan, with resolved secrets.
        """
        # Distribute numbers of parts: a table of the parts would be so small that Spark would put it into one task.
        numbers = self.spark.range(0, len(parts), 1, max(1, len(parts)))
        return self.apply(partial(_each_part, parts=parts, function=function), numbers, schema, store=store)

    def apply(
        self, function: BatchFunction, frame: DataFrame, schema: str, *, store: StoreLocation | None = None
    ) -> DataFrame:
        """Return the rows that executors produce from the rows of a DataFrame.

        Args:
            function: produces record batches from record batches; can be pickled.
            schema: the columns of the produced record batches, as a Spark DDL string.
            store: another store that the function accesses, with resolved secrets.
        """
        opening = self._open if store is None else replace(self._open, store=PlannedStore(store))
        return frame.mapInArrow(_WithReach(opening, function), schema)


@dataclass(frozen=True, repr=False)  # `files` may contain secrets
class _OpenReach:
    """Opens the store in a process of an executor. Can be pickled."""

    store: PlannedStore
    files: dict[str, str]
    realm: str
    instance: str

    def __call__(self) -> Reach:
        return _ExecutorReach(self.store.open(), self)


class _ExecutorReach(Reach):
    """The store and files that a function can access on an executor."""

    def __init__(self, store: ReadStore, opening: _OpenReach) -> None:
        super().__init__(store.objects(opening.instance), Files(opening.files))
        self._store = store
        self._name = opening.realm

    def writable(self) -> ObjectStore:
        record = self._store.realm(self._name).record
        if record.instance != self.own.realm:
            raise StateError(f"realm {self._name!r} was dropped and created again during the job")
        return self._store.objects(record.instance, record.revisions)


class _WithReach:
    """The function that executors run: it opens the store, and applies a function to record batches."""

    def __init__(self, open: _OpenReach, function: BatchFunction) -> None:
        self._open = open
        self._function = function

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from self._function(self._open(), batches)


def _each_item(
    reach: Reach, batches: Iterable[pa.RecordBatch], *, function: MapFunction[I, R]
) -> Iterator[pa.RecordBatch]:
    """Yield positions and results, from positions and items."""
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
    reach: Reach, batches: Iterable[pa.RecordBatch], *, parts: Sequence[P], function: ScanFunction[P]
) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of parts, from numbers of parts."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from function(reach, parts[number])
