"""The data source `polaris-objects`: system views of a catalog's own data as DataFrames, read in parallel by executors.

    spark.read.format("polaris-objects").option("store", "sqlite:///path/catalog.db").option("view", "tables").load()

Planning reads the heads (newest commits) of references, and divides the work into ranges of keys, commits or database
rows. The partitions contain everything that executors need. The read shows the state at these heads; later commits are
not visible.

Spark runs each step of a query (such as finding data sources, planning and reading) in a separate Python process. The
process starts with the session's first query that needs the step. Each step therefore imports only what it needs.
If a view is read as a table of the namespace `system`, the Python process behind the catalog plans the read instead
(`polaris_spark.spark.views.planner`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from polaris_spark.spark.worker_errors import errors_without_traceback

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from polaris_spark.spark.feed_reader import FeedReader
    from polaris_spark.spark.views.reader import ViewReader

FORMAT = "polaris-objects"


class PolarisObjects(DataSource):
    """The class that Spark calls for `format("polaris-objects")`. `polaris_spark.spark.options` lists its options."""

    def __init__(self, options: dict[str, str]) -> None:
        """
        Raises:
            InputError: an option is missing, unknown, or cannot be used.
        """
        from polaris_spark.spark import python_workers
        from polaris_spark.spark.options import ViewOptions
        from polaris_spark.spark.views import VIEWS

        python_workers.spare_repeated_work()
        # The base class's `__init__` is not called: it would keep the raw options, including a password.
        with errors_without_traceback():
            self._options = ViewOptions.parse(options, VIEWS)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        from polaris_spark.spark.views import VIEWS
        from polaris_spark.spark.views.columns import struct

        return struct(VIEWS[self._options.view].columns)

    def reader(self, schema: StructType) -> ViewReader:
        from polaris_spark.errors import InputError
        from polaris_spark.spark.views.reader import ViewReader

        with errors_without_traceback():
            if given := self._options.stream.given:
                raise InputError(
                    f"these options are only for streams: {', '.join(given)}; remove them, or read a stream with "
                    "spark.readStream"
                )
            return ViewReader(self._options, schema)

    def streamReader(self, schema: StructType) -> FeedReader:  # noqa: N802 - Spark's name
        from polaris_spark.spark.feed_reader import FeedReader

        with errors_without_traceback():
            return FeedReader(self._options, schema)
