"""Setup of the catalog in PySpark programs: `configure` adds it to the builder of a Spark session."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
from dataclasses import replace
from importlib.resources import files
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from polaris_spark.config import texts_of
from polaris_spark.errors import InputError, StateError
from polaris_spark.secret_options import REFERENCE, holds_secret, is_secret, without_secrets
from polaris_spark.spark.session_checks import check_at_start, check_properties, has_package
from polaris_spark.store_uris import Secret, StoreURI

log = logging.getLogger(__name__)

CATALOG_CLASS = "io.polarisspark.PolarisCatalog"
ICEBERG_PACKAGE = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
POLARIS_EXTENSIONS = "io.polarisspark.PolarisSparkSessionExtensions"
"""Session extension that parses the statements of materialized views, such as `REFRESH MATERIALIZED VIEW`."""

_NOT_IN_VARIABLES = re.compile(r"[^A-Za-z0-9]")


def configure(
    builder: SparkSession.Builder,
    name: str = "polaris",
    *,
    store: str,
    warehouse: str | None = None,
    iceberg_jar: str | os.PathLike[str] | None = None,
    **properties: Any,
) -> SparkSession.Builder:
    """Add the catalog to the builder of a Spark session. Other settings of the builder do not change.

    Args:
        builder: the builder of a classic session (not Spark Connect). Its jars, packages and extensions are kept. A JVM
            that is already running, for example under spark-submit, cannot load more jars and packages.
        name: the catalog's name in SQL, as in ``SELECT * FROM polaris.namespace.table``.
        store: the URI of the database that holds the catalog, without a password.
        warehouse: the URI or path under which the files of tables are stored. Optional if the catalog exists, because
            an existing catalog keeps its warehouse.
        iceberg_jar: local path of Iceberg's runtime jar for Spark, for machines without access to a Maven repository.
            Without this argument, Spark downloads `ICEBERG_PACKAGE`.
        properties: further catalog properties, with underscores instead of dashes (``metadata_files="never"``). Pass a
            name with dots as ``**{"store.password": "env:NAME"}``. A property with the value None is ignored. A secret
            that is not given as ``env:NAME`` is stored in an environment variable of this process, and the JVM reads
            this variable. Otherwise, every user could read the secret on the JVM's command line.

    Returns:
        the same builder. Its `getOrCreate` raises `StateError` if a running session was started without this catalog,
        because a running session cannot load more jars. Stop that session, or restart the notebook's kernel.

    Raises:
        InputError: the name cannot be a catalog's name, the store URI is malformed, the store or warehouse contains a
            password, a property is misspelled or has a value that cannot be used, the Iceberg jar does not exist, or a
            secret cannot be the value of an environment variable.
        MissingLibraryError: the driver of the store's database is not installed; the message names the pip extra to
            install.
        StateError: this installation does not contain the catalog's jar.
    """
    if not name.isidentifier():
        raise InputError(
            f"the name of a catalog must be a plain SQL identifier such as 'polaris', not {name!r}"
        )
    _refuse_secrets(store=store, warehouse=warehouse)
    lineage = {"type": "rest", "uri": lineage_uri(store)}
    given = {"store": store, "warehouse": warehouse, "python": sys.executable, **lineage, **properties}
    settings = texts_of(given)
    check_properties(settings)
    _add_jars(builder, iceberg_jar)
    extensions = (ICEBERG_EXTENSIONS, POLARIS_EXTENSIONS)
    for extension in extensions:
        _append(builder, "spark.sql.extensions", extension)
    prefix = f"spark.sql.catalog.{name}"
    options = {prefix: CATALOG_CLASS}
    options |= {f"{prefix}.{key}": _without_secret(name, key, text) for key, text in settings.items()}
    for option, text in options.items():
        builder.config(option, text)
    use_this_python_in_local_workers(builder)
    check_at_start(builder, name, options, catalog_class=CATALOG_CLASS, extensions=extensions)
    return builder


def _refuse_secrets(**uris: str | None) -> None:
    """Refuse URIs that contain a password."""
    for option, uri in uris.items():
        if uri is not None and holds_secret(str(uri)):
            raise InputError(
                f"{option} {without_secrets(str(uri))!r} contains a secret, which everyone can read in the "
                "configuration; remove it and set a separate option, such as store.password"
            )


def _add_jars(builder: SparkSession.Builder, iceberg_jar: str | os.PathLike[str] | None) -> None:
    """Add the jars of Iceberg and of the catalog."""
    if iceberg_jar is None:
        _append(builder, "spark.jars.packages", ICEBERG_PACKAGE)
    else:
        _add_jar(builder, _file(iceberg_jar))
    _add_jar(builder, jar())


def _file(path: str | os.PathLike[str]) -> str:
    """Return the absolute path of a jar.

    Raises:
        InputError: the file does not exist, or the path contains a comma, which separates paths in Spark's lists.
    """
    found = os.path.abspath(path)
    if not os.path.isfile(found) or "," in found:
        raise InputError(
            f"iceberg_jar is {os.fspath(path)!r}; it must be the path of a jar on this machine, without a comma"
        )
    return found


def lineage_uri(store: str) -> str:
    """Return the property `uri` of a catalog: the URI of its store, without user, password and options.

    The catalog itself does not use the properties `type` and `uri`. The OpenLineage listener needs both to find the
    datasets of an Iceberg catalog, and writes `uri` into its events. So the URI must not contain secrets.

    Raises:
        StoreURIError: the store URI is malformed.
    """
    text = str(replace(StoreURI.parse(store), user=None, password=None, options={}))
    return text + "/" if text.endswith(":") else text


def jar() -> str:
    """Return the path of the catalog's jar for Spark in this installation.

    The jar also works in other engines with a shaded Iceberg runtime, such as Flink.

    Raises:
        StateError: there is no jar, for example because the source tree was never installed.
    """
    return _packaged_jar(core=False)


def core_jar() -> str:
    """Return the path of the catalog's jar for JVM programs that use `iceberg-core` instead of a shaded Iceberg
    runtime.

    Raises:
        StateError: there is no jar, for example because the source tree was never installed.
    """
    return _packaged_jar(core=True)


def _packaged_jar(*, core: bool) -> str:
    folder = files("polaris_spark").joinpath("jars")
    found = [str(path) for path in folder.iterdir() if path.name.endswith(".jar")] if folder.is_dir() else []
    jars = [path for path in found if path.endswith("-core.jar") == core]
    if len(jars) != 1:
        raise StateError(
            f"expected one jar in {folder}, found {len(jars)}; "
            "install the package (in a source tree: pip install -e .), which builds the jar"
        )
    return jars[0]


def _add_jar(builder: SparkSession.Builder, path: str) -> None:
    """Make the JVM load a jar when it starts, in addition to the jars in the builder's options.

    This does not set the builder's option `spark.jars`: Spark adds packages to its list of jars, and PySpark would then
    replace this list with the option's value. Executors of a cluster would not get the packages.
    """
    if _jvm_runs():
        return
    arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    lists = [str(_options(builder).pop("spark.jars", ""))]
    while "--jars" in arguments[:-1]:
        at = arguments.index("--jars")
        lists.append(arguments[at + 1])
        del arguments[at : at + 2]
    jars = [part.strip() for text in [*reversed(lists), path] for part in text.split(",") if part.strip()]
    os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join(["--jars", ",".join(dict.fromkeys(jars)), *arguments])


def _jvm_runs() -> bool:
    """Return whether a JVM is already running. Options that are set later do not appear on its command line."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or SparkContext._gateway is not None


