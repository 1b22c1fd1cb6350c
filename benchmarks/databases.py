"""Each database compared with its bare driver: overhead of the backend's swap, and commit rates against bare swaps."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks import smallest
from benchmarks.bare import REALM, Client, open_bare
from benchmarks.findings import Durability, Finding, Grid, LeftOut
from benchmarks.measurement import Figure, Rate, Sample, compare, in_turns, median_us, run_for, total
from benchmarks.processes import run_processes
from benchmarks.trips import round_trips
from polaris_spark.backends import open_backend
from polaris_spark.backends.base import ObjectKey, ObjectRow, ReferenceRow, Swapped
from polaris_spark.clock import EPOCH_MS
from polaris_spark.errors import PolarisError
from polaris_spark.ids import IdParts, pack
from polaris_spark.testing.server import Server
from tests.servers import SERVERS, server_class

WRITERS = 64
"""Number of threads that commit at the same time."""
ROWS = 1_000
"""Number of rows that are read in one batch."""
QUICK_SWAP_US = 50
"""If a bare swap takes less time than this, in microseconds, the bar limits the additional time of the backend's swap.

Otherwise the bar limits the ratio.
"""
MOST_ON_TOP_US = 15
"""Maximum additional time of the backend's swap, in microseconds, if a bare swap is quick."""

_COMMIT = 50
"""Number of rows of one commit. Their ids are consecutive."""
_VALUE = bytes(200)
EMBEDDED = {
    "sqlite": "write-ahead log, synchronous=FULL",
    "rocksdb": "write-ahead log, synced",
}
"""Durability settings of the databases without a server."""


class Database(NamedTuple):
    """A database. Each measurement uses a new store in it."""

    scheme: str
    server: Server | None
    folder: Path

    def uri(self, store: str) -> str:
        """Return the URI of a store that does not exist yet."""
        if self.server is None:
            return f"{self.scheme}://{self.folder}/{self.scheme}-{store}"
        return self.server.uri(store)


class Sizes(NamedTuple):
    """Amounts of measurements."""

    rounds: int
    seconds: float
    clients: int
    """Number of clients that swap one row."""


def measure(
    folder: Path, *, rounds: int, seconds: float, clients: int = 8, schemes: Sequence[str] = ()
) -> list[Finding]:
    """Measure every available database, one after another.

    Args:
        schemes: URI schemes of the databases to measure; all databases if empty.
    """
    sizes, findings = Sizes(rounds, seconds, clients), list[Finding]()
    trips: dict[str, dict[str, Sample]] = {}
    for scheme in schemes or (*EMBEDDED, *SERVERS):  # `mysql:` is an alias
        try:
            with database_of(scheme, folder) as database:
                findings += _figures(database, sizes)
                trips[scheme] = round_trips(database.uri, database.server)
                how = EMBEDDED[scheme] if database.server is None else database.server.durability
                findings.append(Durability(f"both sides on {scheme}", how))
        except (PolarisError, ImportError) as error:  # such as a missing module of `benchmarks.bare`
            findings.append(LeftOut(scheme, str(error)))
    columns = tuple(dict.fromkeys(column for row in trips.values() for column in row))
    return [
        *findings,
        Grid("round trips: operations of the backend, and exchanges on the wire", columns, trips),
    ]


@contextmanager
def database_of(scheme: str, folder: Path) -> Iterator[Database]:
    """Start the server of a database, if it has one, and yield the database."""
    with ExitStack() as stack:
        server = stack.enter_context(server_class(scheme)()) if scheme in SERVERS else None
        yield Database(scheme, server, folder)


def _figures(database: Database, sizes: Sizes) -> list[Figure]:
    return [
        *(_alone(database, sizes, threads) for threads in (1, sizes.clients)),
        _commits(database, sizes),
        _reads(database, sizes),
    ]


def _alone(database: Database, sizes: Sizes, threads: int) -> Figure:
    """Measure swaps by clients that each swap a different row."""
    uri = database.uri(f"alone{threads}")
    with contextlib.closing(open_backend(uri)) as backend:
        backend.setup()
        versions = {
            f"{side}-{thread}": os.urandom(16) for side in ("ours", "bare") for thread in range(threads)
        }
        for name, version in versions.items():
            backend.insert_reference(REALM, name, ReferenceRow(version, _VALUE))
        with contextlib.closing(open_bare(uri)) as bare:
            clients = [bare.client() for _ in range(threads)]

            def ours(thread: int, _: int) -> None:
                name, new = f"ours-{thread}", ReferenceRow(os.urandom(16), _VALUE)
                if backend.swap_reference(REALM, name, versions[name], new) != Swapped():
                    raise RuntimeError("the row was not as it was left")
                versions[name] = new.version

            def theirs(thread: int, _: int) -> None:
                name, new = f"bare-{thread}", ReferenceRow(os.urandom(16), _VALUE)
                if not clients[thread].swap(name, versions[name], new):
                    raise RuntimeError("the row was not as it was left")
                versions[name] = new.version

            for side in (ours, theirs):
                run_for(threads, sizes.seconds / 5, side)
            mine, peer = in_turns(
                2 * sizes.rounds,  # short turns: both rates are close, and a machine's speed varies
                [
                    lambda: run_for(threads, sizes.seconds / 2, ours),
                    lambda: run_for(threads, sizes.seconds / 2, theirs),
                ],
            )
    what = f"{database.scheme}: swaps/s, {threads} {'clients' if threads > 1 else 'client'}"
    figure = compare(what, mine, peer, least=0.8, faultless=True, beside="bare")
    bare_us = 1e6 / peer.median if peer.median else math.inf
    if bare_us >= QUICK_SWAP_US:
        return figure
    on_top = 1e6 / mine.median - bare_us if mine.median else math.inf
    return figure._replace(
        ratio=f"{on_top:.1f} us on top of {bare_us:.1f}",
        bar=f"at most {MOST_ON_TOP_US} us on top",
        met=on_top <= MOST_ON_TOP_US and not mine.failures,
        standing=MOST_ON_TOP_US / max(on_top, 0.1),
    )


