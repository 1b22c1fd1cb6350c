"""Functions that return a view's columns, the number of its rows, and the partitions of a scan to Spark's driver.

They run in the Python process behind the catalog. Without them, a query would wait for several Python workers of Spark:
one to find and create the data source, others to get the columns, to push filters, to plan, and to count rows that the
index can count without reading contents. Spark starts each kind of worker for the first query that needs it.
"""

from __future__ import annotations

import base64
import pickle
from typing import Any, TypeGuard

from pyspark.sql import datasource

from polaris_spark.errors import InputError
from polaris_spark.spark.options import ViewOptions
from polaris_spark.spark.realm_reader import open_for_reading
from polaris_spark.spark.view_reader import PartitionFunction, ViewReader
from polaris_spark.spark.views import VIEWS
from polaris_spark.spark.views.columns import struct
from polaris_spark.spark.views.entities import EntityView
from polaris_spark.spark.views.view import AnyView, ScanRequest


def columns(options: dict[str, str]) -> dict[str, Any]:
    """Return the columns of a view as a Spark schema, and whether `count` supports the view.

    Raises:
        PolarisError: an option cannot be used.
    """
    view = VIEWS[ViewOptions.parse(options, VIEWS).view]
    return {"schema": struct(view.columns).jsonValue(), "counted": _is_counted(view)}


def plan(options: dict[str, str], columns: list[str], filters: list[list[Any]]) -> dict[str, Any]:
    """Return the function and the partitions with which Spark's workers read columns of a view.

    Args:
        filters: name of a class in `pyspark.sql.datasource`, column and value of each filter. Times are microseconds
            since 1970. The result contains all rows that match all filters, and may contain further rows.
    Raises:
        PolarisError: for the same reasons as planning.
    """
    parsed = ViewOptions.parse(options, VIEWS)
    by_name = {column.name: column for column in VIEWS[parsed.view].columns}
    schema = struct(by_name[name] for name in columns)
    reader = ViewReader(parsed, schema)
    reader.pushFilters([getattr(datasource, name)((column,), value) for name, column, value in filters])
    partitions = reader.partitions()
    return {
        "function": _pickled((PartitionFunction(reader), schema)),
        "partitions": [_pickled(partition) for partition in partitions],
    }


def _pickled(value: object) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def count(options: dict[str, str]) -> int:
    """Return the number of rows of a view that the index alone can count.

    Raises:
        InputError: the rows can only be counted by reading the view.
        PolarisError: for the same reasons as planning and reading.
    """
    parsed = ViewOptions.parse(options, VIEWS)
    view = VIEWS[parsed.view]
    if not _is_counted(view):
        raise InputError(
            f"the index cannot count the rows of the view {parsed.view!r}; read the view to count them"
        )
    store = open_for_reading(parsed.location)
    return sum(
        view.count(store, task) for tasks in view.partitions(ScanRequest(parsed, store)) for task in tasks
    )


def _is_counted(view: AnyView) -> TypeGuard[EntityView[Any]]:
    return isinstance(view, EntityView) and view.one_each
