"""Views over the bridge: what the JVM asks of one, answered as status and JSON.

- `COLUMNS <view>`: the columns, as Spark writes a schema, and whether the view is counted here.
- `COUNT <view>`: how many rows it has.
- `PLAN <view>`: the function that reads a partition in Spark's workers, and the partitions, pickled, in Base64.

The body has the options of the view, by name; that of `PLAN` has them as `options`, the names of `columns`, and
`filters` as name, column and value each. A query would otherwise wait for Python workers of Spark's, of which each kind
is started by the first query that needs it: to find and create the data source, to learn columns, to push filters, to
plan, and to count what the index knows without reading.
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
    """Status and JSON for a request."""
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
    """What Spark's workers need to read columns of a view.

    Args:
        filters: a class of `pyspark.sql.datasource` by name, a column and a value each, of which times are
            microseconds since 1970. All hold for the rows that are wanted; the rows given may include others.
    Raises:
        PolarisError: as planning does.
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
    """How many rows a view has that the index alone can count.

    Raises:
        PolarisError: as planning and reading do.
    """
    assert isinstance(view, EntityView)
    store = open_for_reading(options.location)
    return sum(
        view.count(store, task) for tasks in view.partitions(Request(options, store)) for task in tasks
    )


def _is_counted(view: AnyView) -> bool:
    return isinstance(view, EntityView) and view.one_each
