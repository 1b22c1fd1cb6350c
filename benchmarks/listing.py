"""A namespace of very many tables: listing, existence checks, and the bytes that a commit writes."""

from __future__ import annotations

import random
import statistics
from pathlib import Path
from typing import Any

from benchmarks.catalogs import NAMESPACE, Ours
from benchmarks.measurement import Figure, Sample, limited, median_us, run_threads
from polaris_spark.backends.base import ObjectRow, ReferenceRow

PAGE = 1_000
CREATORS = 16


def measure(folder: Path, *, tables: int, calls: int, commits: int) -> list[Figure]:
    """Measure one page, one existence check, and bytes per commit over `commits` commits to random tables."""
    ours = Ours(folder / "listing", metadata_files="never")
    try:
        handles = _fill(ours, tables)
        page = _page_ms(ours, calls)
        exists = _exists_us(ours, handles, calls * 10)
        sizes = _commit_bytes(ours, handles, commits)
    finally:
        ours.close()
    sizes_mean = Sample((statistics.mean(sizes),))
    return [
        limited(
            f"one page of {PAGE:,} in a namespace of {tables:,} tables, warm",
            Sample((page,)),
            10,
            "ms",
            digits=2,
        ),
        limited(f"existence check among {tables:,} tables, warm", Sample((exists,)), 200, "us"),
        limited(
            f"bytes written per property commit at {tables:,} tables, mean of {commits:,}",
            sizes_mean,
            18_000,
            "bytes",
        ),
    ]


def _fill(ours: Ours, tables: int) -> list[Any]:
    handles: list[Any] = [None] * tables

    def create(thread: int, number: int) -> None:
        position = number * CREATORS + thread
        handles[position] = ours.create(f"table_{position:06d}")

    made = run_threads(CREATORS, tables // CREATORS, create)
    if made.failures:
        raise RuntimeError(f"{made.failures} tables could not be created")
    return [handle for handle in handles if handle is not None]


def _page_ms(ours: Ours, calls: int) -> float:
    path = f"v1/namespaces/{NAMESPACE}/tables"
    first = ours.request("GET", path, pageSize=str(PAGE), pageToken="")
    query = {"pageSize": str(PAGE), "pageToken": first.get("next-page-token") or ""}
    ours.session.request("GET", path, query=query)
    return median_us(calls, lambda: ours.session.request("GET", path, query=query)) / 1_000


def _exists_us(ours: Ours, handles: list[Any], calls: int) -> float:
    choice = random.Random(1)
    paths = [f"v1/namespaces/{NAMESPACE}/tables/{choice.choice(handles)[0]}" for _ in range(200)]
    for path in paths:
        ours.session.request("HEAD", path)
    return median_us(calls, lambda: ours.session.request("HEAD", choice.choice(paths)))


def _commit_bytes(ours: Ours, handles: list[Any], commits: int) -> list[int]:
    """Return the bytes of the values of all rows that each commit writes, including the reference's row."""
    backend, sizes = ours.session.connection.backend, []
    original = backend.write_and_swap

    def counted(realm: str, rows: list[ObjectRow], name: str, expected: bytes, new: ReferenceRow) -> Any:
        sizes.append(sum(len(row.value) for row in rows) + len(new.value))
        return original(realm, rows, name, expected, new)

    backend.write_and_swap = counted  # type: ignore[method-assign,assignment]  # counts what passes
    choice = random.Random(2)
    for number in range(commits):
        ours.set_property(choice.choice(handles), str(number))
    del backend.write_and_swap
    return sizes
