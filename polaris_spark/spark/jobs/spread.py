"""Work on many items spread over executors: items and results travel as MessagePack, the work is pickled once."""

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
"""The results of more items come one partition after the other, so that the driver need not hold all of them."""


class Executors:
    """Spreads work over executors, as a Spark job each time; few items are done here."""

    def __init__(
        self, spark: SparkSession, location: StoreLocation, files: Mapping[str, str], here: Here
    ) -> None:
        """
        Args:
            location: of the store, with secrets looked up.
            files: properties of the files' FileIO.
            here: does few items.
        """
        self._spark = spark
        self._store = PlannedStore(location)
        self._files = dict(files)
        self._here = here

    def __call__(self, work: Work[I, R], items: Sequence[I]) -> Iterator[R]:
        """The results, in any order."""
        if len(items) <= work.few:
            yield from self._here(work, items)
            return
        import pyarrow as pa

        encode = msgspec.msgpack.Encoder().encode
        # Spark cuts a local table into a slice for each core: dealt out in turn, heavy neighbours do not meet.
        slices = self._spark.sparkContext.defaultParallelism
        dealt = [encode(item) for first in range(slices) for item in items[first::slices]]
        table = pa.table({"item": pa.array(dealt, pa.binary())})
        job = _Job(work, self._store, self._files)
        found = self._spark.createDataFrame(table).mapInArrow(job, "result binary")
        decode = msgspec.msgpack.Decoder(work.result).decode
        for row in found.toLocalIterator() if len(items) > _COLLECTED else found.collect():
            yield decode(row[0])


class _Job(Generic[I, R]):
    """What executors run: items in, results out."""

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
