"""Reads of a system view: planned on the driver's machine, and executed on executors."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from polaris_spark.spark.logins import Granted, Login
from polaris_spark.spark.missing_rows import Begun, begun, sweeps_told, with_new_heads
from polaris_spark.spark.options import ViewOptions
from polaris_spark.spark.pruning import Condition, conditions
from polaris_spark.spark.realm_reader import open_for_reading
from polaris_spark.spark.task_store import PlannedStore
from polaris_spark.spark.views import VIEWS
from polaris_spark.spark.views.columns import chosen
from polaris_spark.spark.views.view import ScanRequest
from polaris_spark.spark.worker_errors import errors_without_traceback

if TYPE_CHECKING:
    import pyarrow as pa


class ViewPartition(InputPartition):
    """The input of one Spark task. Its `repr` shows no secret."""

    def __init__(self, store: PlannedStore, tasks: tuple[Any, ...], before: Begun | None = None) -> None:
        self.store = store
        self.tasks = tasks
        self.before = before

    def __repr__(self) -> str:
        return f"ViewPartition({self.store}, {len(self.tasks)} tasks)"


class ViewReader(DataSourceReader):
    """Plans a read of a system view on the driver's machine, and reads partitions on executors. Only the columns of the
    given schema are read."""

    def __init__(self, options: ViewOptions, schema: StructType, granted: Granted | None = None) -> None:
        """
        Args:
            granted: what the reading principal may see, if a session has checked it. Otherwise, the credentials in the
                options determine the principal.
        Raises:
            InputError: the schema names a column that the view does not have.
        """
        # The reader is pickled for executors. It holds names, because neither views nor columns can be pickled.
        self._options = options.without_credential()
        self._granted = granted
        self._login = Login(options.realm, options.credential)
        self._columns = [column.name for column in chosen(VIEWS[options.view].columns, schema, options.view)]
        self._conditions: dict[str, Condition] = {}
        self.pushFilters = _PushFilters(self._conditions if options.prune else {})  # type: ignore[method-assign]  # see its class

    def partitions(self) -> Sequence[InputPartition]:
        with errors_without_traceback():
            return with_new_heads(self._planned)

    def _planned(self) -> list[ViewPartition]:
        location = self._options.location.resolved()
        granted = self._granted or self._login.granted(
            open_for_reading(location), VIEWS[self._options.view].shown
        )
        store = PlannedStore(location, granted.scope)
        before = begun(store.open(), self._options.realm)
        request = ScanRequest(self._options, store.open(), self._conditions)
        return [
            ViewPartition(store, tasks, before) for tasks in VIEWS[self._options.view].partitions(request)
        ]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, ViewPartition):
            return
        view = VIEWS[self._options.view]
        by_name = {column.name: column for column in view.columns}
        store = partition.store.open()
        with sweeps_told(store, partition.before):
            yield from view.read(store, partition.tasks, [by_name[name] for name in self._columns])


class PartitionFunction:
    """The function that Spark's workers call to read pickled partitions.

    It is an object of this class, so pickle stores the name of the class. For a nested function, Spark would store
    bytecode, and the driver and the workers would need the same Python version.
    """

    def __init__(self, reader: ViewReader) -> None:
        self._reader = reader

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of partitions. Each of `batches` has one row, and its first column is a pickled partition."""
        for batch in batches:
            yield from self._reader.read(pickle.loads(batch.column(0)[0].as_py()))


class _PushFilters:
    """The method `pushFilters` of one reader. It stores the conditions of the filters, and returns all filters to
    Spark.

    Spark refuses a reader that overrides this method if `spark.sql.python.filterPushdown.enabled` is false, and the
    reader cannot read this setting. Spark detects an override by comparing `__func__`. This object has the `__func__`
    of the base class, so Spark accepts the reader with both settings.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, into: dict[str, Condition]) -> None:
        self._into = into

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self._into.update(conditions(filters))
        return filters
