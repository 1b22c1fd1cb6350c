"""Registers the data source. It is installed as the top-level module ``pyspark_polaris``, a name that Spark searches
for.

Spark imports every top-level module named ``pyspark_*`` before it runs any Python data source. An import error here
would break all other Python data sources. If polaris_spark cannot be imported, this module therefore stays empty.
"""

import contextlib

with contextlib.suppress(Exception):
    from polaris_spark.spark.datasource import PolarisObjects as DefaultSource  # noqa: F401 - Spark takes it by name
