"""Timing two sides in turns, and the table of figures."""

from __future__ import annotations

import platform
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Figure(NamedTuple):
    """One line of the result."""

    what: str
    ours: str
    peer: str
    ratio: str
    bar: str
    met: bool


class Rate(NamedTuple):
    """What several threads reached together."""

    per_second: float
    failures: int


def run_threads(threads: int, calls: int, call: Callable[[int, int], None]) -> Rate:
    """Successful calls per second of `threads` threads that make `calls` calls each: `call(thread, number)`."""
    failures = [0] * threads
    start = threading.Barrier(threads + 1)

    def work(thread: int) -> None:
        start.wait()
        for number in range(calls):
            try:
                call(thread, number)
            except Exception:
                failures[thread] += 1

    running = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for one in running:
        one.start()
    start.wait()
    begun = time.perf_counter()
    for one in running:
        one.join()
    took = time.perf_counter() - begun
    return Rate((threads * calls - sum(failures)) / took, sum(failures))


def in_turns(rounds: int, sides: Sequence[Callable[[], float]]) -> list[float]:
    """The median figure of each side, measured in turns."""
    measured: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for position, side in enumerate(sides):
            measured[position].append(side())
    return [statistics.median(values) for values in measured]


def median_us(calls: int, call: Callable[[], object]) -> float:
    """The median time of a call, microseconds."""
    times = []
    for _ in range(calls):
        begun = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - begun) / 1_000)
    return statistics.median(times)


def machine() -> str:
    """What this was measured on."""
    import os

    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}"
