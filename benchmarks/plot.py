"""Plot of the result: every figure relative to its bar, and a comparison of the catalogs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from benchmarks.findings import Grid, Run
from benchmarks.measurement import Figure

_OURS, _PEER = "#1f6f8b", "#b9b9b9"
_MET, _MISSED = "#2a7f62", "#c0392b"
_INCHES_PER_LINE = 0.27
_WIDTH = 15.0
_WORKLOADS_PER_ROW = 3


def draw(run: Run, path: Path) -> None:
    """Write the plot as a PNG file. Needs matplotlib (the extra `test`)."""
    from matplotlib.figure import Figure as Canvas

    barred = [
        (part, [figure for figure in run.figures(part) if figure.standing is not None])
        for part in run.findings
    ]
    barred = [(part, figures) for part, figures in barred if figures]
    grids = run.grids()
    heights = [_standing_height(barred)] if barred else []
    heights += [_grid_height(grid) for grid in grids]
    canvas = Canvas(figsize=(_WIDTH, sum(heights) + 1.2 if heights else 2.0), layout="constrained")
    canvas.suptitle(_title(run), fontsize=10, x=0.01, ha="left")
    if heights:
        sections = canvas.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        if barred:
            _draw_standing(sections[0], barred)
        for section, grid in zip(sections[len(heights) - len(grids) :], grids, strict=True):
            _draw_grid(section, grid)
    canvas.savefig(path, dpi=110)


def _title(run: Run) -> str:
    machine = run.machine
    words = [machine.get("processor", ""), machine.get("memory", ""), machine.get("system", "")]
    settings = [f"{what} {value}" for what, value in run.settings.items() if what in ("date", "rounds")]
    return "polaris_spark: " + ", ".join(word for word in (*words, *settings) if word)


def _standing_height(barred: Sequence[tuple[str, Sequence[Figure]]]) -> float:
    return 1.2 + _INCHES_PER_LINE * sum(len(figures) + 1 for _, figures in barred)


def _grid_height(grid: Grid) -> float:
    rows = -(-len(grid.columns) // _WORKLOADS_PER_ROW)
    return rows * (0.9 + _INCHES_PER_LINE * len(grid.rows)) + 0.4


def _draw_standing(section: Any, barred: Sequence[tuple[str, Sequence[Figure]]]) -> None:
    """Draw bars that start at 1 (the target is just met), grouped by part, on a log scale."""
    axes = section.subplots()
    labels, position = [], 0
    for part, figures in barred:
        axes.text(
            -0.01,
            -position,
            part,
            transform=axes.get_yaxis_transform(),
            ha="right",
            va="center",
            weight="bold",
        )
        position += 1
        for figure in figures:
            standing = max(figure.standing or 0.0, 1e-3)
            axes.barh(-position, standing - 1, left=1, height=0.62, color=_MET if figure.met else _MISSED)
            axes.annotate(
                f"{figure.ratio or figure.ours} (bar: {figure.bar})",
                (max(standing, 1), -position),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
            labels.append((-position, shorten(figure.what, 95, placeholder="...")))
            position += 1
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}x")
    axes.axvline(1, color="black", linewidth=1)
    reach = [figure.standing or 1.0 for _, figures in barred for figure in figures]
    axes.set_xlim(min(0.5, min(reach) * 0.8), max(2.0, max(reach)) * 4)
    axes.set_yticks([y for y, _ in labels], [label for _, label in labels], fontsize=8)
    axes.set_ylim(-position, 1)
    axes.set_xlabel("how many times as good as its bar asks for (1: just met)")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _draw_grid(section: Any, grid: Grid) -> None:
    """Draw one small chart for each workload, with one bar for each catalog, on a log scale."""
    section.suptitle(grid.title, fontsize=11, x=0.01, ha="left", weight="bold")
    rows = -(-len(grid.columns) // _WORKLOADS_PER_ROW)
    charts = section.subplots(rows, _WORKLOADS_PER_ROW, squeeze=False, sharey=True)
    names = list(grid.rows)
    for number, axes in enumerate(charts.flat):
        if number >= len(grid.columns):
            axes.set_visible(False)
            continue
        column = grid.columns[number]
        for position, name in enumerate(names):
            sample = grid.rows[name].get(column)
            if sample is None or sample.median <= 0:
                continue
            color = _OURS if name.startswith("polaris_spark") else _PEER
            axes.barh(-position, sample.median, height=0.62, color=color)
            failed = f", {sample.failures:,} failed" if sample.failures else ""
            axes.annotate(
                f"{sample.median:,.0f}{failed}",
                (sample.median, -position),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
            )
        axes.set_xscale("log")
        axes.margins(x=0.35)
        axes.set_title(column, fontsize=9)
        axes.set_yticks([-position for position in range(len(names))], names, fontsize=8)
        axes.tick_params(axis="x", labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
