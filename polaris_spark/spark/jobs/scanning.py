"""Work on parts of a store (mostly splits of its rows), distributed to executors as one Spark job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from polaris_spark.spark.planned import PlannedStore
from polaris_spark.spark.reading import ReadStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

P = TypeVar("P")

Work = Callable[[ReadStore, P], "Iterable[pa.RecordBatch]"]
"""A function that produces record batches from one part of an open store.

It can be pickled: it is a module-level function, or a `partial` of a module-level function.
"""


def scanned(
    spark: SparkSession,
    store: PlannedStore,
    parts: Sequence[P],
    work: Work[P],
    schema: str,
    *,
    tasks: int | None = None,
) -> DataFrame:
    """Return the rows that executors produce from the parts of a store.

    Args:
        parts: parts of the store, such as splits; can be pickled.
        work: produces record batches from a part.
        schema: the columns of the record batches, as a Spark DDL string.
        tasks: maximum number of Spark tasks; default: one task for each part.
    """
    n = max(1, len(parts) if tasks is None else min(tasks, len(parts)))
    # Distribute numbers of parts: a table of the parts would be so small that Spark would put it into one task.
    return spark.range(0, len(parts), 1, n).mapInArrow(_EachPart(store, parts, work), schema)


class _EachPart(Generic[P]):
    """The function that executors run. Input: numbers of parts. Output: the results of the work on these parts."""

    def __init__(self, store: PlannedStore, parts: Sequence[P], work: Work[P]) -> None:
        self._store = store
        self._parts = parts
        self._work = work

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = self._store.open()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._work(store, self._parts[number])
