"""All peers that are available from PyPI and Maven Central, compared with polaris_spark in the same workloads.

Python catalogs are called in this process, and Java catalogs in separate JVMs. Servers run in their own processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks import costs, servers
from benchmarks.catalogs import Measured, Ours, PyIceberg
from benchmarks.costs import Cost
from benchmarks.findings import Durability, Finding, Grid, LeftOut
from benchmarks.jvm import JavaPrograms
from benchmarks.maven import UnavailableError
from benchmarks.measurement import Rate, run_for
from benchmarks.postgresql import durability, new_database
from tests.servers.postgresql import PostgreSQL

WORKS = {
    "create:1": "tables created/s, 1 thread",
    "create:8": "tables created/s, 8 threads",
    "one-table:1": "commits/s, 1 thread",
    "one-table:8": "commits/s, one table, 8 threads",
    "one-table:32": "commits/s, one table, 32 threads",
    "many-tables:8": "commits/s, 8 threads, a table each",
    "load:1": "loadTable/s, 1 thread",
    "load:8": "loadTable/s, 8 threads",
}
_WARM_UP = 4
_LOADED_TABLES = 20

Side = Callable[[], Mapping[str, Cost]]
"""A function that measures one turn of a catalog: it runs every workload in an empty catalog."""

_numbers = count()


def measure(folder: Path, *, rounds: int, seconds: float, with_servers: bool) -> list[Finding]:
    """Measure all catalogs in all workloads.

    Args:
        seconds: duration of each workload in a turn, in seconds.
        with_servers: whether to start peers that are servers, and to download them if they are missing.
    """
    found: dict[str, list[Mapping[str, Cost]]] = {}
    with PostgreSQL() as server, ExitStack() as running:
        sides = {
            **_in_process(folder, server, seconds),
            **_java(folder, JavaPrograms(folder), server, seconds, running, with_servers=with_servers),
        }
        left_out = [LeftOut(name, side) for name, side in sides.items() if isinstance(side, str)]
        for _ in range(rounds):
            for name, side in sides.items():
                if not isinstance(side, str):
                    found.setdefault(name, []).append(side())
        set_to = durability(server)
    rows = {
        name: {title: costs.sample(turns, work) for work, title in WORKS.items()}
        for name, turns in found.items()
    }
    return [
        Grid("Catalogs beside each other", tuple(WORKS.values()), rows),
        *left_out,
        Durability("polaris_spark on SQLite", Ours.DURABILITY),
        PyIceberg.durability(),
        Durability("JdbcCatalog on SQLite", "rollback journal, synchronous=FULL (the driver's defaults)"),
        set_to,
        Durability("HadoopCatalog", "files without fsync"),
        Durability("InMemoryCatalog and Nessie", "none: in memory"),
    ]


def _in_process(folder: Path, server: PostgreSQL, seconds: float) -> dict[str, Side]:
    def place() -> Path:
        return folder / f"place{next(_numbers)}"

    def ours(mode: str) -> dict[str, Callable[[], Measured]]:
        return {
            f"polaris_spark, SQLite, {mode}": lambda: Ours(place(), metadata_files=mode),
            f"polaris_spark, PostgreSQL, {mode}": lambda: Ours(
                place(), metadata_files=mode, store=new_database(server).uri
            ),
        }

    opened: dict[str, Callable[[], Measured]] = {
        **ours("never"),
        **ours("every-commit"),
        "pyiceberg SqlCatalog, SQLite": lambda: PyIceberg(place()),
        "pyiceberg SqlCatalog, PostgreSQL": lambda: PyIceberg(place(), new_database(server).sqlalchemy),
    }
    return {name: _turn(opener, seconds) for name, opener in opened.items()}


def _turn(opener: Callable[[], Measured], seconds: float) -> Side:
    def turn() -> dict[str, Cost]:
        catalog = opener()
        try:
            reached = {work: _called(catalog, work, seconds) for work in WORKS}
        finally:
            catalog.close()
        return {work: Cost(rate.per_second, rate.failures) for work, rate in reached.items()}

    return turn


def _called(catalog: Measured, work: str, seconds: float) -> Rate:
    """Run a workload of `java/CatalogCosts.java` in this process."""
    kind, threads = work.split(":")
    call = _caller(catalog, kind, int(threads))
    run_for(int(threads), seconds / _WARM_UP, call)
    return run_for(int(threads), seconds, call)


def _caller(catalog: Measured, kind: str, threads: int) -> Callable[[int, int], object]:
    if kind == "create":
        return lambda _, __: catalog.create(f"t{next(_numbers)}")
    tables = {"one-table": 1, "many-tables": threads, "load": _LOADED_TABLES}[kind]
    handles = [catalog.create(f"t{next(_numbers)}") for _ in range(tables)]
    if kind == "load":
        return lambda thread, n: catalog.load(handles[(thread + n) % tables])
    return lambda thread, n: catalog.set_property(handles[thread % tables], f"{thread}-{n}")


def _java(
    folder: Path,
    programs: JavaPrograms,
    server: PostgreSQL,
    seconds: float,
    running: ExitStack,
    *,
    with_servers: bool,
) -> dict[str, Side | str]:
    """Return the sides that are called from Java; for a side that cannot be measured, the reason."""

    def turn(properties: Callable[[], Mapping[str, str]]) -> Side:
        return lambda: costs.run(programs, seconds, list(WORKS), properties())

    sides: dict[str, Side | str] = {
        "polaris_spark from Java, SQLite, never": turn(lambda: costs.ours(folder, "never")),
        "polaris_spark from Java, SQLite, every-commit": turn(lambda: costs.ours(folder, "every-commit")),
        "Iceberg JdbcCatalog, SQLite": turn(lambda: costs.jdbc_catalog(folder)),
        "Iceberg JdbcCatalog, PostgreSQL": turn(
            lambda: costs.jdbc_catalog(folder, new_database(server).jdbc)
        ),
        "Iceberg InMemoryCatalog": turn(
            lambda: costs.files_catalog(folder, "org.apache.iceberg.inmemory.InMemoryCatalog")
        ),
        "Iceberg HadoopCatalog": turn(
            lambda: costs.files_catalog(folder, "org.apache.iceberg.hadoop.HadoopCatalog")
        ),
    }
    started: dict[str, Callable[[], AbstractContextManager[dict[str, str]]]] = {
        "Iceberg REST adapter over JdbcCatalog, PostgreSQL": lambda: servers.rest_adapter(
            folder, programs, new_database(server).jdbc
        ),
        "Nessie 0.99, in memory": lambda: servers.nessie(folder),
    }
    for name, start in started.items():
        try:
            if not with_servers:
                raise UnavailableError("quick runs start no servers of peers")
            properties = running.enter_context(start())
        except UnavailableError as error:
            sides[name] = str(error)
        else:
            sides[name] = turn(partial(dict, properties))
    sides["Apache Polaris"] = "Maven Central does not carry its server"
    return sides
