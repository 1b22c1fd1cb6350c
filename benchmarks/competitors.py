"""Processes that commit to one catalog, beside as many threads of one process, and beside as many connections of
Iceberg's `JdbcCatalog` where it supports the database. Processes of one thread are also measured while one of them is
stopped again and again, beside as many processes that share nothing (each commits to a catalog in its own memory), and
beside as many that only send their requests to one process.
"""

from __future__ import annotations

import math
import statistics
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

from benchmarks import costs
from benchmarks.catalogs import NAMESPACE, Ours, properties_of
from benchmarks.databases import database_of
from benchmarks.findings import Durability, Finding, LeftOut
from benchmarks.jvm import JavaPrograms
from benchmarks.measurement import Figure, Rate, Sample, compare, in_turns, limited, total
from benchmarks.postgresql import new_database
from benchmarks.processes import Opened, run_processes
from benchmarks.sending import Sender, receiving
from polaris_spark.databases import FILE_SCHEMES
from polaris_spark.errors import PolarisError
from polaris_spark.rest.session import Session
from tests.servers.postgresql import PostgreSQL

LEAST = 0.8
"""Required rate of the processes, relative to the rate of one process."""
LEAST_OF_JDBC = {False: 1.0, True: 3.0}
"""Required rate of the processes, relative to `JdbcCatalog`: with a table each, and with one table for all."""
MOST_OF_MEDIAN = 5.0
"""Largest 99th percentile of the time of a commit, relative to the median."""
MOST_OF_SLOWEST = 2.0
"""Largest rate of the fastest process, relative to the rate of the slowest."""
LEAST_BESIDE_STOPPED = 0.8
"""Required rate of the other processes while one process is stopped half of the time, relative to their rate otherwise.
"""
MOST_WAIT_MS = 2_000.0
"""Longest time of a commit of the other processes meanwhile, in milliseconds."""
PAUSE_MS = 30.0
"""Pause before a commit in milliseconds, about the time that each of 32 processes waits for the others."""
MOST_DIVIDED = 8
"""Number of writers up to which they are also divided into processes of several threads."""
_SHARED = "shared"


class Catalog(NamedTuple):
    """A catalog to which the processes commit."""

    store: str
    folder: str
    shared: bool
    """Whether all writers change one table, instead of a table each."""
    address: str = ""
    """Address of the process that answers the requests of all writers; empty if each process answers its own."""


def measure(
    folder: Path, *, rounds: int, seconds: float, writers: Sequence[int], schemes: Sequence[str]
) -> list[Finding]:
    """Compare processes with threads on each database.

    Args:
        writers: numbers of writers.
        schemes: URI schemes of the databases.
    """
    findings: list[Finding] = [_cost_of_pauses(folder, rounds, seconds)]
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


def _cost_of_pauses(folder: Path, rounds: int, seconds: float) -> Figure:
    """Compare the processor time of a commit after a pause with that of a commit in a loop, in one process that shares
    nothing. The work is the same, but after a pause, the caches of the processor hold the data of other programs."""

    def cost_us(pause_ms: float) -> float:
        commits, end, used = 0, time.monotonic() + seconds, 0.0
        while time.monotonic() < end:
            time.sleep(pause_ms / 1_000)
            begun = time.process_time()
            commit(0, commits)
            used += time.process_time() - begun
            commits += 1
        return used / commits * 1e6

    with committing(Catalog("memory:", str(folder / "pauses"), shared=False), 0) as commit:
        cost_us(0.0)
        paused, loop = in_turns(rounds, [partial(cost_us, PAUSE_MS), partial(cost_us, 0.0)])
    what = f"processor time of a commit in memory after a pause of {PAUSE_MS:g} ms, us"
    return compare(what, paused, loop, beside="ours, in a loop", smaller=True)


@contextmanager
def committing(catalog: Catalog, process: int) -> Iterator[Callable[[int, int], None]]:
    """Return a function that makes property commits."""
    session = cast("Session", Sender(catalog.address)) if catalog.address else None
    ours = Ours(Path(catalog.folder), metadata_files="never", store=catalog.store, session=session)
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


class Shape(NamedTuple):
    """How the writers are divided into processes, and the results of their rounds."""

    processes: int
    threads: int
    medians: list[float]
    p99s: list[float]
    spreads: list[float]
    """Rate of the fastest process relative to the slowest."""

    @property
    def text(self) -> str:
        """The number of processes and of their threads, in words."""
        counted = ((self.processes, "process", "es"), (self.threads, "thread", "s"))
        return " of ".join(f"{number} {word}{ending * (number > 1)}" for number, word, ending in counted)


