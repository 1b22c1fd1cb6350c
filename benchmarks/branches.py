"""Branches of a large catalog: creating, comparing and merging them, and commits beside a thousand branches.

Each measurement runs in a separate process. `python -m benchmarks.branches WHAT STORE TABLES ...` prints its result as
JSON.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import growth
from benchmarks.measurement import Figure, Sample, limited
from benchmarks.measurement import growth as growing
from benchmarks.traffic import counted
from benchmarks.transactions import commit

CHANGES = 100
"""Number of tables that a branch changes before it is compared and merged."""


def measure(folder: Path, *, sizes: Sequence[int], rounds: int, branches: int) -> list[Figure]:
    """Build catalogs of these sizes, and measure their branches.

    Args:
        sizes: numbers of tables, ascending.
        branches: number of branches for the commits beside many branches.
    """
    folder.mkdir(parents=True, exist_ok=True)
    figures = []
    for size in sizes:
        growth.build(folder, size)
        taken = [growth.run("merges", folder, size, CHANGES, module=__name__) for _ in range(rounds)]
        figures += _merges(size, taken)
    size = sizes[0]
    before = [growth.run("beside", folder, size, 0, module=__name__) for _ in range(rounds)]
    growth.run("beside", folder, size, branches, module=__name__)  # creates them
    after = [growth.run("beside", folder, size, branches, module=__name__) for _ in range(rounds)]
    what = f"property commit on main beside {branches:,} branches, median, us"
    figures.append(
        growing(what, _sample(after, "commit_us"), _sample(before, "commit_us"), "beside none", 1.05)
    )
    return figures


def _merges(size: int, taken: Sequence[dict[str, float]]) -> list[Figure]:
    where = f"of {size:,} tables"
    return [
        limited(f"creating a branch {where}", _sample(taken, "create_ms"), 5, "ms", digits=2),
        limited(f"rows that this writes {where}", _sample(taken, "create_rows"), 8, "rows"),
        limited(f"diff of {CHANGES} changes {where}", _sample(taken, "diff_ms"), 50, "ms", digits=1),
        limited(f"merge of {CHANGES} changes {where}", _sample(taken, "merge_ms"), 100, "ms", digits=1),
        growing(
            f"property commit beside merges {where}, median, us",
            _sample(taken, "beside_us"),
            _sample(taken, "without_us"),
            "beside the same commits without merges",
            1.25,
        ),
        *(
            limited(
                f"property commit {meanwhile} merges {where}, {label}, us",
                _sample(taken, f"{name}_{label.split()[0]}_us"),
                math.inf,
                "us",
            )
            for label in ("99th percentile", "maximum")
            for meanwhile, name in (("without", "without"), ("beside", "beside"))
        ),
    ]


def _sample(taken: Sequence[dict[str, float]], name: str) -> Sample:
    return Sample(tuple(one[name] for one in taken))


# Programs that run in the separate processes.


def merges(store: str, size: int, changes: int) -> dict[str, float]:
    """Create branches, change tables in them and in main, and compare and merge them."""
    from polaris_spark.jobs.registry import call

    chance = random.Random(time.time_ns())
    times: dict[str, list[float]] = {"create": [], "diff": [], "merge": []}
    rows: list[float] = []

    def timed(what: str, action: Callable[[], Any]) -> Any:
        begun = time.perf_counter_ns()
        found = action()
        times[what].append((time.perf_counter_ns() - begun) / 1e6)
        return found

    with growth.opened(store) as main:
        for turn in range(3):
            name = f"b{time.time_ns()}"
            with counted(main.connection.backend) as traffic:
                timed("create", partial(call, main, "create_branch", name=name))
                rows.append(traffic.rows_written)
            with growth.opened(store, branch=name) as branch:
                tables = chance.sample(range(size), min(size, 2 * changes))
                for session, numbers in ((branch, tables[:changes]), (main, tables[changes:])):
                    for number in numbers:
                        commit(session, growth.table_path(size, number))
                found = timed("diff", partial(call, main, "diff", from_state=name, to_state="main"))
                if len(found) != len(tables):
                    raise RuntimeError(f"{len(found)} differences instead of {len(tables)}")
                if turn < 2:
                    merged = timed("merge", partial(call, main, "merge", source=name))
                    if len(merged) != len(tables[:changes]):
                        raise RuntimeError(f"{len(merged)} merged tables")
        without, beside = (
            _writing(store, size, partial(_change_often, store, size, changes, merges=merges))
            for merges in (False, True)
        )
    return {f"{what}_ms": statistics.median(taken) for what, taken in times.items()} | {
        "create_rows": max(rows),
        **_spread("without", without),
        **_spread("beside", beside),
    }


def _spread(what: str, times: list[float]) -> dict[str, float]:
    """Return the median, the 99th percentile and the maximum of times in microseconds."""
    return {
        f"{what}_us": statistics.median(times),
        f"{what}_99th_us": statistics.quantiles(times, n=100, method="inclusive")[98],
        f"{what}_maximum_us": max(times),
    }


def _change_often(store: str, size: int, changes: int, *, merges: bool) -> None:
    """Change tables in a branch five times, and merge the branch each time if `merges` is true."""
    from polaris_spark.jobs.registry import call

    chance, name = random.Random(time.time_ns()), f"b{time.time_ns()}"
    with growth.opened(store) as main:
        call(main, "create_branch", name=name)
        with growth.opened(store, branch=name) as branch:
            for _ in range(5):
                for number in chance.sample(range(1, size), min(size - 1, changes)):
                    commit(branch, growth.table_path(size, number))
                if merges:
                    call(main, "merge", source=name, strategy="theirs")


def _writing(store: str, size: int, other: Callable[[], None]) -> list[float]:
    """Return the times of commits on main to one table, in microseconds, while `other` runs."""
    ended, times = threading.Event(), list[float]()

    def until_ended() -> None:
        other()
        ended.set()

    work = threading.Thread(target=until_ended)
    with growth.opened(store) as session:
        path = growth.table_path(size, 0)
        work.start()
        while not ended.is_set():
            begun = time.perf_counter_ns()
            commit(session, path)
            times.append((time.perf_counter_ns() - begun) / 1_000)
        work.join()
    return times


def beside(store: str, size: int, branches: int) -> dict[str, float]:
    """Measure commits on main beside a number of branches, which are created if they do not exist."""
    from polaris_spark.jobs.registry import call

    with growth.opened(store) as main:
        for number in range(branches):
            call(main, "create_branch", name=f"many{number}", if_not_exists=True)
        chance, times = random.Random(size), []
        for _ in range(1_500):
            path = growth.table_path(size, chance.randrange(size))
            begun = time.perf_counter_ns()
            commit(main, path)
            times.append((time.perf_counter_ns() - begun) / 1_000)
    return {"commit_us": statistics.median(times[500:])}


if __name__ == "__main__":
    _, _what, _store, *_numbers = sys.argv
    _found = {"merges": merges, "beside": beside}[_what](_store, *map(int, _numbers))
    sys.stdout.write(json.dumps(_found) + "\n")
