"""Processes of one thread that commit to one catalog, beside as many threads of one process, and beside as many
connections of Iceberg's `JdbcCatalog` where it supports the database."""

from __future__ import annotations

import statistics
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks import costs
from benchmarks.catalogs import NAMESPACE, Ours
from benchmarks.databases import database_of
from benchmarks.findings import Durability, Finding, LeftOut
from benchmarks.jvm import JavaPrograms
from benchmarks.measurement import Figure, Rate, Sample, compare, in_turns
from benchmarks.postgresql import new_database
from benchmarks.processes import run_processes
from polaris_spark.errors import PolarisError
from tests.servers.postgresql import PostgreSQL

LEAST = 0.8
"""Required rate of the processes, relative to the rate of one process."""
LEAST_OF_JDBC = {False: 1.0, True: 3.0}
"""Required rate of the processes, relative to `JdbcCatalog`: with a table each, and with one table for all."""
MOST_OF_MEDIAN = 5.0
"""Largest 99th percentile of the time of a commit, relative to the median."""
MOST_OF_SLOWEST = 2.0
"""Largest rate of the fastest process, relative to the rate of the slowest."""
_SHARED = "shared"


class Catalog(NamedTuple):
    """A catalog to which the processes commit."""

    store: str
    folder: str
    shared: bool
    """Whether all writers change one table, instead of a table each."""


def measure(
    folder: Path, *, rounds: int, seconds: float, writers: Sequence[int], schemes: Sequence[str]
) -> list[Finding]:
    """Compare processes with threads on each database.

    Args:
        writers: numbers of writers.
        schemes: URI schemes of the databases.
    """
    findings: list[Finding] = []
    programs = JavaPrograms(folder)
    for scheme in schemes:
        try:
            with database_of(scheme, folder) as database:
                for number in writers:
                    for shared in (False, True):
                        store = database.uri(f"processes_{number}_{'shared' if shared else 'each'}")
                        catalog = Catalog(store, str(folder / scheme), shared)
                        jdbc = _jdbc_catalog(
                            programs, scheme, folder, database.server, number, seconds, shared=shared
                        )
                        findings += _figures(scheme, catalog, number, rounds, seconds, jdbc)
                if database.server is not None:
                    findings.append(Durability(scheme, database.server.durability))
        except (PolarisError, RuntimeError) as error:
            findings.append(LeftOut(scheme, str(error)))
    return findings


@contextmanager
def committing(catalog: Catalog, process: int) -> Iterator[Callable[[int, int], None]]:
    """Return a function that makes property commits."""
    ours = Ours(Path(catalog.folder), metadata_files="never", store=catalog.store)
    handles: dict[int, object] = {}
    run = uuid.uuid4().hex[:8]  # rounds share the catalog

    def handle_of(thread: int) -> object:
        if not catalog.shared:
            return ours.create(f"table_{run}_{process}_{thread}")
        try:
            return ours.create(_SHARED)
        except RuntimeError:  # another writer was first
            loaded = ours.request("GET", f"v1/namespaces/{NAMESPACE}/tables/{_SHARED}")
            return _SHARED, loaded["metadata"]["table-uuid"]

    def commit(thread: int, number: int) -> None:
        if thread not in handles:
            handles[thread] = handle_of(thread)
        ours.set_property(handles[thread], str(number))

    try:
        yield commit
    finally:
        ours.close()


def _jdbc_catalog(
    programs: JavaPrograms,
    scheme: str,
    folder: Path,
    server: object,
    writers: int,
    seconds: float,
    *,
    shared: bool,
) -> Callable[[], Rate] | None:
    """Return a function that measures `JdbcCatalog` with as many connections as writers, in one JVM, on a new database;
    None if it does not support the database."""
    if scheme not in ("sqlite", "postgresql"):
        return None
    work = f"{'one-table' if shared else 'many-tables'}:{writers}"

    def reached() -> Rate:
        url = new_database(server).jdbc if isinstance(server, PostgreSQL) else None
        properties = {**costs.jdbc_catalog(folder, url), "clients": str(writers)}
        cost = costs.run(programs, seconds, [work], properties)[work]
        return Rate(cost.value, cost.failures)

    return reached


def _figures(
    scheme: str,
    catalog: Catalog,
    writers: int,
    rounds: int,
    seconds: float,
    jdbc: Callable[[], Rate] | None,
) -> list[Figure]:
    """Compare `writers` processes of one thread with one process of `writers` threads, and with `JdbcCatalog`."""
    medians, p99s, spreads = [], [], []

    def several() -> Rate:
        rates = run_processes(writers, 1, seconds, committing, catalog)
        times = sorted(time for rate in rates for time in rate.milliseconds)
        medians.append(statistics.median(times))
        p99s.append(times[min(len(times) - 1, int(len(times) * 0.99))])
        shares = sorted(rate.per_second for rate in rates)
        spreads.append(shares[-1] / max(shares[0], 1e-9))
        return Rate(sum(rate.per_second for rate in rates), sum(rate.failures for rate in rates))

    def one() -> Rate:
        return run_processes(1, writers, seconds, committing, catalog)[0]

    ours, threads, *peers = in_turns(rounds, [several, one, *([jdbc] if jdbc else [])])
    who = f"{scheme}, {writers} processes of 1 thread, {'one table' if catalog.shared else 'a table each'}"
    what = f"property commits/s, {who}"
    beside = f"ours, 1 process of {writers} threads"
    figures = [compare(what, ours, threads, least=LEAST, faultless=True, beside=beside)]
    for peer in peers:
        least, beside = LEAST_OF_JDBC[catalog.shared], f"JdbcCatalog, {writers} connections"
        figures.append(compare(what, ours, peer, least=least, faultless=True, beside=beside))
    tail = statistics.median(p99 / median for p99, median in zip(p99s, medians, strict=True))
    spread = statistics.median(spreads)
    figures.append(
        Figure(
            f"wait of a commit, {who}, ms",
            f"median {Sample(tuple(medians)).text(1)}, 99th percentile {Sample(tuple(p99s)).text(1)}",
            "",
            f"{tail:.1f}x; the fastest process made {spread:.1f}x the commits of the slowest",
            f"at most {MOST_OF_MEDIAN:g}x; at most {MOST_OF_SLOWEST:g}x",
            met=tail <= MOST_OF_MEDIAN and spread <= MOST_OF_SLOWEST,
            samples={"median": Sample(tuple(medians)), "p99": Sample(tuple(p99s))},
        )
    )
    return figures