def rates_of(shape: Shape, seconds: float, opened: Opened, catalog: Catalog) -> list[Rate]:
    """Run the processes of a shape and return their rates. Add the times of commits and the spread to the shape."""
    rates = run_processes(shape.processes, shape.threads, seconds, opened, catalog)
    times = sorted(time for rate in rates for time in rate.milliseconds)
    shape.medians.append(statistics.median(times))
    shape.p99s.append(times[min(len(times) - 1, int(len(times) * 0.99))])
    shares = sorted(rate.per_second for rate in rates)
    shape.spreads.append(shares[-1] / max(shares[0], 1e-9))
    return rates


def _shapes(writers: int) -> list[Shape]:
    """Return the divisions of the writers to measure. The last one is a single process."""
    divisors = [number for number in range(writers, 0, -1) if writers % number == 0]
    if writers > MOST_DIVIDED:
        divisors = [writers, 1]
    return [Shape(number, writers // number, [], [], []) for number in divisors]


def _figures(
    scheme: str,
    catalog: Catalog,
    writers: int,
    rounds: int,
    seconds: float,
    jdbc: Callable[[], Rate] | None,
) -> list[Figure]:
    """Compare processes with one process of as many threads, with `JdbcCatalog`, with processes that share nothing,
    with processes that send their requests to one, and with a run in which one of the processes is stopped half of the
    time."""
    alone: list[float] = []
    longest: list[float] = []

    def reached(shape: Shape) -> Rate:
        rates = rates_of(shape, seconds, committing, catalog)
        if shape.processes == writers:
            alone.append(sum(rate.per_second for rate in rates[1:]))
        return total(rates)

    def beside_stopped() -> Rate:
        others = run_processes(writers, 1, seconds, committing, catalog, stop_first=True)[1:]
        longest.append(max(rate.milliseconds[-1] for rate in others))
        return total(others)

    def sharing_nothing() -> Rate:
        return total(run_processes(writers, 1, seconds, committing, catalog._replace(store="memory:")))

    def sending_to_one() -> Rate:
        address = f"{catalog.folder}/socket"
        properties = properties_of(Path(catalog.folder), "never", catalog.store)
        with receiving(properties, address):
            return total(run_processes(writers, 1, seconds, committing, catalog._replace(address=address)))

    shapes = _shapes(writers)
    sides = [partial(reached, shape) for shape in shapes]
    *samples, beside, apart, sent, peer = in_turns(
        rounds, [*sides, beside_stopped, sharing_nothing, sending_to_one, jdbc or (lambda: Rate(0.0))]
    )
    where = f"{scheme}, {'one table' if catalog.shared else 'a table each'}"
    threads = f"ours, {shapes[-1].text}"
    figures = []
    for shape, ours in zip(shapes[:-1], samples, strict=False):
        what = f"property commits/s, {where}, {shape.text}"
        figures.append(compare(what, ours, samples[-1], least=LEAST, faultless=True, beside=threads))
        if jdbc and shape.threads == 1:
            least, name = LEAST_OF_JDBC[catalog.shared], f"JdbcCatalog, {writers} connections"
            figures.append(compare(what, ours, peer, least=least, faultless=True, beside=name))
        if shape.threads == 1:
            figures.append(compare(what, ours, apart, beside=f"ours, {shape.text} that share nothing"))
            figures.append(compare(what, ours, sent, beside=f"ours, {shape.text} that send to one"))
        figures.append(waits(shape, where))
    locks = scheme in FILE_SCHEMES  # a process that is stopped within a write keeps the lock
    figures.append(
        compare(
            f"property commits/s, {where}, the others of {shapes[0].text} while one is stopped half of the time",
            beside,
            Sample(tuple(alone)),
            least=None if locks else LEAST_BESIDE_STOPPED,
            beside="ours, while none is stopped",
        )
    )
    figures.append(
        limited(
            f"longest commit of the others meanwhile, {where}",
            Sample(tuple(longest)),
            math.inf if locks else MOST_WAIT_MS,
            "ms",
        )
    )
    return figures


def waits(shape: Shape, where: str) -> Figure:
    """Return a line about the times of commits, and about the shares of the processes."""
    pairs = zip(shape.p99s, shape.medians, strict=True)
    tail, spread = statistics.median(p99 / median for p99, median in pairs), statistics.median(shape.spreads)
    medians, p99s = Sample(tuple(shape.medians)), Sample(tuple(shape.p99s))
    return Figure(
        f"wait of a commit, {where}, {shape.text}, ms",
        f"median {medians.text(1)}, 99th percentile {p99s.text(1)}",
        "",
        f"{tail:.1f}x; the fastest process made {spread:.1f}x the commits of the slowest",
        f"at most {MOST_OF_MEDIAN:g}x; at most {MOST_OF_SLOWEST:g}x",
        met=tail <= MOST_OF_MEDIAN and spread <= MOST_OF_SLOWEST,
        samples={"median": medians, "p99": p99s},
    )
