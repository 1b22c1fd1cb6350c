"""PySpark over the JVM that made a call: one `SparkContext` a process, one `SparkSession` a call."""

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
"""Set in a JVM that serves Spark Connect; here PySpark is not to be such a client."""

_guard = threading.Lock()


class Driver:
    """How to reach the Spark session of a call: a Py4J gateway of the JVM on its loopback interface."""

    def __init__(self, call: str, port: int, secret: str) -> None:
        self._call = call
        self._port = port
        self._secret = secret
        self._session: SparkSession | None = None

    def session(self) -> SparkSession:
        """The Spark session that the call came from, for the thread that asks.

        Its jobs carry the job group, tags and other properties of the caller's thread, and are cancelled with those.
        """
        if self._session is None:
            from pyspark.sql import SparkSession

            context = _context(self._call, self._port, self._secret)
            calls = _calls(context)
            self._session = SparkSession(context, calls.enter(self._call))
        return self._session

    def release(self) -> None:
        """Give the thread in the JVM back as it was."""
        if self._session is not None:
            _calls(self._session.sparkContext).leave()


def _calls(context: SparkContext) -> Any:
    jvm: Any = context._jvm
    return jvm.io.polarisspark.SparkCalls


def _context(call: str, port: int, secret: str) -> SparkContext:
    """PySpark's context over the JVM's, which a new one replaces when the JVM has a new one."""
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
        # It complains when the JVM hangs up, which is how every JVM ends.
        server.handle_error = lambda *_: None
        # PySpark makes the first session of a process the default one of the JVM, where there is one already.
        SparkSession(context, session)
        return context


def _gateway(port: int, secret: str) -> Any:
    """PySpark's gateway to a JVM that runs already, which it looks for in the environment."""
    from pyspark.java_gateway import launch_gateway

    for name in _REMOTE:
        os.environ.pop(name, None)
    # Whoever calls is told what fails; Py4J also logs it, not least when the JVM ends while garbage is given back.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    place = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ.update(place)
    try:
        return launch_gateway()  # type: ignore[no-untyped-call]  # PySpark leaves it untyped
    finally:
        for name in place:
            del os.environ[name]


def _choose_worker_python(jsc: Any) -> None:
    """Let workers run on the interpreter that Spark is configured with; on one machine, else on this one."""
    configured = jsc.getConf().get("spark.pyspark.python", "")
    if configured:
        os.environ["PYSPARK_PYTHON"] = configured
    elif jsc.master().startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
