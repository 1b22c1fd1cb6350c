"""Connects PySpark to the JVM that called a procedure: one `SparkContext` per process, one `SparkSession` per call."""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_REMOTE = ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_API_MODE")
"""Environment variables that a JVM with a Spark Connect server may set. They are removed, because they would make
PySpark in this process a Connect client."""

_guard = threading.Lock()


class Driver:
    """Access to the Spark session that called a procedure, through the JVM's Py4J gateway on the loopback interface."""

    def __init__(self, call: str, port: int, secret: str) -> None:
        self._call = call
        self._port = port
        self._secret = secret
        self._session: SparkSession | None = None

    def session(self) -> SparkSession:
        """Return the Spark session from which the procedure was called, for use on the current thread.

        Jobs of this session have the job group, tags and other properties of the caller's thread. They are cancelled
        when that job group or those tags are cancelled.
        """
        if self._session is None:
            from pyspark.sql import SparkSession

            context = _context(self._call, self._port, self._secret)
            calls = _calls(context)
            self._session = SparkSession(context, calls.enter(self._call))
        return self._session

    def release(self) -> None:
        """Restore the state that the JVM's thread had before `session` was called."""
        if self._session is not None:
            _calls(self._session.sparkContext).leave()


def _calls(context: SparkContext) -> Any:
    jvm: Any = context._jvm
    return jvm.io.polarisspark.SparkCalls


def _context(call: str, port: int, secret: str) -> SparkContext:
    """Return the PySpark context of this process, which wraps the JVM's Spark context. Create it if there is none, or
    if the JVM's context that it wraps was stopped; it then wraps the context of the JVM's present session."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    with _guard:
        present = SparkContext._active_spark_context
        if present is not None and not present._jsc.sc().isStopped():
            return present
        SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None
        gateway = SparkContext._gateway or _gateway(port, secret)
        jvm: Any = gateway.jvm
        session = jvm.io.polarisspark.SparkCalls.defaultSession(call)
        jsc = jvm.org.apache.spark.api.java.JavaSparkContext(session.sparkContext())
        _choose_worker_python(jsc)
        context = SparkContext(gateway=gateway, jsc=jsc, conf=SparkConf(_jconf=jsc.getConf()))
        server: Any = context._accumulatorServer
        # The server reports an error when the JVM closes the connection, which every JVM does at its end.
        server.handle_error = lambda *_: None
        # PySpark makes the first session of a process the JVM's default session. The JVM already has a default
        # session, so pass that session here.
        SparkSession(context, session)
        return context


def _gateway(port: int, secret: str) -> Any:
    """Return PySpark's gateway to the running JVM. PySpark takes the gateway's address from environment variables, so
    they are set during the call."""
    from pyspark.java_gateway import launch_gateway
    from pyspark.logger import PySparkLogger

    for name in _REMOTE:
        os.environ.pop(name, None)
    # Callers receive every error. Py4J and PySpark would also log it, for example if the JVM ends while objects are
    # released, or a query is wrong.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(
        lambda record: record.module != "java_gateway"
    )  # Py4J uses the root logger, too
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    place = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ.update(place)
    try:
        return launch_gateway()  # type: ignore[no-untyped-call]  # PySpark leaves it untyped
    finally:
        for name in place:
            del os.environ[name]


def _choose_worker_python(jsc: Any) -> None:
    """Make Spark's Python workers use the interpreter in `spark.pyspark.python`.

    If it is not set and the master is local, the workers use `PYSPARK_PYTHON` or, by default, this process's
    interpreter.
    """
    configured = jsc.getConf().get("spark.pyspark.python", "")
    if configured:
        os.environ["PYSPARK_PYTHON"] = configured
    elif jsc.master().startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
