"""Comparison of the capacity model with measurements at several sizes.

Times are processor times of this process, so that other work on the machine, and its disk, have less influence.
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
"""Factor by which a measurement may be higher or lower than the model: two shared cores vary this much."""


def measure(folder: Path, *, sizes: Sequence[int], rounds: int, calls: int) -> list[Figure]:
    """Compare predictions with measurements for catalogs of these sizes. Catalogs already in `folder` are reused."""
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
    """Return a line that compares a measurement with the model."""
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
    """Return the number of rows that a scan of all objects reads."""
    return sum(
        batch.num_rows for split in backend.splits("objects", None, 2) for batch in backend.scan(split)
    )


def marked(backend: Backend, realm: str, commit: int) -> int:
    """Return the number of objects that are reachable from a commit by strong pointers, including the commit.

    Objects are visited breadth first, by the headers of their rows.
    """
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
    """Return the numbers of all rows and of live rows, and the processor seconds to read them.

    This runs in a separate process.
    """
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
