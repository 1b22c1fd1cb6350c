"""The parallel part of an import: executors read metadata files and write them as rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from polaris_spark.catalog.files import Files
from polaris_spark.catalog.importing.reading import Portion, Result, write_portion
from polaris_spark.errors import StateError
from polaris_spark.spark.jobs.scanning import scanned
from polaris_spark.spark.options import StoreLocation
from polaris_spark.spark.planned import PlannedStore
from polaris_spark.spark.reading import ReadStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

PORTIONS_PER_CORE = 1
"""Portions per core in each wave of an import.

Tables are assigned to portions in turn, so the portions have about equal size. More portions cost more than they gain
by balancing: starting a task takes about 40 ms, and a task reads 40 tables in this time.
"""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Result]).decode


class SparkRun:
    """An `importing.importer.Run` that processes portions of an import, as one Spark job per call."""

    def __init__(
        self,
        spark: SparkSession,
        location: StoreLocation,
        *,
        realm: str,
        instance: str,
        file_options: Mapping[str, str],
    ) -> None:
        """
        Args:
            location: location of the store, with resolved secrets.
            realm: name of the realm.
            instance: instance id of the realm.
            file_options: properties of pyiceberg's FileIO.
        """
        self._spark = spark
        self._store = PlannedStore(location)
        self._work = partial(_results, realm=realm, instance=instance, file_options=dict(file_options))

    @property
    def portions(self) -> int:
        """Number of portions that keeps all cores busy."""
        return PORTIONS_PER_CORE * self._spark.sparkContext.defaultParallelism

    def __call__(self, portions: Sequence[Portion]) -> Iterable[Result]:
        found = scanned(self._spark, self._store, portions, self._work, "results binary")
        return [result for row in found.collect() for result in _decode(row[0])]


def _results(
    opened: ReadStore, portion: Portion, *, realm: str, instance: str, file_options: dict[str, str]
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    record = opened.realm(realm).record
    if record.instance != instance:
        raise StateError(f"realm {realm!r} was dropped and created again during the import")
    store = opened.objects(record.instance, record.revisions)
    results = _encode(list(write_portion(store, Files(file_options), portion)))
    yield pa.RecordBatch.from_arrays([pa.array([results], pa.binary())], names=["results"])
