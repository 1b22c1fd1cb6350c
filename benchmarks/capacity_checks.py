"""Holding the capacity model against measurements at several sizes.

Times are those of this process on a processor, so that what others do on the machine, and its disk, matter less.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import capacity, growth
from benchmarks.measuring import Figure, Sample
from polaris_spark.backends.base import Backend, ObjectKey
from polaris_spark.objects import decode_header

_BATCH = 500
_WITHIN = 2.0
"""By which factor a measurement may differ either way: what two shared cores vary by."""


def measure(folder: Path, *, sizes: Sequence[int], rounds: int, calls: int) -> list[Figure]:
    """Catalogs of these sizes (those in `folder` already are used again): predicted beside measured."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = []
    for size in sizes:
        growth.build(folder, size)
        found = growth.run("rows", folder, size)
        live = found["live_rows"]
        figures += [
            _figure(f"live rows of {size:,} tables", size * capacity.TABLE_ROWS, [live]),
            _figure("processor s to mark them", live / capacity.MARK_ROWS, [found["mark_s"]], 2),
            _figure(
                f"processor s to scan {found['rows']:,.0f} rows",
                found["rows"] / capacity.SCAN_ROWS,
                [found["scan_s"]],
                2,
            ),
        ]
        taken = [growth.run("commits", folder, size, calls) for _ in range(rounds)]
        cost = capacity.cost(size)
        where = f"a commit at {size:,} tables"
        figures += [
            _figure(f"bytes written by {where}", cost.bytes, [one["bytes"] for one in taken]),
            _figure(f"rows written by {where}", cost.rows, [one["rows"] for one in taken], 2),
            _figure(f"processor us of {where}", cost.cpu_us, [one["cpu_us"] for one in taken]),
        ]
    return figures


def _figure(what: str, predicted: float, measured: Sequence[float], digits: int = 0) -> Figure:
    """A line that holds a measurement against the model."""
    sample = Sample(tuple(measured))
    ratio = sample.median / predicted
    return Figure(
        what,
        sample.text(digits),
        f"{predicted:,.{digits}f} (predicted)",
        f"{ratio - 1:+.0%}",
        f"within {_WITHIN:g}x",
        1 / _WITHIN <= ratio <= _WITHIN,
        _WITHIN / max(ratio, 1 / ratio),
        {"ours": sample, "predicted": Sample((predicted,))},
    )


def scanned(backend: Backend) -> int:
    """Rows that a scan of all objects reads."""
    return sum(
        batch.num_rows for split in backend.splits("objects", None, 2) for batch in backend.scan(split)
    )


def marked(backend: Backend, realm: str, commit: int) -> int:
    """Objects that a commit reaches through strong pointers, itself included, breadth first by row headers."""
    seen = {commit}
    level = [commit]
    while level:
        below = []
        for low in range(0, len(level), _BATCH):
            rows = backend.read_objects(realm, [ObjectKey(id) for id in level[low : low + _BATCH]])
            for key, value in rows.items():
                for id in decode_header(value, str(key.id)).strong:
                    if id not in seen:
                        seen.add(id)
                        below.append(id)
        level = below
    return len(seen)


def rows(store: str, _size: int) -> dict[str, float]:
    """How many rows there are and how much work reading them is; runs in a process of its own."""
    with growth.opened(store) as session:
        backend, head = session.connection.backend, session.catalog.head()
        begun = time.process_time()
        everything = scanned(backend)
        between = time.process_time()
        live = marked(backend, head.store.realm, head.head.commit)
        ended = time.process_time()
    return {
        "rows": everything,
        "scan_s": between - begun,
        "live_rows": live,
        "mark_s": ended - between,
    }
