"""Output of the result as text for a terminal, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.findings import Grid, Run

HEADINGS = ("what", "ours", "beside it", "ratio", "bar", "met")


def show(run: Run, console: Console) -> None:
    """Print the result of a run."""
    for line in _preface(run):
        console.print(escape(line))
    for part in run.findings:
        rows = _rows(run, part)
        if rows:
            _table(console, part, HEADINGS, rows)
    for grid in run.grids():
        _table(console, grid.title, ("catalog", *grid.columns), _cells(grid))
    for part, error in run.failed.items():
        console.print(escape(f"{part} could not be measured: {error}"))


def markdown(run: Run) -> str:
    """Return the result of a run as a Markdown page."""
    lines = ["# Figures", "", *(f"- {line}" for line in _preface(run))]
    for part in run.findings:
        rows = _rows(run, part)
        if rows:
            lines += ["", f"## {part}", "", *_markdown_table(HEADINGS, rows)]
    for grid in run.grids():
        lines += ["", f"## {grid.title}", "", *_markdown_table(("catalog", *grid.columns), _cells(grid))]
    if run.failed:
        lines += ["", "## Not measured", "", *(f"- {part}: {error}" for part, error in run.failed.items())]
    return "\n".join(lines) + "\n"


def as_json(run: Run) -> str:
    """Return the result of a run as JSON, with the values of every round."""
    return json.dumps(
        {
            "machine": dict(run.machine),
            "settings": dict(run.settings),
            "durability": run.durability(),
            "left-out": run.left_out(),
            "failed": dict(run.failed),
            "parts": {part: [_figure(figure) for figure in run.figures(part)] for part in run.findings},
            "grids": {grid.title: _samples(grid) for grid in run.grids()},
        },
        indent=2,
    )


def _preface(run: Run) -> list[str]:
    return [
        *(f"{what}: {found}" for what, found in run.machine.items()),
        *(f"{what}: {value}" for what, value in run.settings.items()),
        *(f"durability of {side}: {settings}" for side, settings in run.durability().items()),
        *(f"left out: {peer}: {reason}" for peer, reason in run.left_out().items()),
        "figures are medians of turns that the sides took, in brackets the lowest and the highest",
    ]


def _rows(run: Run, part: str) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    for figure in run.figures(part):
        met = ("yes" if figure.met else "NO") if figure.bar else ""
        rows.append((figure.what, figure.ours, figure.peer, figure.ratio, figure.bar, met))
    return rows


def _cells(grid: Grid) -> list[Sequence[str]]:
    return [
        (catalog, *(samples[column].text() if column in samples else "" for column in grid.columns))
        for catalog, samples in grid.rows.items()
    ]


def _table(console: Console, title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(*headings, title=title, title_justify="left")
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


def _markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    return [line(headings), line(["---"] * len(headings)), *map(line, rows)]


def _figure(figure: Any) -> dict[str, Any]:
    fields = figure._asdict()
    fields["samples"] = {side: sample._asdict() for side, sample in figure.samples.items()}
    return fields  # type: ignore[no-any-return]  # a NamedTuple's fields


def _samples(grid: Grid) -> dict[str, Any]:
    return {
        catalog: {column: sample._asdict() for column, sample in samples.items()}
        for catalog, samples in grid.rows.items()
    }
