"""Runs of `java/CatalogCosts.java`, which makes the same calls from Java to any catalog that Iceberg can load."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

from benchmarks.jvm import JavaPrograms
from benchmarks.measurement import Sample

FILES = "LocalFiles"
"""Class name of the FileIO of all sides; see `java/LocalFiles.java`."""

_numbers = count(1)


class Cost(NamedTuple):
    """The result of one workload in one run."""

    value: float
    """Calls per second; for workloads such as `load@N`, microseconds per call."""
    failures: int
    p50: float = 0.0
    p99: float = 0.0


def run(
    programs: JavaPrograms, seconds: float, works: Sequence[str], properties: Mapping[str, str]
) -> dict[str, Cost]:
    """Run workloads in a separate JVM; return the result of each.

    Raises:
        RuntimeError: all calls of a workload failed, or the catalog cannot be opened.
    """
    pairs = [f"{name}={value}" for name, value in properties.items()]
    printed = programs.run("CatalogCosts", seconds, ",".join(works), *pairs)
    lines = [line.split() for line in printed.splitlines() if line.startswith("figure ")]
    return {
        name: Cost(float(value), int(failures), *map(float, times))
        for _, name, value, failures, *times in lines
    }


def sample(costs: Iterable[Mapping[str, Cost]], name: str) -> Sample:
    """Return the values and failures of one workload over several runs."""
    found = [cost[name] for cost in costs]
    return Sample(tuple(cost.value for cost in found), sum(cost.failures for cost in found))


def ours(folder: Path, metadata_files: str) -> dict[str, str]:
    """Return the properties of a new polaris_spark catalog on SQLite, accessed through the JVM shim."""
    place = _place(folder)
    return {
        "catalog-impl": "io.polarisspark.PolarisRESTCatalog",
        "store": f"sqlite:///{place}/polaris.db",
        "metadata-files": metadata_files,
        "python": sys.executable,
        "warehouse": f"file://{place}/warehouse",
        "io-impl": FILES,
    }


def jdbc_catalog(folder: Path, uri: str | None = None) -> dict[str, str]:
    """Return the properties of a new `JdbcCatalog`, on SQLite unless `uri` names another database.

    Args:
        uri: JDBC URL of the database.
    """
    place = _place(folder)
    return {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": uri or f"jdbc:sqlite:{place}/catalog.db",
        "jdbc.schema-version": "V1",
        "warehouse": f"file://{place}/warehouse",
        "io-impl": FILES,
    }


def files_catalog(folder: Path, implementation: str) -> dict[str, str]:
    """Return the properties of a new catalog that does not need a database."""
    return {
        "catalog-impl": implementation,
        "warehouse": f"file://{_place(folder)}/warehouse",
        "io-impl": FILES,
    }


def _place(folder: Path) -> Path:
    place = folder / f"catalog{next(_numbers)}"
    (place / "warehouse").mkdir(parents=True)
    return place
