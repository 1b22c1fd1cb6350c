"""The parts of the benchmark, and their sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import (
    access,
    adapter,
    archived,
    branches,
    bridge,
    capacity_checks,
    commits,
    competitors,
    contention,
    databases,
    distant,
    earlier,
    expiry,
    first_query,
    growth,
    imports,
    jdbc,
    listing,
    listing_peers,
    loading,
    peers,
    realms,
    refreshes,
    sweeps,
    system_views,
    transactions,
    wide,
)
from benchmarks.findings import Finding


class Sizes(NamedTuple):
    """Amounts of measurements."""

    rounds: int
    """Number of turns of each side."""
    seconds: float
    """Duration of a side's turn in seconds, in parts with timed turns."""
    calls: int
    """Number of calls in a turn, in parts with counted calls."""
    tables: int
    """Number of tables in the large namespace."""
    sizes: tuple[int, ...]
    """Numbers of tables of the catalogs in the part `growth`, ascending."""
    quick: bool
    """Whether to check only that everything runs."""
    schemes: tuple[str, ...] = ()
    """URI schemes of the databases to measure in the parts `databases`, `processes` and `transactions`; if empty, all
    databases, or those that the part chooses."""
    against: str = ""
    """Folder of the earlier checkout for the part `earlier`. If it is empty, this part is left out."""


FULL = Sizes(rounds=3, seconds=4.0, calls=400, tables=100_000, sizes=(1_000, 100_000, 1_000_000), quick=False)
QUICK = Sizes(rounds=1, seconds=0.2, calls=16, tables=64, sizes=(100, 300), quick=True)


class Part(NamedTuple):
    """A part of the benchmark, which is measured in a separate folder."""

    about: str
    measure: Callable[[Path, Sizes], Sequence[Finding]]


