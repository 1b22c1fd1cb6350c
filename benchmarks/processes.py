"""The same calls by several processes at the same time, each with its own threads."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from benchmarks.measurement import Rate, run_for

_SECONDS_TO_START = 120

Opened: TypeAlias = Callable[[Any, int], AbstractContextManager[Callable[[int, int], None]]]
"""A module-level function that takes an argument and the number of the process.

It returns a context manager for a function, which is called as `call(thread, number)`.
"""


def run_processes(
    processes: int, threads: int, seconds: float, opened: Opened, argument: object
) -> list[Rate]:
    """Run processes that start at the same time, after a warm-up; return the rate of each process.

    Raises:
        RuntimeError: a process failed to start, or died.
    """
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(processes)
    results = context.Queue()
    running = [
        context.Process(
            target=_work, args=(opened, argument, number, threads, seconds, start, results), daemon=True
        )
        for number in range(processes)
    ]
    for one in running:
        one.start()
    found = dict(results.get(timeout=_SECONDS_TO_START + 10 * seconds) for _ in running)
    for one in running:
        one.join()
    errors = [rate for rate in found.values() if not isinstance(rate, Rate)]
    if errors:
        raise RuntimeError(f"{len(errors)} of {processes} processes failed: {errors[0]}")
    return [found[number] for number in range(processes)]


def _work(
    opened: Opened, argument: object, number: int, threads: int, seconds: float, start: Any, results: Any
) -> None:
    try:
        with opened(argument, number) as call:
            run_for(threads, seconds / 5, call)
            start.wait(_SECONDS_TO_START)
            rate = run_for(threads, seconds, call)
    except BaseException as error:
        start.abort()
        results.put((number, f"{type(error).__name__}: {error}"))
        raise
    results.put((number, rate))
