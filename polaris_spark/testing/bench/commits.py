"""Property commits per second, beside pyiceberg's SqlCatalog, both on SQLite."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from polaris_spark.testing.bench.catalogs import Measured, Ours, PyIceberg
from polaris_spark.testing.bench.measuring import Figure, Rate, in_turns, run_threads

THREADS = 8


def measure(folder: Path, *, rounds: int, calls: int) -> list[Figure]:
    """Commits with one thread and with eight on one table.

    Args:
        folder: for stores and files.
        calls: commits of one thread and round on our side; the peer makes an eighth of them.
    """
    never = Ours(folder / "never", metadata_files="never")
    every = Ours(folder / "every", metadata_files="every-commit")
    peer = PyIceberg(folder)
    try:
        return [
            _one_thread("metadata-files=never, 1 thread", never, peer, rounds, calls, 8),
            _eight_threads("metadata-files=never, 8 threads, one table", never, peer, rounds, calls, 20),
            _one_thread("metadata-files=every-commit, 1 thread", every, peer, rounds, calls, 3),
            _eight_threads(
                "metadata-files=every-commit, 8 threads, one table", every, peer, rounds, calls, 3
            ),
        ]
    finally:
        for catalog in (never, every, peer):
            catalog.close()


_round = count()


def _rate(catalog: Measured, threads: int, calls: int) -> Rate:
    """Commits of `threads` threads on one new table."""
    run = next(_round)
    handle = catalog.create(f"table_{run}")
    return run_threads(threads, calls, lambda thread, n: catalog.set_property(handle, f"{run}-{thread}-{n}"))


def _one_thread(what: str, ours: Measured, peer: Measured, rounds: int, calls: int, bar: float) -> Figure:
    mine, theirs = in_turns(
        rounds,
        [lambda: _rate(ours, 1, calls).per_second, lambda: _rate(peer, 1, max(20, calls // 8)).per_second],
    )
    return Figure(
        f"property commits/s, {what}",
        f"{mine:,.0f}",
        f"{theirs:,.0f}",
        f"{mine / theirs:.1f}x",
        f"{bar:g}x",
        mine / theirs >= bar,
    )


def _eight_threads(what: str, ours: Measured, peer: Measured, rounds: int, calls: int, bar: float) -> Figure:
    failed = {"ours": 0, "peer": 0}

    def rate(catalog: Measured, who: str, calls: int) -> float:
        result = _rate(catalog, THREADS, calls)
        failed[who] += result.failures
        return result.per_second

    mine, theirs = in_turns(
        rounds,
        [
            lambda: rate(ours, "ours", calls // 2),
            lambda: rate(peer, "peer", max(10, calls // 32)),
        ],
    )
    return Figure(
        f"property commits/s, {what}",
        f"{mine:,.0f} ({failed['ours']} failed)",
        f"{theirs:,.0f} ({failed['peer']} failed)",
        f"{mine / theirs:.1f}x",
        f"{bar:g}x, 0 failed",
        mine / theirs >= bar and not failed["ours"],
    )
