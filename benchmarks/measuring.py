"""Timing both sides in turns."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Sample(NamedTuple):
    """What one side reached: a value per round."""

    values: tuple[float, ...]
    failures: int = 0
    """Calls that failed, over all rounds."""

    @property
    def median(self) -> float:
        """The figure that is compared."""
        return statistics.median(self.values)

    def text(self, digits: int = 0) -> str:
        """Median, spread over several rounds, and failures if there were any."""
        shown = f"{self.median:,.{digits}f}"
        if len(self.values) > 1:
            shown += f" ({min(self.values):,.{digits}f} to {max(self.values):,.{digits}f})"
        return f"{shown}, {self.failures:,} failed" if self.failures else shown


class Figure(NamedTuple):
    """One line of the result."""

    what: str
    ours: str
    peer: str
    ratio: str
    bar: str
    met: bool
    standing: float | None = None
    """How many times as good as the bar asks for; None without a bar."""
    samples: Mapping[str, Sample] = {}
    """The values behind the line, by side."""


class Rate(NamedTuple):
    """What several threads reached together."""

    per_second: float
    """Successful calls."""
    failures: int = 0
    milliseconds: Sequence[float] = ()
    """What each call took, in ascending order."""


def compare(
    what: str,
    ours: Sample,
    peer: Sample,
    *,
    least: float | None = None,
    faultless: bool = False,
    beside: str = "",
    smaller: bool = False,
    digits: int = 0,
) -> Figure:
    """A line that holds ours against a peer.

    Args:
        least: the ratio asked for, in our favour; None for a line without a bar.
        faultless: whether none of our calls may have failed.
        beside: who the peer is, where the part's heading does not tell.
        smaller: whether the smaller figure is the better one, as with times.
        digits: of the figures shown.
    """
    better, worse = (peer, ours) if smaller else (ours, peer)
    ratio = better.median / worse.median if worse.median else math.inf
    bar = "" if least is None else f"{least:g}x" + (", none failed" if faultless else "")
    return Figure(
        what,
        ours.text(digits) + (", none failed" if faultless and not ours.failures else ""),
        peer.text(digits) + (f" ({beside})" if beside else ""),
        f"{ratio:.1f}x" if ratio >= 1 else f"{ratio:.2f}x",
        bar,
        (least is None or ratio >= least) and not (faultless and ours.failures),
        None if least is None else ratio / least,
        {"ours": ours, beside or "peer": peer},
    )


def limited(what: str, ours: Sample, most: float, unit: str, *, digits: int = 0) -> Figure:
    """A line that holds ours against a number that it must not exceed; infinity for a line without a bar."""
    bar = "" if most == math.inf else f"at most {most:,g} {unit}".rstrip()
    standing = None if most == math.inf else most / ours.median
    return Figure(what, ours.text(digits), "", "", bar, ours.median <= most, standing, {"ours": ours})


def growth(what: str, large: Sample, small: Sample, beside: str, most: float, *, digits: int = 0) -> Figure:
    """A line that holds a cost of ours against another one of ours, of which it may be a multiple."""
    ratio = large.median / small.median
    return Figure(
        what,
        large.text(digits),
        f"{small.text(digits)} ({beside})",
        f"{ratio:.2f}x the time",
        f"at most {most:g}x",
        ratio <= most,
        most / ratio,
        {"ours": large, beside: small},
    )


def run_threads(threads: int, calls: int, call: Callable[[int, int], object]) -> Rate:
    """`threads` threads that make `calls` calls each: `call(thread, number)`. An exception is a failure."""
    return _run(threads, call, lambda number, _: number < calls)


def run_for(threads: int, seconds: float, call: Callable[[int, int], object]) -> Rate:
    """The same for a time: whoever is through with a call before it is over makes another one."""
    return _run(threads, call, lambda _, elapsed: elapsed < seconds)


def _run(threads: int, call: Callable[[int, int], object], more: Callable[[int, float], bool]) -> Rate:
    failures = [0] * threads
    times: list[list[float]] = [[] for _ in range(threads)]
    begun = 0.0

    def begin() -> None:
        nonlocal begun
        begun = time.perf_counter()

    start = threading.Barrier(threads, action=begin)

    def work(thread: int) -> None:
        start.wait()
        number, now = 0, begun
        while more(number, now - begun):
            try:
                call(thread, number)
            except Exception:
                failures[thread] += 1
            number, before, now = number + 1, now, time.perf_counter()
            times[thread].append((now - before) * 1_000)

    running = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for one in running:
        one.start()
    for one in running:
        one.join()
    took = time.perf_counter() - begun
    milliseconds = sorted(time for own in times for time in own)
    return Rate((len(milliseconds) - sum(failures)) / took, sum(failures), milliseconds)


def in_turns(rounds: int, sides: Sequence[Callable[[], float | Rate]]) -> list[Sample]:
    """What each side reached, measured in turns."""
    measured: list[list[Rate]] = [[] for _ in sides]
    for _ in range(rounds):
        for position, side in enumerate(sides):
            value = side()
            measured[position].append(value if isinstance(value, Rate) else Rate(value))
    return [
        Sample(tuple(rate.per_second for rate in rates), sum(rate.failures for rate in rates))
        for rates in measured
    ]


def median_us(calls: int, call: Callable[[], object]) -> float:
    """The median time of a call, microseconds."""
    times = []
    for _ in range(calls):
        begun = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - begun) / 1_000)
    return statistics.median(times)
