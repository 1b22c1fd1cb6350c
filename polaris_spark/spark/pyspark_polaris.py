"""Installed as the top-level module ``pyspark_polaris``: Spark finds the data source by that name.

Spark imports every top-level module named ``pyspark_*`` before it runs any Python data source. An import error here
would break every other Python data source, so an installation that cannot import polaris_spark only lacks this one.
"""

import contextlib

with contextlib.suppress(Exception):
    from polaris_spark.spark.datasource import PolarisObjects as DefaultSource  # noqa: F401 - Spark takes it by name
