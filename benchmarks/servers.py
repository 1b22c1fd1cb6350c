"""Peers that are servers. Each server runs only while it is measured."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks import costs
from benchmarks.jvm import JavaPrograms, newest_java
from benchmarks.maven import UnavailableError, class_path
from polaris_spark.testing.server import ReservedPort

_SECONDS_TO_START = 120
_JAVA_OF_NESSIE = 21


@contextmanager
def rest_adapter(folder: Path, programs: JavaPrograms, database: str) -> Iterator[dict[str, str]]:
    """Run Iceberg's REST adapter over `JdbcCatalog` on PostgreSQL; yield the properties of a client.

    Args:
        database: JDBC URL of the database.
    Raises:
        UnavailableError: the server is not available on this machine, or does not start.
    """
    place = folder / "rest-adapter"
    (place / "warehouse").mkdir(parents=True)
    environment = {
        "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
        "CATALOG_URI": database,
        "CATALOG_CATALOG_NAME": "adapter",
        "CATALOG_WAREHOUSE": f"file://{place}/warehouse",
        "CATALOG_IO__IMPL": costs.FILES,
    }
    jars = f"{class_path('rest-adapter', folder)}:{programs.classes}:{programs.hadoop}"
    command = ["java", "-cp", jars, "org.apache.iceberg.rest.RESTCatalogServer"]
    with ReservedPort() as port:
        uri = f"http://127.0.0.1:{port.number}"
        environment["CATALOG_REST_PORT"] = str(port.number)
        with _running(command, f"{uri}/v1/config", place, environment):
            yield {
                "catalog-impl": "org.apache.iceberg.rest.RESTCatalog",
                "uri": uri,
                "io-impl": costs.FILES,
            }


@contextmanager
def nessie(folder: Path) -> Iterator[dict[str, str]]:
    """Run Nessie's server, which stores everything in memory; yield the properties of a client.

    Raises:
        UnavailableError: the server is not available on this machine, or does not start.
    """
    java, version = newest_java()
    if version < _JAVA_OF_NESSIE:
        raise UnavailableError(f"its server needs Java {_JAVA_OF_NESSIE}, and there is Java {version} here")
    place = folder / "nessie"
    (place / "warehouse").mkdir(parents=True)
    with ReservedPort() as port, ReservedPort() as management:
        settings = {
            "nessie.version.store.type": "IN_MEMORY",
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(port.number),
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": str(management.number),
            "quarkus.otel.sdk.disabled": "true",
        }
        given = [f"-D{name}={value}" for name, value in settings.items()]
        command = [java, *given, "-jar", class_path("nessie", folder)]
        uri = f"http://127.0.0.1:{port.number}/api/v2"
        with _running(command, f"{uri}/config", place, {}):
            yield {
                "catalog-impl": "org.apache.iceberg.nessie.NessieCatalog",
                "uri": uri,
                "warehouse": f"file://{place}/warehouse",
                "io-impl": costs.FILES,
            }


@contextmanager
def _running(command: list[str], probe: str, place: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Run a server while the block runs. The block starts when the server answers the probe."""
    with open(place / "log", "wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=place,
            env={**os.environ, **environment},
        )
    try:
        _wait(process, probe, place / "log")
        yield
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], probe: str, log: Path) -> None:
    end = time.monotonic() + _SECONDS_TO_START
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(probe, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise UnavailableError(f"its server did not start: {log.read_text(errors='replace')[-500:]}")
