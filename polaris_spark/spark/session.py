"""The catalog in PySpark programs: one call that configures a session's builder."""

from __future__ import annotations

import os
import shlex
import sys
from importlib.resources import files
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from polaris_spark.errors import InputError, StateError

CATALOG_CLASS = "io.polarisspark.PolarisCatalog"
ICEBERG_PACKAGE = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


def configure(
    builder: SparkSession.Builder, name: str = "polaris", *, store: str, warehouse: str, **properties: Any
) -> SparkSession.Builder:
    """Add the catalog to a session that is about to be built, and leave everything else as it is.

    Args:
        builder: of a classic session. Jars, packages and extensions that it already names are kept. Where a JVM runs
            already, as under spark-submit, jars and packages are those that it was started with.
        name: the catalog's name in SQL, as in ``SELECT * FROM polaris.namespace.table``.
        store: the URI of the database that holds the catalog, without a password.
        warehouse: the URI or path under which tables have their files.
        properties: further catalog properties with underscores for dashes (``metadata_files="never"``); names
            with dots are given as ``**{"store.password": "env:NAME"}``. None is as if left out.

    Returns:
        the same builder.

    Raises:
        InputError: the name cannot be that of a catalog.
        StateError: this installation has no jar.
    """
    if not name.isidentifier():
        raise InputError(f"a catalog is named by a plain SQL identifier such as 'polaris', not {name!r}")
    _add_jar(builder, jar())
    _append(builder, "spark.jars.packages", ICEBERG_PACKAGE)
    _append(builder, "spark.sql.extensions", ICEBERG_EXTENSIONS)
    prefix = f"spark.sql.catalog.{name}"
    builder.config(prefix, CATALOG_CLASS)
    settings = {"store": store, "warehouse": warehouse, "python": sys.executable, **properties}
    for key, value in settings.items():
        if value is not None:
            builder.config(f"{prefix}.{key.replace('_', '-')}", _text(value))
    use_this_python_in_local_workers(builder)
    return builder


def jar() -> str:
    """Return the path of the jar for Spark that this installation holds.

    Raises `StateError` if there is none, as in a source tree that was never installed.
    """
    found = sorted(str(path) for path in files("polaris_spark").joinpath("jars").iterdir() if path.is_file())
    jars = [path for path in found if path.endswith(".jar")]
    if len(jars) != 1:
        raise StateError(
            f"expected one jar in {files('polaris_spark').joinpath('jars')}, found {len(jars)}; "
            "install the package (pip install -e . in a source tree), which builds it"
        )
    return jars[0]


def _add_jar(builder: SparkSession.Builder, path: str) -> None:
    """Have the JVM that is about to be started load a jar, with those that the builder names.

    Not by the builder's `spark.jars`: PySpark puts it in the place of the list to which Spark has added the packages
    by then, so that executors of a cluster would not get these.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ or SparkContext._gateway is not None:
        return
    arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    lists = [str(_options(builder).pop("spark.jars", ""))]
    while "--jars" in arguments[:-1]:
        at = arguments.index("--jars")
        lists.append(arguments[at + 1])
        del arguments[at : at + 2]
    jars = [part.strip() for text in [*reversed(lists), path] for part in text.split(",") if part.strip()]
    os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join(["--jars", ",".join(dict.fromkeys(jars)), *arguments])


def _append(builder: SparkSession.Builder, key: str, entry: str) -> None:
    present = [part.strip() for part in str(_options(builder).get(key, "")).split(",") if part.strip()]
    if entry not in present:
        builder.config(key, ",".join([*present, entry]))


def _options(builder: SparkSession.Builder) -> dict[str, Any]:
    # PySpark's builder has no public way to ask what it holds, and setting a list replaces it.
    options: dict[str, Any] = builder._options
    return options


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def use_this_python_in_local_workers(builder: SparkSession.Builder) -> None:
    """Let a local master's workers run on this interpreter, where they find this package.

    Spark would start whichever ``python3`` comes first on the PATH, which is another one if a virtual
    environment is not activated. On a cluster paths differ, under spark-submit the JVM runs already, and
    whoever set an interpreter knows better.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    options = _options(builder)
    master = str(options.get("spark.master", os.environ.get("MASTER", "local")))
    if master.startswith("local") and not options.get("spark.pyspark.python"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
