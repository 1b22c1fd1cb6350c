"""Cost of a pyiceberg program with `PolarisCatalog`, compared with pyiceberg's SqlCatalog, both on SQLite."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.catalogs import Ours, PyIceberg
from benchmarks.findings import Durability, Finding
from benchmarks.measurement import Figure, Rate, compare, in_turns, run_threads
from polaris_spark.pyiceberg import PolarisCatalog

THREADS = 8


class Adapter(PyIceberg):
    """The same program on `PolarisCatalog` with default settings, which write metadata files."""

    def open(self, folder: Path) -> Any:
        return PolarisCatalog("ours", store=f"sqlite:///{folder}/polaris.db", warehouse=str(folder))


def measure(folder: Path, *, rounds: int, calls: int) -> list[Finding]:
    """Measure creations, property commits and loads per second, with the same program on both sides.

    Args:
        folder: folder for stores and files.
        calls: number of loads in one round. There are a quarter as many creations and commits.
    """
    ours, peer = Adapter(folder / "ours"), PyIceberg(folder / "sql")
    workloads: list[tuple[str, Callable[[PyIceberg], Rate], float]] = [
        ("tables created/s", lambda side: _created(side, calls // 4), 2),
        ("property commits/s, 1 thread", lambda side: _committed(side, 1, calls // 4), 2),
        (
            f"property commits/s, {THREADS} threads, a table each",
            lambda side: _committed(side, THREADS, calls // 16 or 1),
            2,
        ),
        ("load_table/s, unchanged since", lambda side: _loaded(side, calls), 10),
    ]
    try:
        return [
            *(_figure(what, ours, peer, rounds, rate, least) for what, rate, least in workloads),
            Durability("polaris_spark on SQLite", Ours.DURABILITY),
            PyIceberg.durability(),
        ]
    finally:
        ours.close()
        peer.close()


_numbers = count()


def _created(side: PyIceberg, calls: int) -> Rate:
    return run_threads(1, calls, lambda _, __: side.create(f"created_{next(_numbers)}"))


def _committed(side: PyIceberg, threads: int, calls: int) -> Rate:
    tables = [side.create(f"committed_{next(_numbers)}") for _ in range(threads)]
    return run_threads(threads, calls, lambda thread, n: side.set_property(tables[thread], str(n)))


def _loaded(side: PyIceberg, calls: int) -> Rate:
    table = side.create(f"loaded_{next(_numbers)}")
    return run_threads(1, calls, lambda _, __: side.load(table))


def _figure(
    what: str,
    ours: PyIceberg,
    peer: PyIceberg,
    rounds: int,
    rate: Callable[[PyIceberg], Rate],
    least: float,
) -> Figure:
    mine, theirs = in_turns(rounds, [lambda: rate(ours), lambda: rate(peer)])
    return compare(f"PolarisCatalog: {what}", mine, theirs, least=least)
