"""Work on many items, distributed to executors: items and results are MessagePack, and the work is pickled once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from polaris_spark.catalog.files import Files
from polaris_spark.commits.state import StoredObjects
from polaris_spark.maintenance.spreading import THREADS, Here, I, R, Reach, Work
from polaris_spark.spark.options import StoreLocation
from polaris_spark.spark.planned import PlannedStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_COLLECTED = 10_000
"""Above this number of items, the driver fetches results one partition at a time, to avoid holding all of them."""


class Executors:
    """Distributes work to executors, as one Spark job per call. Few items are processed in this process instead."""

    def __init__(
        self, spark: SparkSession, location: StoreLocation, files: Mapping[str, str], here: Here
    ) -> None:
        """
        Args:
            location: location of the store, with resolved secrets.
            files: properties of the FileIO that accesses the files.
            here: processes small numbers of items in this process.
        """
        self._spark = spark
        self._store = PlannedStore(location)
        self._files = dict(files)
        self._here = here

    def __call__(self, work: Work[I, R], items: Sequence[I]) -> Iterator[R]:
        """Yield the results, in any order."""
        if len(items) <= work.few:
            yield from self._here(work, items)
            return
        import pyarrow as pa

        encode = msgspec.msgpack.Encoder().encode
        # Spark cuts a local table into one slice per core. Round-robin order puts large neighboring items into
        # different slices.
        slices = self._spark.sparkContext.defaultParallelism
        dealt = [encode(item) for first in range(slices) for item in items[first::slices]]
        table = pa.table({"item": pa.array(dealt, pa.binary())})
        job = _Job(work, self._store, self._files)
        found = self._spark.createDataFrame(table).mapInArrow(job, "result binary")
        decode = msgspec.msgpack.Decoder(work.result).decode
        for row in found.toLocalIterator() if len(items) > _COLLECTED else found.collect():
            yield decode(row[0])


class _Job(Generic[I, R]):
    """The function that executors run. Input: items. Output: results."""

    def __init__(self, work: Work[I, R], store: PlannedStore, files: dict[str, str]) -> None:
        self._work = work
        self._store = store
        self._files = files

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        store = self._store.open()
        reach = Reach(lambda realm: StoredObjects(store.objects(realm)), Files(self._files))
        encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(self._work.item).decode

        def done(item: Any) -> bytes:
            return encode(self._work(reach, decode(item)))

        with ThreadPoolExecutor(THREADS) as pool:
            for batch in batches:
                results = list(pool.map(done, batch.column(0).to_pylist()))
                yield pa.RecordBatch.from_arrays([pa.array(results, pa.binary())], names=["result"])
