"""Commits to a table with many refs and properties: bytes written and time, compared with a table with few."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.catalogs import NAMESPACE, Ours
from benchmarks.loading import append
from benchmarks.measurement import Figure, Sample, growth, in_turns, limited, median_us
from benchmarks.traffic import counted

MOST_BYTES = 16_000
"""Maximum mean bytes of a commit, independent of the number of tags and properties."""
MOST_TIMES = 20
"""Maximum ratio of the commit times of the largest and the smallest table.

The response of a commit contains all metadata of the table, so the total time grows. The work of the commit itself does
not grow.
"""
_MEASURED_COMMITS = 60


def measure(
    folder: Path, *, rounds: int, calls: int, sizes: Sequence[int] = (0, 1_000, 9_900)
) -> list[Figure]:
    """Measure commits of one property and commits of one tag, to tables of several sizes.

    Args:
        sizes: numbers of tags, and of properties, ascending. A table can have 10,000 tags.
    """
    ours = Ours(folder / "wide", metadata_files="never")
    try:
        tables = {size: _table(ours, size) for size in sizes}
        figures = []
        for what, update in (("property", _property), ("tag", _tag)):
            commits = {size: _committer(ours, path, update) for size, path in tables.items()}
            figures += [
                limited(
                    f"bytes of a {what} commit, {size:,} tags and properties",
                    Sample((_bytes(ours, commit),)),
                    MOST_BYTES,
                    "",
                )
                for size, commit in commits.items()
            ]
            sides = [lambda commit=commit: median_us(calls, commit) for commit in commits.values()]
            few, *more = in_turns(rounds, sides)
            figures += [
                growth(
                    f"{what} commit, {size:,} tags and properties, us",
                    took,
                    few,
                    f"ours, {sizes[0]:,}",
                    MOST_TIMES,
                )
                for size, took in zip(sizes[1:], more, strict=True)
            ]
    finally:
        ours.close()
    return figures


def _bytes(ours: Ours, commit: Callable[[], None]) -> float:
    """Return the mean of the bytes that a commit writes. A mean is needed because only some commits write shards."""
    sizes = []
    with counted(ours.session.connection.backend) as traffic:
        for _ in range(_MEASURED_COMMITS):
            traffic.clear()
            commit()
            sizes.append(traffic.bytes_written)
    return statistics.mean(sizes)


def _committer(ours: Ours, path: str, update: Callable[[int], dict[str, Any]]) -> Callable[[], None]:
    numbers = count()

    def commit() -> None:
        body = json.dumps({"requirements": [], "updates": [update(next(numbers))]})
        status, _, answer = ours.session.request("POST", path, {"snapshots": "refs"}, body)
        if status != 200:
            raise RuntimeError(answer)

    return commit


def _property(number: int) -> dict[str, Any]:
    """Return an update that sets one of 50 properties, spread over all properties, to a new value."""
    return {"action": "set-properties", "updates": {_name("note", number % 50 * 197): f"value {number}"}}


def _tag(number: int) -> dict[str, Any]:
    """Return an update that moves one of 50 tags, whose names are spread over all tags."""
    return _set_tag(_name("tag", number % 50 * 197) + "-moved", 1 + number // 50 % 2)


def _set_tag(name: str, snapshot_id: int) -> dict[str, Any]:
    return {"action": "set-snapshot-ref", "ref-name": name, "type": "tag", "snapshot-id": snapshot_id}


def _name(kind: str, number: int) -> str:
    return f"{kind}-{number:06d}"


def _table(ours: Ours, size: int) -> str:
    """Create a table with `size` tags and `size` properties; return its path."""
    name = f"wide_{size}"
    _, uuid = ours.create(name)
    path = f"v1/namespaces/{NAMESPACE}/tables/{name}"
    for number in (1, 2):
        ours.request("POST", path, append(uuid, number))
    updates: list[dict[str, Any]] = [_set_tag(_name("tag", number), 1) for number in range(size)]
    if size:
        properties = {_name("note", number): f"value {number}" for number in range(size)}
        updates.append({"action": "set-properties", "updates": properties})
        ours.request("POST", path, {"requirements": [], "updates": updates})
    return path
