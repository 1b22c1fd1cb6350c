"""`loadTable` from Java through the shim, beside the same requests handled inside Python."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import as_file, files
from pathlib import Path

from polaris_spark.testing.bench.catalogs import NAMESPACE, Ours
from polaris_spark.testing.bench.measuring import Figure, in_turns, median_us

_CACHES = {
    "every call loads the table": {"rest-table-cache.max-entries": "0"},
    "revalidated by ETag, as by default": {},
}


def measure(folder: Path, *, rounds: int, calls: int) -> list[Figure]:
    """The ratio with Iceberg's cache of loaded tables off, and on."""
    import os

    ours = Ours(folder / "bridge", metadata_files="never")
    name, _ = ours.create("flights")
    path = f"v1/namespaces/{NAMESPACE}/tables/{name}"
    tag = ours.session.request("GET", path)[1]["ETag"]
    class_path = _class_path(folder)
    figures = []
    for what, extra in _CACHES.items():
        headers = {} if extra else {"If-None-Match": tag}
        options = {
            "store": f"sqlite:///{folder}/bridge/polaris.db",
            "warehouse": str(folder / "bridge" / "warehouse"),
            "catalog": "bench",
            "metadata-files": "never",
            "python": sys.executable,
            **extra,
        }

        def inside(headers: dict[str, str] = headers) -> float:
            return median_us(calls * 5, lambda: ours.session.request("GET", path, headers=headers))

        def through(options: dict[str, str] = options) -> float:
            pairs = [f"{key}={value}" for key, value in options.items()]
            with as_file(files("polaris_spark.testing.bench") / "LoadTable.java") as source:
                command = ["java", "-cp", class_path, str(source), NAMESPACE, name, str(calls * 5), *pairs]
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, env=dict(os.environ)
                )
            if done.returncode:
                raise RuntimeError(done.stderr)
            return float(done.stdout.split("median ")[1])

        shim, python = in_turns(rounds, [through, inside])
        ratio = shim / python
        what = f"loadTable through the shim against inside Python, {what}, us"
        figures.append(
            Figure(
                what,
                f"{shim:.0f}",
                f"{python:.0f} (Python)",
                f"{ratio:.1f}x the time",
                "at most 3x",
                ratio <= 3,
            )
        )
    ours.close()
    return figures


def _class_path(folder: Path) -> str:
    """Spark's jars, the shim, and the Iceberg runtime that Spark resolves."""
    import pyspark
    from pyspark.sql import SparkSession

    from polaris_spark.spark.session import configure

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    session = configure(builder, store=f"sqlite:///{folder}/unused.db", warehouse=str(folder)).getOrCreate()
    jars = session.sparkContext.getConf().get("spark.repl.local.jars", "")
    session.stop()
    local = [jar.removeprefix("file://") for jar in jars.split(",")]
    return ":".join([f"{Path(pyspark.__file__).parent}/jars/*", *local])
