"""Views over the bridge: what the JVM asks of one, answered as status and JSON.

- `COLUMNS <view>`: the columns, as Spark writes a schema, and whether the view is counted here.
- `COUNT <view>`: how many rows it has.

The body has the options of the view, by name. A query would otherwise wait for Python workers of Spark's, of which each
kind is started by the first query that needs it, to learn columns, and to count what the index knows without reading.
"""

from __future__ import annotations

import json

from polaris_spark.errors import PolarisError
from polaris_spark.rest.errors import response_of
from polaris_spark.spark.options import ViewOptions
from polaris_spark.spark.reading import open_for_reading
from polaris_spark.spark.views import VIEWS
from polaris_spark.spark.views.columns import struct
from polaris_spark.spark.views.entities import EntityView
from polaris_spark.spark.views.view import AnyView, Request


def answer(method: str, body: str) -> tuple[int, str]:
    """Status and JSON for a request."""
    try:
        options = ViewOptions.parse(json.loads(body), VIEWS)
        view = VIEWS[options.view]
        if method == "COLUMNS":
            return 200, json.dumps({"schema": struct(view.columns).jsonValue(), "counted": _is_counted(view)})
        return 200, json.dumps({"count": count(view, options)})
    except PolarisError as error:
        response = response_of(error)
        return response.status, response.body


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