def _without_secret(catalog: str, option: str, text: str) -> str:
    """Return the value of an option for the JVM's command line. A secret is replaced by `env:NAME`, and stored in the
    environment variable NAME.

    Raises:
        InputError: the secret cannot be the value of an environment variable.
    """
    if text.startswith(REFERENCE) or not is_secret(option, text) or _jvm_runs():
        return text
    words = _NOT_IN_VARIABLES.sub(lambda found: f"_{ord(found[0]):x}_", f"{catalog}_{option}")
    variable = f"POLARIS_SPARK_{words}"
    os.environ[variable] = Secret(text).reveal()
    return f"{REFERENCE}{variable}"


def _append(builder: SparkSession.Builder, key: str, entry: str) -> None:
    present = [part.strip() for part in str(_options(builder).get(key, "")).split(",") if part.strip()]
    if entry not in present:
        builder.config(key, ",".join([*present, entry]))


def _options(builder: SparkSession.Builder) -> dict[str, Any]:
    # PySpark's builder has no public method to read its options, and setting a list option replaces the list.
    options: dict[str, Any] = builder._options
    return options


def use_this_python_in_local_workers(builder: SparkSession.Builder) -> None:
    """Make Spark's Python workers use this interpreter if the master is local.

    By default, Spark uses the interpreter in `PYSPARK_PYTHON`, or else the first ``python3`` on the PATH. That
    ``python3`` cannot import this package if the package is in a virtual environment that is not activated. If the
    interpreter in `PYSPARK_PYTHON` can import this package, it is kept. Nothing changes on a cluster (its paths
    differ), under spark-submit (its JVM is already running), or if `spark.pyspark.python` is set.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    options = _options(builder)
    master = str(options.get("spark.master", os.environ.get("MASTER", "local")))
    if master.startswith("local") and not options.get("spark.pyspark.python"):
        chosen = os.environ.get("PYSPARK_PYTHON")
        if chosen and chosen != sys.executable and not has_package(chosen):
            log.warning(
                "PYSPARK_PYTHON is %s, which lacks polaris_spark; workers run on %s", chosen, sys.executable
            )
            chosen = None
        os.environ["PYSPARK_PYTHON"] = chosen or sys.executable
