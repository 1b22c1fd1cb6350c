"""Growth of a catalog: commits, look-ups and memory at a thousand tables and at a million.

Each measurement runs in a separate process, which starts with an empty cache. `python -m benchmarks.growth WHAT STORE
TABLES ...` prints its result as JSON.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measurement import Figure, Sample, compare, growth, limited, median_us
from benchmarks.population import WAREHOUSE, name_of, namespaces_for, populate
from benchmarks.traffic import counted
from polaris_spark.backends.base import Backend, ObjectKey
from polaris_spark.objects import decode_header

WARM_UP = 500
"""Number of commits before the measured commits."""
WORKING_SET = 200
"""Number of tables that are looked up repeatedly."""
CACHES_MIB = (32, 128)
BESIDE_CACHE_MIB = 48
"""Maximum growth of memory in addition to the cache, in MiB.

This covers pages in SQLite's cache, the response of a listing, and memory that Python does not release.
"""
IDS = 100_000
"""Number of ids in a batch."""
_SEED = 7
_ROWS_OF_A_READ = 500


def measure(folder: Path, *, sizes: Sequence[int], rounds: int, calls: int, loads: int) -> list[Figure]:
    """Build catalogs of these sizes and measure them in turns. Catalogs already in `folder` are reused.

    Args:
        sizes: numbers of tables, ascending.
        calls: number of commits in a turn.
        loads: number of random tables to load when memory is measured.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for size in sizes:
        build(folder, size)
    taken: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            taken[size].append(run("commits", folder, size, calls))
    figures = [_commit_time(sizes[0], size, taken, name) for size in sizes[1:] for name in ("mean", "median")]
    for size in sizes:
        figures += _commit_rows(size, taken[size])
    for size in sizes:
        figures += _lookups(size, [run("lookups", folder, size) for _ in range(rounds)])
    for mib in CACHES_MIB:
        figures.append(_memory(sizes[-1], mib, run("memory", folder, sizes[-1], mib, loads), loads))
    figures.append(_ids([run("ids", folder, sizes[0], IDS) for _ in range(rounds)]))
    return figures


def build(folder: Path, size: int) -> None:
    """Build a catalog of this size in a folder, unless it exists."""
    if not (folder / f"{size}.built").exists():
        for left in folder.glob(f"{size}.db*"):
            left.unlink()
        run("build", folder, size)
        (folder / f"{size}.built").touch()


