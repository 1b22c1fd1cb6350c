"""Shorter messages for this package's errors in Spark's Python workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def errors_without_traceback() -> Iterator[None]:
    """If the `with` block raises an error of this package in a Spark worker, make Spark show it without a traceback.

    Spark's worker adds a traceback to the message of a planning error, unless an environment variable disables this.
    Setting the variable does not affect other queries, because the worker exits after a planning error.
    """
    from polaris_spark.errors import PolarisError

    try:
        yield
    except PolarisError:
        spec = sys.modules["__main__"].__spec__
        if spec is not None and spec.name.startswith("pyspark."):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
