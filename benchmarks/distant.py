"""Processes that commit to one catalog on a database that is far away, beside as many threads of one process.

The database is SQLite. Each operation on it waits first, as if the database were far away. So the figures depend on how
many operations a commit makes one after the other, and on how the processes wait for each other. The speed of the
machine matters little. The processes are measured twice: as on one machine, and as on a machine each, where they cannot
send messages to each other.
"""

from __future__ import annotations

import tempfile
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
            near, apart, threads = (
                Shape(processes, writers // processes, [], [], []) for processes in (writers, writers, 1)
            )
            sides = [
                partial(_rate, shape, seconds, partial(opened, latency_ms), catalog)
                for shape, opened in (
                    (near, committing_far_away),
                    (apart, committing_from_another_machine),
                    (threads, committing_far_away),
                )
            ]
            *samples, peer = in_turns(rounds, sides)
            for shape, sample, machines in (
                (near, samples[0], "one machine"),
                (apart, samples[1], "a machine each"),
            ):
                what = f"{where}, on {machines}"
                findings.append(
                    compare(
                        f"property commits/s, {what}, {shape.text}",
                        sample,
                        peer,
                        least=LEAST if shape is near else None,
                        faultless=True,
                        beside=f"ours, {threads.text}",
                    )
                )
                findings.append(waits(shape, what))
            findings.append(waits(threads, where))
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


@contextmanager
def committing_from_another_machine(
    latency_ms: float, catalog: Catalog, process: int
) -> Iterator[Callable[[int, int], None]]:
    """Like `committing_far_away`, but as if each process ran on a machine of its own: this process cannot exchange
    messages with others (`commits.mailbox`)."""
    own = Path(catalog.folder, f"machine-{process}")
    own.mkdir(exist_ok=True)
    tempfile.tempdir = str(own)
    with committing_far_away(latency_ms, catalog, process) as commit:
        yield commit
