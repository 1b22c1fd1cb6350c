"""Errors as Spark's Python workers show them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def errors_without_traceback() -> Iterator[None]:
    """Have Spark show an error of this package by its message alone, if this process is one that Spark started.

    Spark's worker puts the traceback into the message of an error in planning, unless its environment says otherwise.
    The worker ends after such an error, so no other query's errors lose their traceback.
    """
    from polaris_spark.errors import PolarisError

    try:
        yield
    except PolarisError:
        spec = sys.modules["__main__"].__spec__
        if spec is not None and spec.name.startswith("pyspark."):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
