"""The same calls by several processes at the same time, each with its own threads."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeAlias

from benchmarks.measurement import Rate, run_for

STOP_SECONDS = 1.0
"""Time for which a process is stopped, again and again, and for which it runs in between, in seconds."""
_SECONDS_TO_START = 120

Opened: TypeAlias = Callable[[Any, int], AbstractContextManager[Callable[[int, int], None]]]
"""A module-level function that takes an argument and the number of the process.

It returns a context manager for a function, which is called as `call(thread, number)`.
"""


def run_processes(
    processes: int,
    threads: int,
    seconds: float,
    opened: Opened,
    argument: object,
    *,
    stop_first: bool = False,
) -> list[Rate]:
    """Run processes that start at the same time, after a warm-up; return the rate of each process.

    Args:
        stop_first: whether to stop the first process for half of the time, by SIGSTOP: for `STOP_SECONDS` at a time, or
            for a quarter of `seconds` if that is less.
    Raises:
        RuntimeError: a process failed to start, or died.
    """
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(processes)
    results, begun = context.Queue(), context.Event()
    running = [
        context.Process(
            target=_work,
            args=(opened, argument, number, threads, seconds, start, begun, results),
            daemon=True,
        )
        for number in range(processes)
    ]
    for one in running:
        one.start()
    if stop_first:
        stopping = threading.Thread(target=_stop_at_times, args=(running[0], begun, seconds), daemon=True)
        stopping.start()
    found = dict(results.get(timeout=_SECONDS_TO_START + 10 * seconds) for _ in running)
    for one in running:
        one.join()
    errors = [rate for rate in found.values() if not isinstance(rate, Rate)]
    if errors:
        raise RuntimeError(f"{len(errors)} of {processes} processes failed: {errors[0]}")
    return [found[number] for number in range(processes)]


def _stop_at_times(process: Any, begun: Any, seconds: float) -> None:
    """Stop a process again and again while it is measured. It runs when its measurement ends."""
    pause = min(STOP_SECONDS, seconds / 4)
    if not begun.wait(2 * _SECONDS_TO_START):
        return
    end = time.monotonic() + seconds
    while time.monotonic() + 2 * pause <= end:
        with suppress(ProcessLookupError):  # it failed
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(pause)
            os.kill(process.pid, signal.SIGCONT)
        time.sleep(pause)


def _work(
    opened: Opened,
    argument: object,
    number: int,
    threads: int,
    seconds: float,
    start: Any,
    begun: Any,
    results: Any,
) -> None:
    try:
        with opened(argument, number) as call:
            run_for(threads, seconds / 5, call)
            start.wait(_SECONDS_TO_START)
            begun.set()
            rate = run_for(threads, seconds, call)
    except BaseException as error:
        start.abort()
        results.put((number, f"{type(error).__name__}: {error}"))
        raise
    results.put((number, rate))
