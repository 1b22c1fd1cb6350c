"""Cost for Java callers: polaris_spark through the JVM shim compared with `JdbcCatalog` on SQLite and PostgreSQL.

Every side is a separate Java process that makes the same calls (`java/CatalogCosts.java`), with the same FileIO.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import costs
from benchmarks.catalogs import Ours
from benchmarks.commits import Case, rate
from benchmarks.costs import Cost
from benchmarks.findings import Durability, Finding
from benchmarks.jvm import JavaPrograms
from benchmarks.measurement import Figure, Rate, Sample, compare, in_turns
from benchmarks.postgresql import durability, new_database
from tests.servers.postgresql import PostgreSQL

FLAT = 2.0
"""Maximum ratio of the cost of a table with the most snapshots to the cost of a table with the fewest."""

OURS = ("never", "every-commit")
PEERS = ("JdbcCatalog, SQLite", "JdbcCatalog, PostgreSQL")
BARS = {("never", "one-table:8", PEERS[0]): 2.0, ("every-commit", "one-table:8", PEERS[0]): 1.0}

WRITERS = 32

_RATES = {
    "create:1": "tables created/s from Java, 1 thread",
    "create:8": "tables created/s from Java, 8 threads",
    "one-table:1": "property commits/s from Java, 1 thread",
    "one-table:8": "property commits/s from Java, 8 threads, one table",
}
_LOADS = "load:1"

Rounds = Mapping[str, Sequence[Mapping[str, Cost]]]
"""Results of every side: one mapping from workload to result for each round."""


def measure(folder: Path, *, rounds: int, seconds: float, sizes: Sequence[int], calls: int) -> list[Finding]:
    """Measure rates of creations and commits, times of loads, and growth of times with the number of snapshots.

    Args:
        sizes: numbers of snapshots of tables, ascending.
        calls: number of calls of each kind to a table of each size.
    """
    programs = JavaPrograms(folder)
    works = [*_RATES, _LOADS, *(f"sized:{size}:{calls}" for size in sizes)]
    found: dict[str, list[Mapping[str, Cost]]] = {side: [] for side in (*OURS, *PEERS)}
    with PostgreSQL() as server:
        for _ in range(rounds):
            for side, reached in found.items():
                reached.append(costs.run(programs, seconds, works, _properties(side, folder, server)))
        writers = _writers(programs, folder, server, rounds, seconds)
        set_to = durability(server)
    return [
        *_against_peers(found),
        writers,
        *_by_snapshots(found, sizes),
        Durability("polaris_spark on SQLite", Ours.DURABILITY),
        Durability("JdbcCatalog on SQLite", "rollback journal, synchronous=FULL (the driver's defaults)"),
        set_to,
    ]


def _properties(side: str, folder: Path, server: PostgreSQL) -> dict[str, str]:
    if side in OURS:
        return costs.ours(folder, side)
    return costs.jdbc_catalog(folder, new_database(server).jdbc if side == PEERS[1] else None)


def _writers(programs: JavaPrograms, folder: Path, server: PostgreSQL, rounds: int, seconds: float) -> Figure:
    """Measure many writers of one table on one server: polaris_spark in this process, the peer in a JVM."""
    work = f"one-table:{WRITERS}"

    def ours() -> Rate:
        catalog = Ours(folder / "writers", metadata_files="never", store=new_database(server).uri)
        try:
            return rate(catalog, Case("never", threads=WRITERS, tables=1, least=3), seconds)
        finally:
            catalog.close()

    def peer() -> Rate:
        reached = costs.run(programs, seconds, [work], costs.jdbc_catalog(folder, new_database(server).jdbc))
        return Rate(reached[work].value, reached[work].failures)

    mine, theirs = in_turns(rounds, [ours, peer])
    return compare(
        f"property commits/s, {WRITERS} writers, one table, PostgreSQL, never, in process",
        mine,
        theirs,
        least=3,
        faultless=True,
        beside="JdbcCatalog from Java",
    )


def _against_peers(found: Rounds) -> list[Figure]:
    figures = []
    for ours in OURS:
        for peer in PEERS:
            for work, what in _RATES.items():
                figures.append(
                    compare(
                        f"{what}, {ours}",
                        costs.sample(found[ours], work),
                        costs.sample(found[peer], work),
                        least=BARS.get((ours, work, peer)),
                        faultless=(ours, work, peer) in BARS,
                        beside=peer,
                    )
                )
            for which in ("p50", "p99"):
                mine, theirs = (_times(found[side], which) for side in (ours, peer))
                what = f"loadTable from Java, {which}, {ours}, us"
                figures.append(compare(what, mine, theirs, beside=peer, smaller=True))
    return figures


def _times(rounds: Sequence[Mapping[str, Cost]], which: str) -> Sample:
    return Sample(tuple(getattr(reached[_LOADS], which) for reached in rounds))


def _by_snapshots(found: Rounds, sizes: Sequence[int]) -> list[Figure]:
    figures = []
    peer = PEERS[0]
    for name, what in (("load", "loadTable"), ("property", "property commit"), ("append", "fast append")):
        for ours in OURS:
            mine, theirs = (
                [costs.sample(found[side], f"{name}@{size}") for size in sizes] for side in (ours, peer)
            )
            ratio = mine[-1].median / mine[0].median
            figures.append(
                Figure(
                    f"{what} from Java at {', '.join(f'{size:,}' for size in sizes)} snapshots, {ours}, us",
                    " / ".join(f"{one.median:,.0f}" for one in mine),
                    f"{' / '.join(f'{one.median:,.0f}' for one in theirs)} ({peer})",
                    f"{ratio:.1f}x from first to last",
                    f"flat: at most {FLAT:.0f}x",
                    ratio <= FLAT,
                    FLAT / ratio,
                    {f"ours at {size}": one for size, one in zip(sizes, mine, strict=True)},
                )
            )
    return figures