def run(what: str, folder: Path, size: int, *arguments: int, module: str = __name__) -> dict[str, float]:
    """Run a measurement of a built catalog in a separate process; return its result.

    Args:
        module: name of the module with the measurement.
    """
    store = f"sqlite://{folder.absolute()}/{size}.db"
    command = [sys.executable, "-m", module, what, store, str(size), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{what} failed: {done.stderr[-2_000:]}")
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _sample(taken: Sequence[dict[str, float]], name: str) -> Sample:
    return Sample(tuple(one[name] for one in taken))


def _commit_time(least: int, size: int, taken: dict[int, list[dict[str, float]]], name: str) -> Figure:
    large, small = _sample(taken[size], f"{name}_us"), _sample(taken[least], f"{name}_us")
    what = f"property commit to a random table of {size:,}, {name}, us"
    return growth(what, large, small, f"of {least:,}", 2)


def _commit_rows(size: int, taken: Sequence[dict[str, float]]) -> list[Figure]:
    where = f"at {size:,} tables"
    return [
        limited(f"bytes written per commit {where}, mean", _sample(taken, "bytes"), 20_000, "bytes"),
        limited(f"the same, 99th percentile {where}", _sample(taken, "bytes_p99"), math.inf, "bytes"),
        limited(f"rows written per commit {where}, mean", _sample(taken, "rows"), math.inf, "rows", digits=1),
        limited(f"commit {where}, 99th percentile", _sample(taken, "p99_us"), math.inf, "us"),
    ]


def _lookups(size: int, taken: Sequence[dict[str, float]]) -> list[Figure]:
    where = f"among {size:,} tables"
    return [
        limited(f"look-up of a table {where}, warm", _sample(taken, "lookup_us"), 30, "us", digits=1),
        limited(f"the same as a HEAD request {where}, warm", _sample(taken, "head_us"), 30, "us", digits=1),
        limited(f"index reads of a look-up {where}, cold", _sample(taken, "cold_reads"), 3, "reads"),
    ]


def _memory(size: int, mib: int, found: dict[str, float], loads: int) -> Figure:
    return limited(
        f"memory that a process gains with cache-bytes={mib} MiB: {size:,} tables listed, {loads:,} loaded, "
        f"{WARM_UP:,} changed",
        Sample((found["growth_bytes"] / 2**20,)),
        mib + BESIDE_CACHE_MIB,
        "MiB",
    )


def _ids(taken: Sequence[dict[str, float]]) -> Figure:
    what = f"ids per second, one process, batches of {IDS:,}"
    return compare(what, _sample(taken, "per_second"), Sample((1_000_000,)), least=1, beside="asked for")


# Programs that run in the separate processes.


def opened(store: str, **properties: Any) -> Any:
    """Open a built catalog in the same way as servers and the bridge."""
    import polaris_spark
    from polaris_spark.store.cache import collect_seldom

    session = polaris_spark.connect(
        store=store, warehouse=WAREHOUSE, catalog="bench", metadata_files="never", **properties
    )
    collect_seldom()
    return session


def _build_here(store: str, size: int) -> dict[str, float]:
    with opened(store, commit_timeout="1 h") as session:
        return {"seconds": populate(session, tables=size, namespaces=namespaces_for(size))}


def table_path(size: int, number: int) -> str:
    """Return the path of a table of a built catalog."""
    name = name_of(number, size, namespaces_for(size))
    return f"v1/namespaces/{name.namespace[0]}/tables/{name.name}"


def commits(store: str, size: int, calls: int) -> dict[str, float]:
    """Measure property commits to random tables, including spills: times in microseconds, rows and bytes written."""
    chance, times, sizes, rows, trips, worked = random.Random(_SEED), [], [], [], [], 0.0
    with opened(store) as session, counted(session.connection.backend) as traffic:
        for number in range(WARM_UP + calls):
            path = table_path(size, chance.randrange(size))
            update = {"action": "set-properties", "updates": {"round": f"{time.time_ns()}"}}
            body = json.dumps({"requirements": [], "updates": [update]})
            traffic.clear()
            begun, began_work = time.perf_counter_ns(), time.process_time()
            status, _, answer = session.request("POST", path, body=body)
            took, work = time.perf_counter_ns() - begun, time.process_time() - began_work
            if status != 200:
                raise RuntimeError(answer)
            if number >= WARM_UP:
                times.append(took / 1_000)
                worked += work
                sizes.append(traffic.bytes_written)
                rows.append(traffic.rows_written)
                trips.append(traffic.round_trips)
    return {
        "mean_us": statistics.mean(times),
        "median_us": statistics.median(times),
        "p99_us": sorted(times)[len(times) * 99 // 100],
        "cpu_us": worked * 1e6 / calls,
        "bytes": statistics.mean(sizes),
        "bytes_p99": sorted(sizes)[len(sizes) * 99 // 100],
        "rows": statistics.mean(rows),
        "round_trips": statistics.mean(trips),
    }


def lookups(store: str, size: int) -> dict[str, float]:
    """Measure look-ups of names, with an empty cache and with a warm cache."""
    from polaris_spark.catalog.entities.entities import find, table_key
    from polaris_spark.catalog.rows import NAMES
    from polaris_spark.store.cache import process_cache

    chance = random.Random(_SEED)
    numbers = [chance.randrange(size) for _ in range(WORKING_SET)]
    keys = [table_key(name_of(number, size, namespaces_for(size))) for number in numbers]
    paths = [table_path(size, number) for number in numbers]
    with opened(store) as session, counted(session.connection.backend) as traffic:
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
    with opened(store) as session:
        catalog = session.catalog
        for key, path in zip(keys, paths, strict=True):
            find(catalog.view(), key)
            session.request("HEAD", path)
        found = median_us(4_000, lambda: find(catalog.view(), chance.choice(keys)))
        head = median_us(4_000, lambda: session.request("HEAD", chance.choice(paths)))
    return {"lookup_us": found, "head_us": head, "cold_reads": max(cold), "height": height}


def memory(store: str, size: int, mib: int, loads: int) -> dict[str, float]:
    """Measure the growth of memory, in bytes, of a process that lists all tables, loads many, and commits to some."""
    from polaris_spark.store.cache import process_cache

    chance = random.Random(_SEED)
    with opened(store, cache_bytes=f"{mib} MiB") as session:
        session.request("GET", table_path(size, 0))
        before = _resident()
        for namespace in range(namespaces_for(size)):
            session.request("GET", f"v1/namespaces/namespace_{namespace:05d}/tables")
        for _ in range(loads):
            status, _, answer = session.request("GET", table_path(size, chance.randrange(size)))
            if status != 200:
                raise RuntimeError(answer)
        update = {"action": "set-properties", "updates": {"round": "memory"}}
        body = json.dumps({"requirements": [], "updates": [update]})
        for _ in range(WARM_UP):
            session.request("POST", table_path(size, chance.randrange(size)), body=body)
        after = _peak()
        return {"growth_bytes": after - before, "cache_bytes": process_cache().bytes}


def _resident() -> int:
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    """Return a memory value of this process from `/proc/self/status`, in bytes. Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1_024 for line in lines if line.startswith(f"{name}:"))


def ids(store: str, _size: int, batch: int) -> dict[str, float]:
    """Measure the ids per second that one process generates in batches."""
    with opened(store) as session:
        generator = session.catalog.references.ids
        generator.next_id()
        begun = time.perf_counter()
        made = sum(len(generator.next_ids(batch)) for _ in range(20))
        return {"per_second": made / (time.perf_counter() - begun)}


def _scanned(backend: Backend) -> int:
    """Return the number of rows that a scan of all objects reads."""
    return sum(
        batch.num_rows for split in backend.splits("objects", None, 2) for batch in backend.scan(split)
    )


def _marked(backend: Backend, realm: str, commit: int) -> int:
    """Return the number of objects that are reachable from a commit by strong pointers, including the commit.

    Objects are visited breadth first, by the headers of their rows.
    """
    seen = {commit}
    level = [commit]
    while level:
        below = []
        for low in range(0, len(level), _ROWS_OF_A_READ):
            rows = backend.read_objects(realm, [ObjectKey(id) for id in level[low : low + _ROWS_OF_A_READ]])
            for key, value in rows.items():
                for id in decode_header(value, str(key.id)).strong:
                    if id not in seen:
                        seen.add(id)
                        below.append(id)
        level = below
    return len(seen)


def rows(store: str, _size: int) -> dict[str, float]:
    """Return the numbers of all rows and of live rows, and the processor seconds to read them.

    This runs in a separate process.
    """
    with opened(store) as session:
        backend, head = session.connection.backend, session.catalog.head()
        begun = time.process_time()
        everything = _scanned(backend)
        between = time.process_time()
        live = _marked(backend, head.store.realm, head.head.commit)
        ended = time.process_time()
    return {
        "rows": everything,
        "scan_s": between - begun,
        "live_rows": live,
        "mark_s": ended - between,
    }


_PROGRAMS: dict[str, Callable[..., dict[str, float]]] = {
    "build": _build_here,
    "commits": commits,
    "lookups": lookups,
    "memory": memory,
    "ids": ids,
    "rows": rows,
}


if __name__ == "__main__":
    _what, _store, *_numbers = sys.argv[1:]
    sys.stdout.write(json.dumps(_PROGRAMS[_what](_store, *map(int, _numbers))) + "\n")
