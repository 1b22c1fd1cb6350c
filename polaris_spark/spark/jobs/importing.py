"""Metadata files read and written as rows by executors: the parallel part of an import."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from polaris_spark.catalog.files import Files
from polaris_spark.catalog.importing.reading import Portion, Result, write_portion
from polaris_spark.errors import StateError
from polaris_spark.spark.options import StoreLocation
from polaris_spark.spark.reading import machine, open_for_reading, refuse_other_machine

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

PORTIONS_PER_CORE = 1
"""Into how many portions each wave of an import is cut for each core. Tables are dealt out in turn, so portions are
about even; more of them cost more than they balance: a task takes some 40 ms to start, and reads 40 tables in that."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Result]).decode


class SparkRun:
    """Carries out portions of an import as a Spark job each time (`importing.importer.Run`)."""

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
            location: of the store, with secrets looked up.
            realm: name of the realm.
            instance: its instance id.
            file_options: of pyiceberg's FileIO.
        """
        self._spark = spark
        self._job = _Job(location, realm, instance, dict(file_options), machine())

    @property
    def portions(self) -> int:
        """How many portions keep all cores busy."""
        return PORTIONS_PER_CORE * self._spark.sparkContext.defaultParallelism

    def __call__(self, portions: Sequence[Portion]) -> Iterable[Result]:
        job = self._job.of(portions)
        found = self._spark.range(0, len(portions), 1, max(1, len(portions))).mapInArrow(
            job, "results binary"
        )
        return [result for row in found.collect() for result in _decode(row[0])]


class _Job:
    """What executors run: numbers of portions in, their results out."""

    def __init__(
        self,
        location: StoreLocation,
        realm: str,
        instance: str,
        file_options: dict[str, str],
        planned_on: str,
    ) -> None:
        self._location = location
        self._realm = realm
        self._instance = instance
        self._file_options = file_options
        self._planned_on = planned_on
        self._portions: list[Portion] = []

    def of(self, portions: Sequence[Portion]) -> _Job:
        """The job of these portions."""
        job = _Job(self._location, self._realm, self._instance, self._file_options, self._planned_on)
        job._portions = list(portions)
        return job

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        refuse_other_machine(self._location, self._planned_on)
        opened = open_for_reading(self._location)
        record = opened.realm(self._realm).record
        if record.instance != self._instance:
            raise StateError(f"realm {self._realm!r} was dropped and created anew meanwhile")
        store = opened.objects(record.instance, record.revisions)
        files = Files(self._file_options)
        for batch in batches:
            results = [
                _encode(list(write_portion(store, files, self._portions[number])))
                for number in batch.column(0).to_pylist()
            ]
            yield pa.RecordBatch.from_arrays([pa.array(results, pa.binary())], names=["results"])
