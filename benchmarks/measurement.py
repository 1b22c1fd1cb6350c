"""Timing of both sides in turns."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Sample(NamedTuple):
    """The results of one side: one value per round."""

    values: tuple[float, ...]
    failures: int = 0
    """Number of failed calls in all rounds."""

    @property
    def median(self) -> float:
        """The median, which is the value that is compared."""
        return statistics.median(self.values)

    def text(self, digits: int = 0) -> str:
        """Return the median, the range if there are several rounds, and the number of failures if there are any."""
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
    """Factor by which the figure is better than its bar; None without a bar."""
    samples: Mapping[str, Sample] = {}
    """The values behind the line, by side."""


class Rate(NamedTuple):
    """The combined rate of several threads."""

    per_second: float
    """Successful calls per second."""
    failures: int = 0
    milliseconds: Sequence[float] = ()
    """Time of each call in milliseconds, ascending."""


def total(rates: Sequence[Rate]) -> Rate:
    """Return the sum of the rates of several processes, and the sum of their failures."""
    return Rate(sum(rate.per_second for rate in rates), sum(rate.failures for rate in rates))


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
    """Return a line that compares polaris_spark with a peer.

    Args:
        least: required ratio by which polaris_spark is better; None for a line without a bar.
        faultless: whether the bar also requires that no call of polaris_spark failed.
        beside: name of the peer, if the part's heading does not contain it.
        smaller: whether smaller values are better, as for times.
        digits: number of decimal places shown.
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
    """Return a line that compares a value with the maximum `most`; infinity stands for a line without a bar."""
    bar = "" if most == math.inf else f"at most {most:,g} {unit}".rstrip()
    standing = None if most == math.inf else most / ours.median
    return Figure(what, ours.text(digits), "", "", bar, ours.median <= most, standing, {"ours": ours})


def growth(what: str, large: Sample, small: Sample, beside: str, most: float, *, digits: int = 0) -> Figure:
    """Return a line that compares a cost of polaris_spark with a smaller cost. Their ratio may be at most `most`."""
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
    """Run `threads` threads that each call `call(thread, number)` `calls` times. An exception counts as a failure."""
    return _run(threads, call, lambda number, _: number < calls)


def run_for(threads: int, seconds: float, call: Callable[[int, int], object]) -> Rate:
    """Run threads like `run_threads`, for `seconds` seconds: a thread starts another call until this time is over."""
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
    """Measure all sides in turns; return the results of each side."""
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
    """Return the median time of a call, in microseconds."""
    times = []
    for _ in range(calls):
        begun = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - begun) / 1_000)
    return statistics.median(times)
