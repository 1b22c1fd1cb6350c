"""The catalog in PySpark programs: one call that configures a session's builder."""

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

from polaris_spark.config import Secret, StoreURI
from polaris_spark.errors import InputError, StateError
from polaris_spark.secret_options import REFERENCE, holds_secret, is_secret, without_secrets
from polaris_spark.spark.session_checks import check_at_start, check_properties, has_package

log = logging.getLogger(__name__)

CATALOG_CLASS = "io.polarisspark.PolarisCatalog"
ICEBERG_PACKAGE = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"

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
    """Add the catalog to a session that is about to be built, and leave everything else as it is.

    Args:
        builder: of a classic session. Jars, packages and extensions that it already names are kept. Where a JVM runs
            already, as under spark-submit, jars and packages are those that it was started with.
        name: the catalog's name in SQL, as in ``SELECT * FROM polaris.namespace.table``.
        store: the URI of the database that holds the catalog, without a password.
        warehouse: the URI or path under which tables have their files. May be left out if the catalog exists, which
            keeps the one that it was created with.
        iceberg_jar: path of Iceberg's runtime for Spark, a local file, for machines that reach no Maven repository.
            Without it, Spark downloads `ICEBERG_PACKAGE`.
        properties: further catalog properties with underscores for dashes (``metadata_files="never"``); names
            with dots are given as ``**{"store.password": "env:NAME"}``. None is as if left out. A secret that is not
            given as ``env:NAME`` is put into an environment variable of this process. The JVM, which is started
            afterwards, reads it there, because every user can read the options on the JVM's command line.

    Returns:
        the same builder. Its `getOrCreate` raises `StateError` if a session runs already that was started without
        this catalog, because such a session takes no jars any more: stop it, or restart the notebook's kernel.

    Raises:
        InputError: the name cannot be a catalog's name, the store URI is malformed, the store or warehouse contains a
            password, a property is misspelled or has a value that cannot be used, the Iceberg jar does not exist, or a
            secret cannot be the value of an environment variable.
        MissingLibraryError: the driver of the store's database is not installed; the message names the extra.
        StateError: this installation has no jar.
    """
    if not name.isidentifier():
        raise InputError(f"a catalog is named by a plain SQL identifier such as 'polaris', not {name!r}")
    for option, uri in (("store", store), ("warehouse", warehouse)):
        if uri is not None and holds_secret(str(uri)):
            raise InputError(
                f"{option} {without_secrets(str(uri))!r} has a secret in it, which the configuration would show to "
                "everyone; take it out and give it as an option of its own, such as store.password"
            )
    lineage = {"type": "rest", "uri": lineage_uri(store)}
    given = {"store": store, "warehouse": warehouse, "python": sys.executable, **lineage, **properties}
    settings = {key.replace("_", "-"): _text(value) for key, value in given.items() if value is not None}
    check_properties(settings)
    if iceberg_jar is None:
        _append(builder, "spark.jars.packages", ICEBERG_PACKAGE)
    else:
        _add_jar(builder, _file(iceberg_jar))
    _add_jar(builder, jar())
    _append(builder, "spark.sql.extensions", ICEBERG_EXTENSIONS)
    prefix = f"spark.sql.catalog.{name}"
    options = {prefix: CATALOG_CLASS}
    options |= {f"{prefix}.{key}": _without_secret(name, key, text) for key, text in settings.items()}
    for option, text in options.items():
        builder.config(option, text)
    use_this_python_in_local_workers(builder)
    check_at_start(builder, name, options, (CATALOG_CLASS, ICEBERG_EXTENSIONS))
    return builder


def _file(path: str | os.PathLike[str]) -> str:
    """The absolute path of a file, as Spark's lists of jars have it."""
    found = os.path.abspath(path)
    if not os.path.isfile(found) or "," in found:
        raise InputError(
            f"iceberg_jar is {os.fspath(path)!r}; it is the path of a jar on this machine, without a comma"
        )
    return found


def lineage_uri(store: str) -> str:
    """The property `uri` of a catalog: the URI of its store, without user and options.

    The catalog does not use the properties `type` and `uri`. The listener of OpenLineage needs both to find the
    datasets of an Iceberg catalog, and writes `uri` into its events, so it names the store and shows nothing else.

    Raises:
        StoreURIError: the store URI is malformed.
    """
    text = str(replace(StoreURI.parse(store), user=None, password=None, options={}))
    return text + "/" if text.endswith(":") else text


def jar() -> str:
    """Return the path of the jar for Spark that this installation holds.

    It also serves other engines whose Iceberg runtime is shaded, such as Flink's.

    Raises:
        StateError: there is no jar, as in a source tree that was never installed.
    """
    return _packaged_jar(core=False)


def core_jar() -> str:
    """Return the path of the jar for JVM programs that use `iceberg-core` itself, not a shaded runtime.

    Raises:
        StateError: there is no jar, as in a source tree that was never installed.
    """
    return _packaged_jar(core=True)


def _packaged_jar(*, core: bool) -> str:
    folder = files("polaris_spark").joinpath("jars")
    found = [str(path) for path in folder.iterdir() if path.name.endswith(".jar")] if folder.is_dir() else []
    jars = [path for path in found if path.endswith("-core.jar") == core]
    if len(jars) != 1:
        raise StateError(
            f"expected one jar in {folder}, found {len(jars)}; "
            "install the package (pip install -e . in a source tree), which builds it"
        )
    return jars[0]


def _add_jar(builder: SparkSession.Builder, path: str) -> None:
    """Have the JVM that is about to be started load a jar, with those that the builder names.

    Not by the builder's `spark.jars`: PySpark puts it in the place of the list to which Spark has added the packages
    by then, so that executors of a cluster would not get these.
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
    """Whether a JVM is running already, so that options configured now do not appear on its command line."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or SparkContext._gateway is not None


def _without_secret(catalog: str, option: str, text: str) -> str:
    """The value of an option as it may stand on the command line of the JVM: `env:NAME` instead of a secret.

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
    # PySpark's builder has no public way to ask what it holds, and setting a list replaces it.
    options: dict[str, Any] = builder._options
    return options


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def use_this_python_in_local_workers(builder: SparkSession.Builder) -> None:
    """Let a local master's workers run on this interpreter, where they find this package.

    Spark would start the one that `PYSPARK_PYTHON` names, or whichever ``python3`` comes first on the PATH, which
    is another one if a virtual environment is not activated. An interpreter that has this package is kept. On a
    cluster paths differ, under spark-submit the JVM runs already, and `spark.pyspark.python` is left alone.
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
