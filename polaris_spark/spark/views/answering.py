"""Views over the bridge: requests of the JVM about a view, answered with a status and JSON.

- `COLUMNS <view>`: return the columns as a Spark schema, and whether `COUNT` supports the view.
- `COUNT <view>`: return the number of rows.
- `PLAN <view>`: return the function that reads a partition in Spark's workers, and the partitions, pickled, in Base64.

The body contains the view's options, by name. The body of `PLAN` contains `options`, the names of `columns`, and
`filters`, each with name, column and value.

Without these requests, a query would wait for several Python workers of Spark, each started by the first query that
needs its kind: to find and create the data source, to get the columns, to push filters, to plan, and to count rows that
the index can count without reading contents.
"""

from __future__ import annotations

import base64
import json
import pickle
from typing import Any

from pyspark.sql import datasource

from polaris_spark.errors import PolarisError
from polaris_spark.rest.errors import response_of
from polaris_spark.spark.options import ViewOptions
from polaris_spark.spark.reading import open_for_reading
from polaris_spark.spark.view_reader import PartitionFunction, ViewReader
from polaris_spark.spark.views import VIEWS
from polaris_spark.spark.views.columns import struct
from polaris_spark.spark.views.entities import EntityView
from polaris_spark.spark.views.view import AnyView, Request


def answer(method: str, body: str) -> tuple[int, str]:
    """Answer a request; return status and JSON."""
    try:
        asked = json.loads(body)
        if method == "PLAN":
            return 200, json.dumps(plan(asked["options"], asked["columns"], asked["filters"]))
        options = ViewOptions.parse(asked, VIEWS)
        view = VIEWS[options.view]
        if method == "COLUMNS":
            return 200, json.dumps({"schema": struct(view.columns).jsonValue(), "counted": _is_counted(view)})
        return 200, json.dumps({"count": count(view, options)})
    except PolarisError as error:
        response = response_of(error)
        return response.status, response.body


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


def count(view: AnyView, options: ViewOptions) -> int:
    """Return the number of rows of a view that the index alone can count.

    Raises:
        PolarisError: for the same reasons as planning and reading.
    """
    assert isinstance(view, EntityView)
    store = open_for_reading(options.location)
    return sum(
        view.count(store, task) for tasks in view.partitions(Request(options, store)) for task in tasks
    )


def _is_counted(view: AnyView) -> bool:
    return isinstance(view, EntityView) and view.one_each
