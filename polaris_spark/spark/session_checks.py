"""Early checks of the settings of `configure`. Otherwise, the first SQL statement would fail with a Java stack
trace."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from polaris_spark.backends import require_backend
from polaris_spark.catalog.entities.properties import given_by
from polaris_spark.config import Properties
from polaris_spark.errors import NoStoreError, StateError, StoreURIError
from polaris_spark.secret_options import REFERENCE
from polaris_spark.store_uris import StoreURI
from polaris_spark.system.connections import connect_store

_IMPORTABLE = "import importlib.util, sys; sys.exit(importlib.util.find_spec('polaris_spark') is None)"
_SECONDS = 60

_DERIVED = ("type", "uri", "python")
"""Options that `configure` adds itself. A running session is accepted even if it was started without these options."""

_first_options: dict[tuple[str, str], Mapping[str, str]] = {}
"""Catalog options of the first `configure` call for each catalog and application, by application id and catalog
name."""

_STOP_IT = "call stop() on it, or restart the notebook's kernel, and run configure(...).getOrCreate() again"


def check_properties(properties: Mapping[str, str]) -> None:
    """Refuse properties that the catalog would refuse when Spark loads the catalog.

    Args:
        properties: properties of the catalog, by name; the names have no prefix such as `spark.sql.catalog.NAME`.
    Raises:
        InputError: a name or value cannot be used, or a named environment variable is not set.
        StoreURIError: the store's URI is malformed, or its scheme is unknown.
        MissingLibraryError: the database's driver is not installed; the message names the pip extra to install.
        PolarisError: the store cannot be opened. A store that does not exist yet is accepted, unless `create` is false
            or the store's directory does not exist or cannot be written.
    """
    parsed = Properties.parse(properties)
    given_by(parsed)
    store = parsed.store
    if properties.get("python") != sys.executable:
        return  # another interpreter, with other drivers, opens the store
    require_backend(store.scheme)
    if store.address == "name":
        return
    if parsed.create and store.address == "path" and not os.path.exists(store.path):
        _refuse_uncreatable(store)
        return  # the store is created at its first use
    try:
        connect_store(store, parsed.store_options, create=False).close()
    except NoStoreError:
        if not parsed.create:
            raise


def _refuse_uncreatable(store: StoreURI) -> None:
    """Refuse a store whose files do not exist yet and cannot be created.

    Raises:
        StoreURIError: the directory does not exist, or this user cannot write to it.
    """
    where, directory = f"{store.scheme}://{store.path}", os.path.dirname(os.path.abspath(store.path))
    if not os.path.isdir(directory):
        raise StoreURIError(
            f"{where} cannot be created: the directory {directory} does not exist; check the path, or create the "
            "directory first"
        )
    if not os.access(directory, os.W_OK | os.X_OK):
        raise StoreURIError(f"{where} cannot be created: this user cannot write to the directory {directory}")


def check_at_start(
    builder: SparkSession.Builder,
    name: str,
    options: Mapping[str, str],
    *,
    catalog_class: str,
    extensions: Sequence[str],
) -> None:
    """Make the builder's `getOrCreate` raise an error if it would return a running session without the catalog.

    A running JVM cannot load more jars, and a running session cannot load more extensions. Without this check, the
    catalog would fail at the first statement.

    Args:
        name: the catalog's name.
        options: the catalog's options, by full name (`spark.sql.catalog.NAME...`).
        catalog_class: name of the catalog's class, which the JVM must be able to load.
        extensions: class names of the session extensions, which the session must have.
    """
    create = builder.getOrCreate

    def get_or_create() -> SparkSession:
        refuse_other_jvm(name, [catalog_class, *extensions])
        refuse_other_session(name, options, extensions)
        session = create()
        _first_options.setdefault((session.sparkContext.applicationId, name), dict(options))
        return session

    builder.getOrCreate = get_or_create  # type: ignore[method-assign]  # of this builder alone


def refuse_other_jvm(name: str, classes: Sequence[str]) -> None:
    """Raise an error if the JVM of this process was started without the catalog's jars. `name` is the catalog's name.

    Raises:
        StateError: the JVM of this process cannot load one of `classes`.
    """
    jvm: Any = SparkContext._jvm
    if jvm is None:
        return
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for each in classes:
        try:
            loader.loadClass(each)
        except Py4JJavaError:
            raise StateError(
                f"Spark is already running in this process, and was started without the jars of the catalog "
                f"{name!r}. Spark loads jars only at its start: restart the notebook's kernel or the program, and "
                "run configure(...).getOrCreate() before any other code that starts Spark"
            ) from None


def refuse_other_session(name: str, options: Mapping[str, str], extensions: Sequence[str]) -> None:
    """Raise an error if the running session lacks a session extension, or has different options for this catalog.

    If an earlier `configure` call set the catalog's options, the new options must equal the earlier options. Otherwise,
    if the session was started with a catalog of this name, each new option must have the same value in the session. The
    session may have additional options, for example from spark-defaults.conf. Options that were set with
    `spark.conf.set` are not compared.

    Args:
        name: the catalog's name.
        options: the catalog's options, by full name (`spark.sql.catalog.NAME...`).
        extensions: class names of the session extensions.
    Raises:
        StateError: the session lacks an extension, or has different options for the catalog.
    """
    context = SparkContext._active_spark_context
    if context is None:
        return
    running = dict(context.getConf().getAll())
    present = [part.strip() for part in running.get("spark.sql.extensions", "").split(",")]
    missing = [extension for extension in extensions if extension not in present]
    if missing == list(extensions):
        raise StateError(
            f"a Spark session is already running, and was started without the catalog {name!r}: {_STOP_IT}"
        )
    if missing:
        raise StateError(
            f"a Spark session is already running, and was started without {missing[0]} in spark.sql.extensions: "
            f"{_STOP_IT}"
        )
    first = _first_options.get((context.applicationId, name))
    difference = difference_of(name, options, running=running, first=first)
    if difference:
        raise StateError(f"a Spark session is already running, and was started {difference}: {_STOP_IT}")


def difference_of(
    name: str, options: Mapping[str, str], *, running: Mapping[str, str], first: Mapping[str, str] | None
) -> str:
    """Return the first difference between a catalog's new options and its options in a running session.

    The result is a phrase for a message, such as "without OPTION". It is empty if there is no difference, or if the
    session has no catalog of this name.

    Args:
        name: the catalog's name.
        options: the new options, by full name.
        running: all options that the session was started with.
        first: the catalog's options from the first `configure` call in this session; None if there was no such call.
    """
    prefix = f"spark.sql.catalog.{name}"
    before = running if first is None else first
    if prefix not in before:
        return ""
    derived = {f"{prefix}.{option}" for option in _DERIVED}
    for option, value in options.items():
        if option not in before and option not in derived:
            return f"without {option}"
        if not _same(before.get(option, value), value):
            return f"with another value of {option}"
    left_out = sorted(first.keys() - options.keys()) if first is not None else []
    return f"with {left_out[0]}, which is not given now" if left_out else ""


def _same(running: str, value: str) -> bool:
    """Return whether a running session's value equals `value`, or is `env:NAME` of a variable that contains `value`."""
    if running.startswith(REFERENCE):
        return value in (running, os.environ.get(running.removeprefix(REFERENCE)))
    return value == running


def has_package(python: str) -> bool:
    """Return whether the interpreter `python` exists and can import this package."""
    try:
        asked = subprocess.run(
            [python, "-c", _IMPORTABLE], capture_output=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0
