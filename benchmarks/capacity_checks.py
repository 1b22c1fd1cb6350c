"""Comparison of the capacity model with measurements at several sizes.

Times are processor times of this process, so that other work on the machine, and its disk, have less influence.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks import capacity, growth
from benchmarks.measurement import Figure, Sample

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
