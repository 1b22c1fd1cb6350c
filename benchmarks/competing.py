"""Processes of one thread that commit to one catalog, beside as many threads of one process."""

from __future__ import annotations

import statistics
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.catalogs import NAMESPACE, Ours
from benchmarks.databases import database_of
from benchmarks.findings import Durability, Finding, LeftOut
from benchmarks.measuring import Figure, Rate, Sample, compare, in_turns
from benchmarks.processes import run_processes
from polaris_spark.errors import PolarisError

LEAST = 0.8
"""Required rate of the processes, relative to the rate of one process."""
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
    for scheme in schemes:
        try:
            with database_of(scheme, folder) as database:
                for number in writers:
                    for shared in (False, True):
                        store = database.uri(f"{number}-{'shared' if shared else 'each'}")
                        catalog = Catalog(store, str(folder / scheme), shared)
                        findings += _figures(scheme, catalog, number, rounds, seconds)
                if database.server is not None:
                    findings.append(Durability(scheme, database.server.durability))
        except PolarisError as error:
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


def _figures(scheme: str, catalog: Catalog, writers: int, rounds: int, seconds: float) -> list[Figure]:
    """Compare `writers` processes of one thread with one process of `writers` threads."""
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

    ours, threads = in_turns(rounds, [several, one])
    who = f"{scheme}, {writers} processes of 1 thread, {'one table' if catalog.shared else 'a table each'}"
    return [
        compare(
            f"property commits/s, {who}",
            ours,
            threads,
            least=LEAST,
            faultless=True,
            beside=f"ours, 1 process of {writers} threads",
        ),
        Figure(
            f"wait of a commit, {who}, ms",
            f"median {Sample(tuple(medians)).text(1)}, 99th percentile {Sample(tuple(p99s)).text(1)}",
            "",
            f"the fastest process made {max(spreads):.1f}x the commits of the slowest",
            "",
            met=True,
            samples={"median": Sample(tuple(medians)), "p99": Sample(tuple(p99s))},
        ),
    ]
