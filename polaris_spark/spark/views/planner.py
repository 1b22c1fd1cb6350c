"""Functions that answer requests of Spark's driver for a system view's columns, row count, and scan plan.

They run in the Python process behind the catalog. Without these functions, Spark would start a separate Python worker
for each kind of step: finding the data source, getting the columns, pushing filters, and planning. The
first queries would wait for these workers.
"""

from __future__ import annotations

import base64
import pickle
from typing import Any, TypeGuard

from pyspark.sql import datasource

from polaris_spark.errors import InputError
from polaris_spark.spark.logins import Granted, Login
from polaris_spark.spark.options import ViewOptions
from polaris_spark.spark.realm_reader import open_for_reading
from polaris_spark.spark.views import VIEWS
from polaris_spark.spark.views.columns import struct
from polaris_spark.spark.views.entities import EntityView
from polaris_spark.spark.views.reader import PartitionFunction, ViewReader
from polaris_spark.spark.views.view import AnyView, ScanRequest


def columns(options: dict[str, str]) -> dict[str, Any]:
    """Return a dict: `schema` is the Spark schema of a view as JSON, `counted` tells whether `count` supports the view.

    Raises:
        PolarisError: an option cannot be used.
    """
    view = VIEWS[ViewOptions.parse(options, VIEWS).view]
    return {"schema": struct(view.columns).jsonValue(), "counted": _is_counted(view)}


def plan(
    options: dict[str, str], columns: list[str], filters: list[list[Any]], granted: Granted | None = None
) -> dict[str, Any]:
    """Plan a scan of a view. Return a dict with the pickled `function` that Spark's workers call, and with the pickled
    `partitions` to call it with, all encoded as base64.

    Args:
        options: options of the view.
        columns: names of the columns to read.
        filters: for each filter: name of its class in `pyspark.sql.datasource`, column, and value. Times are
            microseconds since 1970. Rows that do not match the filters may still be read.
        granted: what the principal of the session may see; None if the options contain the credentials.
    Raises:
        PolarisError: an option cannot be used, or the store cannot be read.
    """
    parsed = ViewOptions.parse(options, VIEWS)
    by_name = {column.name: column for column in VIEWS[parsed.view].columns}
    schema = struct(by_name[name] for name in columns)
    reader = ViewReader(parsed, schema, granted)
    reader.pushFilters([getattr(datasource, name)((column,), value) for name, column, value in filters])
    partitions = reader.partitions()
    return {
        "function": _pickled((PartitionFunction(reader), schema)),
        "partitions": [_pickled(partition) for partition in partitions],
    }


def _pickled(value: object) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def count(options: dict[str, str], granted: Granted | None = None) -> int:
    """Return the number of rows of a view. Count the entries of an index, without reading the view.

    Args:
        granted: what the principal of the session may see; None if the options contain the credentials.
    Raises:
        InputError: the rows of this view cannot be counted in this way.
        PolarisError: an option cannot be used, or the store cannot be read.
    """
    parsed = ViewOptions.parse(options, VIEWS)
    view = VIEWS[parsed.view]
    if not _is_counted(view):
        raise InputError(
            f"the rows of the view {parsed.view!r} cannot be counted in an index; read the view to count its rows"
        )
    store = open_for_reading(parsed.location)
    granted = granted or Login(parsed.realm, parsed.credential).granted(store, view.shown)
    store = store.within(granted.scope)
    return sum(
        view.count(store, task) for tasks in view.partitions(ScanRequest(parsed, store)) for task in tasks
    )


def _is_counted(view: AnyView) -> TypeGuard[EntityView[Any]]:
    return isinstance(view, EntityView) and view.one_each