PARTS: dict[str, Part] = {
    "commits": Part(
        "property commits beside pyiceberg's SqlCatalog on SQLite",
        lambda folder, of: commits.measure(folder, rounds=of.rounds, seconds=of.seconds),
    ),
    "contention": Part(
        "many writers and several processes on PostgreSQL",
        lambda folder, of: contention.measure(
            folder, rounds=of.rounds, seconds=of.seconds, crowd=2 if of.quick else 8
        ),
    ),
    "processes": Part(
        "several processes beside threads of one process (--databases: sqlite and postgresql by default)",
        lambda folder, of: competitors.measure(
            folder,
            rounds=of.rounds,
            seconds=of.seconds,
            writers=(2,) if of.quick else (8, 32),
            schemes=("sqlite",) if of.quick else of.schemes or ("sqlite", "postgresql"),
        ),
    ),
    "distant": Part(
        "processes beside threads, on a database that is far away",
        lambda folder, of: distant.measure(
            folder,
            rounds=of.rounds,
            seconds=(2 if of.quick else 10) * of.seconds,
            writers=2 if of.quick else 8,
            latencies_ms=(5.0,) if of.quick else (10.0, 50.0, 200.0),
        ),
    ),
    "databases": Part(
        "every database beside its own driver",
        lambda folder, of: databases.measure(
            folder,
            rounds=of.rounds,
            seconds=of.seconds,
            clients=2 if of.quick else 8,
            schemes=("postgresql",) if of.quick else of.schemes,
        ),
    ),
    "loading": Part(
        "loading tables of many snapshots",
        lambda folder, of: loading.measure(folder, rounds=of.rounds, calls=of.calls),
    ),
    "wide": Part(
        "commits to a table with many tags and properties",
        lambda folder, of: wide.measure(
            folder,
            rounds=of.rounds,
            calls=of.calls,
            sizes=(0, 50, 200) if of.quick else (0, 1_000, 9_900),
        ),
    ),
    "listing": Part(
        "a namespace of very many tables",
        lambda folder, of: listing.measure(
            folder, tables=of.tables, calls=max(1, of.calls // 4), commits=5 * of.calls
        ),
    ),
    "listing-peers": Part(
        "a whole listing beside JdbcCatalog and pyiceberg on SQLite",
        lambda folder, of: listing_peers.measure(
            folder, tables=of.tables, rounds=of.rounds, calls=max(1, of.calls // 20)
        ),
    ),
    "growth": Part(
        "a catalog of a thousand tables and one of a million",
        lambda folder, of: growth.measure(
            folder, sizes=of.sizes, rounds=of.rounds, calls=5 * of.calls, loads=150 * of.calls
        ),
    ),
    "branches": Part(
        "branches of catalogs of a thousand tables and of a million: creating, comparing and merging them",
        lambda folder, of: branches.measure(
            folder,
            sizes=(of.sizes[0], of.sizes[-1]),
            rounds=of.rounds,
            branches=10 if of.quick else 1_000,
        ),
    ),
    "transactions": Part(
        "transactions over ten tables beside commits (--databases: sqlite and postgresql by default)",
        lambda folder, of: transactions.measure(
            folder,
            rounds=of.rounds,
            schemes=("sqlite",) if of.quick else of.schemes or ("sqlite", "postgresql"),
        ),
    ),
    "capacity": Part(
        "the capacity model beside measurements at the sizes of the part growth",
        lambda folder, of: capacity_checks.measure(
            folder, sizes=of.sizes, rounds=of.rounds, calls=5 * of.calls
        ),
    ),
    "bridge": Part(
        "loadTable from Java beside the same inside Python",
        lambda folder, of: bridge.measure(folder, rounds=of.rounds, calls=of.calls),
    ),
    "jdbc": Part(
        "Java callers beside Iceberg's JdbcCatalog on SQLite and PostgreSQL",
        lambda folder, of: jdbc.measure(
            folder,
            rounds=of.rounds,
            seconds=of.seconds,
            sizes=(1, 3) if of.quick else (1, 100, 1_000, 5_000),
            calls=2 if of.quick else 60,
        ),
    ),
    "access": Part(
        "loads of a table with access control beside loads without it",
        lambda folder, of: access.measure(folder, rounds=of.rounds, calls=of.calls, quick=of.quick),
    ),
    "pyiceberg": Part(
        "pyiceberg programs beside its SqlCatalog",
        lambda folder, of: adapter.measure(folder, rounds=of.rounds, calls=of.calls),
    ),
    "peers": Part(
        "every peer that PyPI and Maven Central carry, in the same workloads",
        lambda folder, of: peers.measure(
            folder, rounds=of.rounds, seconds=of.seconds / 2, with_servers=not of.quick
        ),
    ),
    "sweep": Part(
        "mark and sweep of half a million and of a million objects",
        lambda folder, of: sweeps.measure(
            folder,
            sizes=(2_000, 4_000) if of.quick else (of.sizes[-1] // 2, of.sizes[-1]),
            rounds=of.rounds,
        ),
    ),
    "log": Part(
        "size of the archived log of trimmed commits, and the time to archive it",
        lambda _folder, of: archived.measure(commits=400 if of.quick else 20_000, rounds=of.rounds),
    ),
    "views": Part(
        "counting very many tables by Spark",
        lambda folder, of: system_views.count_tables(folder, tables=of.tables, rounds=of.rounds),
    ),
    "refresh": Part(
        "incremental refreshes of a materialized view beside full ones",
        lambda folder, of: refreshes.measure(
            folder,
            sizes=(2_000, 4_000) if of.quick else (3_000_000, 30_000_000),
            warm_ups=0 if of.quick else 1,
            rounds=of.rounds,
            calls=of.calls,
            reads=1 if of.quick else 10,
        ),
    ),
    "first-query": Part(
        "the first query of a session beside a trivial Python data source",
        lambda folder, of: first_query.measure(
            folder, rounds=of.rounds, views=("tables",) if of.quick else ("tables", "changes", "objects")
        ),
    ),
    "scan": Part(
        "summing the sizes of all objects by Spark beside psycopg",
        lambda _, of: system_views.scan_objects(
            objects=10 * of.tables,
            rounds=of.rounds,
            queries=1 if of.quick else len(system_views.SCANS),
        ),
    ),
    "expire": Part(
        "expiring snapshots of many tables beside Iceberg's expire_snapshots",
        lambda folder, of: expiry.measure(
            folder,
            rounds=of.rounds,
            tables=2 if of.quick else min(200, of.tables),
            snapshots=12 if of.quick else 50,
        ),
    ),
    "realms": Part(
        "one server of a thousand realms beside a server of one",
        lambda folder, of: realms.measure(folder, rounds=of.rounds, calls=10 * of.calls, quick=of.quick),
    ),
    "earlier": Part(
        "commits, loads and pages beside an earlier checkout (--against)",
        lambda folder, of: earlier.measure(
            folder, checkout=Path(of.against), turns=2 if of.quick else 10 * of.rounds
        ),
    ),
    "imports": Part(
        "importing many tables",
        lambda folder, of: imports.measure(
            folder, rounds=of.rounds, tables=8 if of.quick else 1_000, lazily=of.tables
        ),
    ),
}
