"""Processes that commit to one catalog on a database that is far away, beside as many threads of one process.

The database is SQLite. Each operation on it waits first, as if the database were far away. So the figures depend on how
many operations a commit makes one after the other, and on how the processes wait for each other. The speed of the
machine matters little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.competitors import LEAST, Catalog, Shape, committing, rates_of, waits
from benchmarks.findings import Finding
from benchmarks.measurement import Rate, compare, in_turns, total
from benchmarks.processes import Opened
from polaris_spark.backends.sqlite import SQLiteBackend

OPERATIONS = ("read_objects", "write_objects", "read_reference", "swap_reference", "write_and_swap")
"""Operations of a backend that a commit uses."""


def measure(
    folder: Path, *, rounds: int, seconds: float, writers: int, latencies_ms: tuple[float, ...]
) -> list[Finding]:
    """Compare processes of one thread with threads of one process, with a table each and with one table for all.

    Args:
        writers: number of processes, and of threads.
        latencies_ms: durations of the wait before each operation, in milliseconds; each is measured.
    """
    findings: list[Finding] = []
    for latency_ms in latencies_ms:
        for shared in (False, True):
            where = f"{latency_ms:g} ms away, {'one table' if shared else 'a table each'}"
            catalog = Catalog(f"sqlite:{folder}/{latency_ms:g}-{shared}.db", str(folder), shared)
            shapes = [Shape(writers, 1, [], [], []), Shape(1, writers, [], [], [])]
            opened = partial(committing_far_away, latency_ms)

            sides = [partial(_rate, shape, seconds, opened, catalog) for shape in shapes]
            ours, threads = in_turns(rounds, sides)
            what = f"property commits/s, {where}, {shapes[0].text}"
            findings.append(
                compare(what, ours, threads, least=LEAST, faultless=True, beside=f"ours, {shapes[1].text}")
            )
            findings += [waits(shape, where) for shape in shapes]
    return findings


def _rate(shape: Shape, seconds: float, opened: Opened, catalog: Catalog) -> Rate:
    return total(rates_of(shape, seconds, opened, catalog))


@contextmanager
def committing_far_away(
    latency_ms: float, catalog: Catalog, process: int
) -> Iterator[Callable[[int, int], None]]:
    """Return a function that makes property commits to a SQLite store, and waits before each operation on the database.

    All SQLite backends of this process become slow, so call it only in a process that the benchmark started.
    """

    def slow(operation: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            time.sleep(latency_ms / 1_000)
            return operation(*arguments)

        return call

    for name in OPERATIONS:
        setattr(SQLiteBackend, name, slow(getattr(SQLiteBackend, name)))
    with committing(catalog, process) as commit:
        yield commit
