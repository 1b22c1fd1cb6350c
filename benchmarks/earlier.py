"""Cost of requests compared with an earlier checkout of this project, to measure the effect of a change."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.catalogs import NAMESPACE, Ours
from benchmarks.measurement import Figure, Sample, growth

MOST = 1.03
"""Maximum ratio of a request's cost to its cost in the earlier checkout."""

_TABLES = 1_000
_CALLS = {"page": 250, "load": 2_500, "commit": 500}
"""Number of requests in a turn, by kind. A turn takes about a tenth of a second, so that processor caches can fill."""


class Cost(NamedTuple):
    """Mean elapsed time and processor time of one request in a turn, in microseconds."""

    elapsed: float
    processor: float


def measure(folder: Path, *, checkout: Path, turns: int) -> list[Figure]:
    """Measure property commits to one table, loads of a table, and pages of 1,000 tables, with both checkouts in turns.

    Requests are handled in process, on SQLite, without metadata files.

    Args:
        folder: folder for both stores.
        checkout: folder of the earlier checkout.
        turns: number of turns of each side for each kind of request.
    Raises:
        RuntimeError: a side failed.
    """
    figures = []
    with ExitStack() as stack:
        now = stack.enter_context(_Side(Path(__file__).parents[1], folder / "now"))
        before = stack.enter_context(_Side(checkout, folder / "before"))
        for request in _CALLS:
            costs: dict[_Side, list[Cost]] = {now: [], before: []}
            for turn in range(turns):
                for side in (now, before) if turn % 2 else (before, now):
                    costs[side].append(side.run(request))
            for part in Cost._fields:
                mine, theirs = (
                    Sample(tuple(getattr(cost, part) for cost in costs[side])) for side in (now, before)
                )
                what = f"{request}: {part} time, us"
                figures.append(growth(what, mine, theirs, "the earlier checkout", MOST, digits=1))
    return figures


class _Side:
    """A process that runs the requests of this file with the code of a checkout."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        command = [sys.executable, "-c", Path(__file__).read_text(), str(folder)]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed with the process
        self._process = subprocess.Popen(
            command,
            cwd=checkout,  # a program given by `-c` searches this folder for modules first
            env={**os.environ, "PYTHONPATH": str(checkout)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def __enter__(self) -> _Side:
        for request in _CALLS:
            self.run(request)  # once to warm up
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._errors.close()

    def run(self, request: str) -> Cost:
        """Run a turn of requests of this kind; return the mean cost of one request.

        Raises:
            RuntimeError: the process failed.
        """
        assert self._process.stdin
        assert self._process.stdout
        print(request, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            self._process.wait()
            self._errors.seek(0)
            raise RuntimeError(f"a checkout could not be measured: {self._errors.read()[-2_000:]}")
        return Cost(*map(float, answer.split()))


def serve(folder: Path) -> None:
    """Run the kinds of requests that standard input names; write the cost of each to standard output."""
    ours = Ours(folder, metadata_files="never")
    try:
        handles = [ours.create(f"table_{n}") for n in range(_TABLES)]
        path = f"v1/namespaces/{NAMESPACE}/tables"
        requests: dict[str, Callable[[int], object]] = {
            "commit": lambda number: ours.set_property(handles[0], str(number)),
            "load": lambda _: ours.load(handles[1]),
            "page": lambda _: ours.session.request("GET", path, query={"pageSize": str(_TABLES)}),
        }
        for line in sys.stdin:
            call, calls = requests[line.strip()], _CALLS[line.strip()]
            elapsed, processor = time.perf_counter(), time.process_time()
            for number in range(calls):
                call(number)
            elapsed, processor = time.perf_counter() - elapsed, time.process_time() - processor
            sys.stdout.write(f"{elapsed / calls * 1e6} {processor / calls * 1e6}\n")
            sys.stdout.flush()
    finally:
        ours.close()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
