"""Display of this package's errors by Spark's Python workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def errors_without_traceback() -> Iterator[None]:
    """Make Spark show an error of this package without its traceback, if Spark started this process.

    Spark's worker adds the traceback to the message of a planning error, unless an environment variable disables this.
    The worker exits after a planning error, so errors of other queries keep their tracebacks.
    """
    from polaris_spark.errors import PolarisError

    try:
        yield
    except PolarisError:
        spec = sys.modules["__main__"].__spec__
        if spec is not None and spec.name.startswith("pyspark."):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
