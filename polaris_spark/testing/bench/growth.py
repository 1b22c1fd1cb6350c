"""What changes as a catalog grows: commits, look-ups and memory at a thousand tables and at a million.

Each measurement runs in a process of its own, which begins with an empty cache: `python -m
polaris_spark.testing.bench.growth WHAT STORE TABLES ARGUMENT` prints it as JSON.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from polaris_spark.testing.bench.measuring import Figure, median_us
from polaris_spark.testing.bench.population import WAREHOUSE, name_of, namespaces_for, populate
from polaris_spark.testing.bench.traffic import counted

SIZES = (1_000, 100_000, 1_000_000)
WARM_UP = 500
COMMITS = 2_000
WORKING_SET = 200
"""Tables that are looked up again and again."""
CACHES_MIB = (32, 128)
LOADS = 60_000
"""Random tables that are loaded where memory is measured, at most."""
IDS = 100_000
"""Ids in a batch."""
_SEED = 7


def measure(folder: Path, *, sizes: Sequence[int], rounds: int) -> list[Figure]:
    """Build catalogs of these sizes (those in `folder` already are used again) and measure them in turns."""
    sizes = sorted(sizes)
    for size in sizes:
        _build(folder, size)
    commits: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            commits[size].append(_run("commits", folder, size, COMMITS))
    middle = {
        size: {name: statistics.median([one[name] for one in taken]) for name in taken[0]}
        for size, taken in commits.items()
    }
    least, most = sizes[0], sizes[-1]
    figures = [_commit_figure(size, middle[size], middle[least]) for size in sizes]
    figures += [_bytes_figure(size, middle[size]) for size in sizes]
    for size in sizes:
        figures += _lookup_figures(size, _run("lookups", folder, size, 0))
    figures += [_memory_figure(most, mib, _run("memory", folder, most, mib)) for mib in CACHES_MIB]
    figures.append(_ids_figure(_run("ids", folder, least, IDS)))
    return figures


def _build(folder: Path, size: int) -> None:
    if not (folder / f"{size}.built").exists():
        for left in folder.glob(f"{size}.db*"):
            left.unlink()
        _run("build", folder, size, 0)
        (folder / f"{size}.built").touch()


def _run(what: str, folder: Path, size: int, argument: int) -> dict[str, float]:
    store = f"sqlite://{folder.absolute()}/{size}.db"
    command = [sys.executable, "-m", __name__, what, store, str(size), str(argument)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{what} failed: {done.stderr[-2_000:]}")
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _commit_figure(size: int, figures: dict[str, float], least: dict[str, float]) -> Figure:
    ratio = figures["mean_us"] / least["mean_us"]
    return Figure(
        f"property commit to a random table of {size:,}, mean us (median, p99)",
        f"{figures['mean_us']:,.0f} ({figures['median_us']:,.0f}, {figures['p99_us']:,.0f})",
        "",
        f"{ratio:.2f}x the time; median {figures['median_us'] / least['median_us']:.2f}x",
        "at most 2x",
        ratio <= 2,
    )


def _bytes_figure(size: int, figures: dict[str, float]) -> Figure:
    return Figure(
        f"bytes written per commit at {size:,} tables, mean (p99)",
        f"{figures['bytes']:,.0f} ({figures['bytes_p99']:,.0f})",
        "",
        f"{figures['rows']:.1f} rows, {figures['round_trips']:.1f} round trips",
        "at most 20,000",
        figures["bytes"] <= 20_000,
    )


def _lookup_figures(size: int, figures: dict[str, float]) -> list[Figure]:
    return [
        Figure(
            f"look-up of a table among {size:,}, warm, us: in the catalog; as a HEAD request",
            f"{figures['lookup_us']:.1f}; {figures['head_us']:.1f}",
            "",
            "",
            "at most 30 us",
            figures["lookup_us"] <= 30,
        ),
        Figure(
            f"index reads of a look-up among {size:,} tables with an empty cache",
            f"{figures['cold_reads']:.0f}",
            "",
            f"height {figures['height']:.0f}",
            "at most 3",
            figures["cold_reads"] <= 3,
        ),
    ]


def _memory_figure(size: int, mib: int, figures: dict[str, float]) -> Figure:
    growth = figures["growth_bytes"] / 2**20
    return Figure(
        f"memory that a process gains, {size:,} tables listed, {figures['loads']:,.0f} loaded, cache-bytes={mib} MiB",
        f"{growth:,.0f} MiB; cache {figures['cache_bytes'] / 2**20:,.0f} MiB",
        "",
        f"{growth / mib:.2f}x the setting",
        "setting + 48 MiB",
        growth <= mib + 48,
    )


def _ids_figure(figures: dict[str, float]) -> Figure:
    rate = figures["per_second"]
    return Figure(
        f"ids per second, one process, batches of {IDS:,}",
        f"{rate:,.0f}",
        "",
        "",
        "at least 1,000,000",
        rate >= 1_000_000,
    )


# What runs in the processes.


def _open(store: str, **properties: str) -> Any:
    import polaris_spark
    from polaris_spark.store.cache import collect_seldom

    session = polaris_spark.connect(
        store=store, warehouse=WAREHOUSE, catalog="bench", metadata_files="never", **properties
    )
    collect_seldom()  # as a server and the bridge do
    return session


def _build_here(store: str, size: int, _: int) -> dict[str, float]:
    with _open(store) as session:
        return {"seconds": populate(session, tables=size, namespaces=namespaces_for(size))}


def _table_path(size: int, number: int) -> str:
    name = name_of(number, size, namespaces_for(size))
    return f"v1/namespaces/{name.namespace[0]}/tables/{name.name}"


def commits(store: str, size: int, calls: int) -> dict[str, float]:
    """Property commits to random tables, spills included: times in microseconds, rows and bytes written."""
    chance, times, sizes, rows, trips = random.Random(_SEED), [], [], [], []
    with _open(store) as session, counted(session.connection.backend) as traffic:
        for number in range(WARM_UP + calls):
            path = _table_path(size, chance.randrange(size))
            update = {"action": "set-properties", "updates": {"round": f"{time.time_ns()}"}}
            body = json.dumps({"requirements": [], "updates": [update]})
            traffic.clear()
            begun = time.perf_counter_ns()
            status, _, answer = session.request("POST", path, body=body)
            took = time.perf_counter_ns() - begun
            if status != 200:
                raise RuntimeError(answer)
            if number >= WARM_UP:
                times.append(took / 1_000)
                sizes.append(traffic.bytes_written)
                rows.append(traffic.rows_written)
                trips.append(traffic.round_trips)
    return {
        "mean_us": statistics.mean(times),
        "median_us": statistics.median(times),
        "p99_us": sorted(times)[len(times) * 99 // 100],
        "bytes": statistics.mean(sizes),
        "bytes_p99": sorted(sizes)[len(sizes) * 99 // 100],
        "rows": statistics.mean(rows),
        "round_trips": statistics.mean(trips),
    }


def lookups(store: str, size: int, _: int) -> dict[str, float]:
    """Looking names up, with an empty cache and with a warm one."""
    from polaris_spark.catalog.entities import find, table_key
    from polaris_spark.catalog.rows import NAMES
    from polaris_spark.store.cache import process_cache

    chance = random.Random(_SEED)
    numbers = [chance.randrange(size) for _ in range(WORKING_SET)]
    keys = [table_key(name_of(number, size, namespaces_for(size))) for number in numbers]
    paths = [_table_path(size, number) for number in numbers]
    with _open(store) as session, counted(session.connection.backend) as traffic:
        catalog, cold = session.catalog, []
        root = catalog.head().index(NAMES)
        for key in keys:
            process_cache().clear()
            traffic.clear()
            if root.get(key) is None:
                raise RuntimeError(f"{key!r} is missing")
            cold.append(traffic.object_reads)
        for key, path in zip(keys, paths, strict=True):
            find(catalog.view(), key)
            session.request("HEAD", path)
        height = catalog.head().commit.index_roots[catalog.head().commit.index_names.index(NAMES)].height
    with _open(store) as session:
        catalog = session.catalog
        for key, path in zip(keys, paths, strict=True):
            find(catalog.view(), key)
            session.request("HEAD", path)
        found = median_us(4_000, lambda: find(catalog.view(), chance.choice(keys)))
        head = median_us(4_000, lambda: session.request("HEAD", chance.choice(paths)))
    return {"lookup_us": found, "head_us": head, "cold_reads": max(cold), "height": height}


def memory(store: str, size: int, mib: int) -> dict[str, float]:
    """What a process gains that lists every table, loads many, and commits to some; bytes."""
    from polaris_spark.store.cache import process_cache

    chance = random.Random(_SEED)
    with _open(store, cache_bytes=f"{mib} MiB") as session:
        session.request("GET", _table_path(size, 0))
        before = _resident()
        for namespace in range(namespaces_for(size)):
            session.request("GET", f"v1/namespaces/namespace_{namespace:05d}/tables")
        loads = min(size, LOADS)
        for _ in range(loads):
            status, _, answer = session.request("GET", _table_path(size, chance.randrange(size)))
            if status != 200:
                raise RuntimeError(answer)
        update = {"action": "set-properties", "updates": {"round": "memory"}}
        body = json.dumps({"requirements": [], "updates": [update]})
        for _ in range(WARM_UP):
            session.request("POST", _table_path(size, chance.randrange(size)), body=body)
        after = _peak()
        return {
            "growth_bytes": after - before,
            "cache_bytes": process_cache().bytes,
            "loads": loads,
        }


def _resident() -> int:
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    """A figure of this process's memory, bytes. Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1_024 for line in lines if line.startswith(f"{name}:"))


def ids(store: str, _size: int, batch: int) -> dict[str, float]:
    """Ids that one process takes in batches, per second."""
    with _open(store) as session:
        generator = session.catalog.references.ids
        generator.next_id()
        begun = time.perf_counter()
        made = sum(len(generator.next_ids(batch)) for _ in range(20))
        return {"per_second": made / (time.perf_counter() - begun)}


_PROGRAMS: dict[str, Callable[[str, int, int], dict[str, float]]] = {
    "build": _build_here,
    "commits": commits,
    "lookups": lookups,
    "memory": memory,
    "ids": ids,
}


if __name__ == "__main__":
    _what, _store, _size, _argument = sys.argv[1:]
    sys.stdout.write(json.dumps(_PROGRAMS[_what](_store, int(_size), int(_argument))) + "\n")
