"""`loadTable` from Java through the JVM shim, compared with the same requests handled inside Python."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.catalogs import NAMESPACE, Ours
from benchmarks.jvm import JavaPrograms
from benchmarks.measurement import Figure, growth, in_turns, median_us

_CACHES = {
    "Iceberg's own cache of tables off": {"rest-table-cache.max-entries": "0"},
    "revalidated by ETag, as by default": {},
}


def measure(folder: Path, *, rounds: int, calls: int) -> list[Figure]:
    """Measure the ratio with Iceberg's cache of loaded tables off, and with the cache on."""
    ours = Ours(folder / "bridge", metadata_files="never")
    name, _ = ours.create("flights")
    path = f"v1/namespaces/{NAMESPACE}/tables/{name}"
    tag = ours.session.request("GET", path)[1]["ETag"]
    programs = JavaPrograms(folder)
    figures: list[Figure] = []
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
            printed = programs.run("LoadTable", NAMESPACE, name, calls * 5, *pairs)
            return float(printed.split("median ")[1])

        shim, python = in_turns(rounds, [through, inside])
        what = f"loadTable through the shim against inside Python, {what}, us"
        figures.append(growth(what, shim, python, "inside Python", 3))
    ours.close()
    return figures