def _commits(database: Database, sizes: Sizes) -> Figure:
    """Compare smallest commits of many writers with clients that swap one row by bare statements."""
    store, contended = database.uri("commits"), database.uri("contended")
    with contextlib.closing(open_backend(contended)) as backend:
        backend.setup()
        backend.insert_reference(REALM, "head", ReferenceRow(os.urandom(16), _VALUE))
        by_processes = backend.scope in ("machine", "cluster")

    def ours() -> Rate:
        with smallest.mover(store, 0) as move:
            run_for(WRITERS, sizes.seconds / 5, move)
            return run_for(WRITERS, sizes.seconds, move)

    sides: list[Callable[[], float | Rate]] = [ours, lambda: _by_threads(contended, sizes).per_second]
    if by_processes:
        sides.append(lambda: _by_processes(contended, sizes).per_second)
    mine, *others = in_turns(sizes.rounds, sides)
    best = max(others, key=lambda side: side.median)
    kind = "threads" if best is others[0] else "processes"
    return compare(
        f"{database.scheme}: smallest logical commits/s, {WRITERS} writers",
        mine,
        best,
        least=_bar(database.scheme, best.median),
        faultless=True,
        beside=f"bare swaps of one row, {sizes.clients} {kind}",
    )


def _bar(scheme: str, bare: float) -> float | None:
    """Return the required ratio of commits to bare swaps, or None without a bar.

    For slow databases, the ratio is lower if it would require more than 2,500 commits per second.
    """
    if scheme in ("postgresql", "mariadb"):
        return 4
    if scheme in ("cassandra", "bigtable", "dynamodb", "s3") and bare:
        return round(min(8.0, 2_500 / bare), 2)
    return None


def _by_threads(uri: str, sizes: Sizes) -> Rate:
    with contender(uri, 0) as call:
        run_for(sizes.clients, sizes.seconds / 5, call)
        return run_for(sizes.clients, sizes.seconds, call)


def _by_processes(uri: str, sizes: Sizes) -> Rate:
    return total(run_processes(sizes.clients, 1, sizes.seconds, contender, uri))


@contextmanager
def contender(uri: str, _: int) -> Iterator[Callable[[int, int], None]]:
    """Return a function that swaps the row `head` from the version that this client has written last.

    After a conflict, the client reads the row first. Reading before every swap would be slower: the client that has
    just swapped is most likely to swap next.
    """
    with contextlib.closing(open_bare(uri)) as bare:
        clients: dict[int, Client] = {}
        versions: dict[int, bytes | None] = {}

        def swap(thread: int, _: int) -> None:
            if thread not in clients:
                clients[thread] = bare.client()
            client, version = clients[thread], versions.get(thread)
            if version is None:
                version = client.version("head")
            new = ReferenceRow(os.urandom(16), _VALUE)
            versions[thread] = None
            if not client.swap("head", version, new):
                raise RuntimeError("another client swapped first")
            versions[thread] = new.version

        yield swap


def _reads(database: Database, sizes: Sizes) -> Figure:
    """Compare one batch read with the same number of point reads by one client."""
    with contextlib.closing(open_backend(database.uri("reads"))) as backend:
        backend.setup()
        keys = []
        for commit in range(2 * ROWS // _COMMIT):  # every other one is not read
            ids = [pack(IdParts(EPOCH_MS + commit, 1, number)) for number in range(_COMMIT)]
            backend.write_objects(REALM, [ObjectRow(id, 0, os.urandom(500)) for id in ids])
            if commit % 2:
                keys += [ObjectKey(id) for id in ids]

        def batch() -> None:
            if len(backend.read_objects(REALM, keys)) != ROWS:
                raise RuntimeError("rows are missing")

        def points() -> None:
            for key in keys:
                if not backend.read_objects(REALM, [key]):
                    raise RuntimeError("a row is missing")

        batch()
        mine, peer = in_turns(
            sizes.rounds, [lambda: median_us(5, batch) / 1e3, lambda: median_us(1, points) / 1e3]
        )
    return compare(
        f"{database.scheme}: reading {ROWS:,} rows in one batch, ms",
        mine,
        peer,
        least=5,
        beside="as many point reads",
        smaller=True,
        digits=1,
    )
