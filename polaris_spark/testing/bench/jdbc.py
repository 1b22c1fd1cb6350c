"""What Java callers pay: ours through the shim beside Iceberg's `JdbcCatalog` on SQLite and on PostgreSQL.

Every side is a Java process of its own that does the same calls (`java/CatalogCosts.java`), with the same FileIO.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path

from polaris_spark.testing.bench.jvm import JavaPrograms
from polaris_spark.testing.bench.measuring import Figure
from polaris_spark.testing.postgresql import PostgreSQL

TABLES, COMMITS, LOADS = 1_000, 1_000, 3_000
SIZES = (1, 100, 1_000, 5_000)
FLAT = 2.0
"""How much more a table of most snapshots may cost than one of the fewest."""

DURABILITY = (
    "JdbcCatalog on SQLite: rollback journal, synchronous=FULL (the driver's defaults); "
    "on PostgreSQL: fsync=on, synchronous_commit=on (the server's defaults)"
)

OURS = ("never", "every-commit")
PEERS = ("JdbcCatalog, SQLite", "JdbcCatalog, PostgreSQL")

Costs = dict[str, float]
_numbers = count(1)


def measure(folder: Path, *, rounds: int) -> list[Figure]:
    """Rates of creation and commits, times of loads, and how both grow with snapshots."""
    programs = JavaPrograms(folder)
    with PostgreSQL() as server:
        measured: dict[str, list[Costs]] = {side: [] for side in (*OURS, *PEERS)}
        for _ in range(rounds):
            for side, costs in measured.items():
                costs.append(_run(programs, _properties(side, folder, server)))
    found = {side: _medians(costs) for side, costs in measured.items()}
    return [*_against_peers(found), *_by_snapshots(found)]


def _properties(side: str, folder: Path, server: PostgreSQL) -> dict[str, str]:
    number = next(_numbers)
    place = folder / f"jdbc{number}"
    (place / "warehouse").mkdir(parents=True)
    common = {"warehouse": f"file://{place}/warehouse", "io-impl": "LocalFiles"}
    if side in OURS:
        return {
            **common,
            "catalog-impl": "io.polarisspark.PolarisRESTCatalog",
            "store": f"sqlite:///{place}/polaris.db",
            "metadata-files": side,
            "python": sys.executable,
        }
    sqlite = f"jdbc:sqlite:{place}/catalog.db"
    uri = sqlite if "SQLite" in side else f"jdbc:postgresql://127.0.0.1:{server.port}/postgres?user=postgres"
    return {
        **common,
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": uri,
        "jdbc.schema-version": "V1",
        "name": f"bench{number}",  # several rounds share a database
    }


def _run(programs: JavaPrograms, properties: Mapping[str, str]) -> Costs:
    pairs = [f"{name}={value}" for name, value in properties.items()]
    printed = programs.run("CatalogCosts", TABLES, COMMITS, LOADS, ",".join(map(str, SIZES)), *pairs)
    lines = [line.split() for line in printed.splitlines() if line.startswith("figure ")]
    return {name: float(value) for _, name, value in lines}


def _medians(rounds: Iterable[Costs]) -> Costs:
    rounds = list(rounds)
    return {name: statistics.median(costs[name] for costs in rounds) for name in rounds[0]}


def _against_peers(found: Mapping[str, Costs]) -> list[Figure]:
    figures = []
    for ours in OURS:
        for peer in PEERS:
            for name, what in (
                ("create", f"tables created/s from Java ({TABLES:,})"),
                ("commit", f"property commits/s from Java ({COMMITS:,}, one table)"),
                ("create_together", "tables created/s from Java, 8 threads"),
                ("commit_together", "property commits/s from Java, 8 threads, one table"),
            ):
                mine, theirs = found[ours][name], found[peer][name]
                texts = [f"{rate:,.0f}" for rate in (mine, theirs)]
                if name == "commit_together":
                    failed = [found[side]["failed_together"] for side in (ours, peer)]
                    texts = [f"{text}, {n:.0f} failed" for text, n in zip(texts, failed, strict=True)]
                figures.append(_figure(what, ours, texts[0], peer, texts[1], mine / theirs))
            for name in ("load_p50", "load_p99"):
                mine, theirs = found[ours][name], found[peer][name]
                what = f"loadTable from Java, {name[5:]}, us"
                figures.append(_figure(what, ours, f"{mine:.0f}", peer, f"{theirs:.0f}", theirs / mine))
    return figures


def _figure(what: str, ours: str, mine: str, peer: str, theirs: str, ratio: float) -> Figure:
    return Figure(f"{what}, {ours}", mine, f"{theirs} ({peer})", f"{ratio:.1f}x", "", met=True)


def _by_snapshots(found: Mapping[str, Costs]) -> list[Figure]:
    figures = []
    peer = PEERS[0]
    for name, what in (("load", "loadTable"), ("property", "property commit"), ("append", "fast append")):
        for ours in OURS:
            mine = [found[ours][f"{name}@{size}"] for size in SIZES]
            theirs = [found[peer][f"{name}@{size}"] for size in SIZES]
            growth = mine[-1] / mine[0]
            figures.append(
                Figure(
                    f"{what} from Java at {', '.join(f'{size:,}' for size in SIZES)} snapshots, {ours}, us",
                    " / ".join(f"{time:,.0f}" for time in mine),
                    f"{' / '.join(f'{time:,.0f}' for time in theirs)} ({peer})",
                    f"{growth:.1f}x from first to last",
                    f"flat: at most {FLAT:.0f}x",
                    growth <= FLAT,
                )
            )
    return figures
