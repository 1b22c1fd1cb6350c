"""The picture of the demo: flights by month before and after the MERGE, and the catalog's history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLORS = {"engineer": "#1f6f8b", "analyst": "#d1495b"}
_BEFORE, _AFTER = "#b8c4cc", "#1f6f8b"


def draw(
    path: Path, before: Mapping[int, int], after: Mapping[int, int], changes: Sequence[Mapping[str, Any]]
) -> None:
    """Draw two diagrams into one PNG file: the flights by month before and after the MERGE, and the catalog's history.

    Args:
        path: path of the file.
        before: number of flights by month before the MERGE.
        after: number of flights by month after the MERGE.
        changes: rows of the view `changes`, the oldest first.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
    _months(left, before, after)
    _history(right, changes)
    figure.savefig(path, dpi=140)


def _months(axes: Any, before: Mapping[int, int], after: Mapping[int, int]) -> None:
    months = sorted(after)
    axes.bar(
        [month - 0.2 for month in months],
        [before.get(m, 0) for m in months],
        0.4,
        color=_BEFORE,
        label="before",
    )
    axes.bar([month + 0.2 for month in months], [after[m] for m in months], 0.4, color=_AFTER, label="after")
    axes.set_ylim(bottom=0.9 * min(*before.values(), *after.values()))
    axes.set_xticks(months)
    axes.set_xlabel("month of 2013")
    axes.set_title("Flights before and after the MERGE (axis cut)")
    _legend(axes)
    _plain(axes)


def _history(axes: Any, changes: Sequence[Mapping[str, Any]]) -> None:
    names = list(dict.fromkeys(row["name"] for row in changes))
    start = changes[0]["changed_at"]
    for principal, color in COLORS.items():
        mine = [row for row in changes if row["principal"] == principal]
        seconds = [(row["changed_at"] - start).total_seconds() for row in mine]
        places = [names.index(row["name"]) for row in mine]
        axes.scatter(seconds, places, s=40, color=color, label=principal, zorder=3)
    for place, name in enumerate(names):
        times = [(row["changed_at"] - start).total_seconds() for row in changes if row["name"] == name]
        axes.plot([min(times), max(times)], [place, place], color="#d0d6da", zorder=1)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("seconds since the first change")
    axes.set_title(f"History of the catalog: {len(changes)} changes")
    _legend(axes)
    _plain(axes)


def _legend(axes: Any) -> None:
    """Add a legend of the colors below the drawing, where it does not hide anything."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, frameon=False)


def _plain(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
