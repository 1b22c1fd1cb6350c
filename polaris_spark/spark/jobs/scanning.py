"""Work on parts of a store, splits of its rows mostly, spread over executors as one Spark job."""

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
"""What is made of one part of an open store. Can be pickled: a function of a module, or a `partial` of one."""


def scanned(
    spark: SparkSession,
    store: PlannedStore,
    parts: Sequence[P],
    work: Work[P],
    schema: str,
    *,
    tasks: int | None = None,
) -> DataFrame:
    """The rows that executors make of the parts of a store.

    Args:
        parts: such as splits; can be pickled.
        work: makes record batches of a part.
        schema: the columns of these batches, as Spark writes them.
        tasks: into how many tasks the parts are put; one for each unless given.
    """
    n = max(1, len(parts) if tasks is None else min(tasks, len(parts)))
    # By number, or Spark would put so few bytes into one task.
    return spark.range(0, len(parts), 1, n).mapInArrow(_EachPart(store, parts, work), schema)


class _EachPart(Generic[P]):
    """What executors run: numbers of parts in, what the work makes of these parts out."""

    def __init__(self, store: PlannedStore, parts: Sequence[P], work: Work[P]) -> None:
        self._store = store
        self._parts = parts
        self._work = work

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = self._store.open()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._work(store, self._parts[number])
