"""What a pyiceberg program pays with `PolarisCatalog`, beside pyiceberg's SqlCatalog, both on SQLite."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

from polaris_spark.pyiceberg import PolarisCatalog
from polaris_spark.testing.bench.catalogs import PyIceberg
from polaris_spark.testing.bench.measuring import Figure, in_turns, run_threads

THREADS = 8


class Adapter(PyIceberg):
    """The same program over `PolarisCatalog`, as it comes: with metadata files."""

    def open(self, folder: Path) -> Any:
        return PolarisCatalog("ours", store=f"sqlite:///{folder}/polaris.db", warehouse=str(folder))


def measure(folder: Path, *, rounds: int, calls: int) -> list[Figure]:
    """Creations, property commits and loads per second, the same program on both sides.

    Args:
        folder: for stores and files.
        calls: loads of one round; there are a quarter as many creations and commits.
    """
    ours, peer = Adapter(folder / "ours"), PyIceberg(folder / "sql")
    try:
        return [
            _figure("tables created/s", ours, peer, rounds, lambda side: _created(side, calls // 4), 2),
            _figure(
                "property commits/s", ours, peer, rounds, lambda side: _committed(side, 1, calls // 4), 2
            ),
            _figure(
                f"property commits/s, {THREADS} threads, a table each",
                ours,
                peer,
                rounds,
                lambda side: _committed(side, THREADS, calls // 16),
                2,
            ),
            _figure(
                "load_table/s, unchanged since", ours, peer, rounds, lambda side: _loaded(side, calls), 10
            ),
        ]
    finally:
        ours.close()
        peer.close()


_numbers = count()


def _created(side: PyIceberg, calls: int) -> float:
    return run_threads(1, calls, lambda _, __: side.create(f"created_{next(_numbers)}")).per_second


def _committed(side: PyIceberg, threads: int, calls: int) -> float:
    tables = [side.create(f"committed_{next(_numbers)}") for _ in range(threads)]
    return run_threads(threads, calls, lambda thread, n: side.set_property(tables[thread], str(n))).per_second


def _loaded(side: PyIceberg, calls: int) -> float:
    table = side.create(f"loaded_{next(_numbers)}")
    return run_threads(1, calls, lambda _, __: side.catalog.load_table(table)).per_second


def _figure(what: str, ours: PyIceberg, peer: PyIceberg, rounds: int, rate: Any, bar: float) -> Figure:
    mine, theirs = in_turns(rounds, [lambda: rate(ours), lambda: rate(peer)])
    met = mine / theirs >= bar
    return Figure(
        f"pyiceberg: {what}", f"{mine:,.0f}", f"{theirs:,.0f}", f"{mine / theirs:.1f}x", f"{bar:g}x", met
    )
