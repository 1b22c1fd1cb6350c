"""The page as self-contained HTML: it contains no script, allows no script, and loads nothing from the network."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""Content security policy: only pictures within the page are loaded. No script runs, even if a name contains one."""

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2730; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin: 2.5rem 0 0.3rem; } p { margin: 0.4rem 0; }
.tiles { display: flex; flex-wrap: wrap; gap: 0.8rem; margin: 1.2rem 0; }
.tile { border: 1px solid #d5dde2; border-radius: 6px; padding: 0.5rem 0.9rem; }
.tile b { display: block; font-size: 1.3rem; }
img { width: 100%; height: auto; }
table { border-collapse: collapse; margin: 0.5rem 0; } td, th { padding: 0.1rem 1rem 0.1rem 0; text-align: left; }
td { overflow-wrap: anywhere; } td.number, th.number { text-align: right; white-space: nowrap; }
.note, summary { color: #5a6a75; font-size: 0.9rem; }
"""


class FigureTable(NamedTuple):
    """The table of numbers below a picture."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str | int, ...]]
    """The cells of each row. Numbers are shown with thousands separators and aligned to the right."""


class Section(NamedTuple):
    """A picture with its explanation."""

    id: str
    title: str
    words: str
    """Description of the picture and of how its data was measured."""
    svg: str
    note: str = ""
    """Description of the data that the picture does not include."""
    listed: FigureTable | None = None


class Page(NamedTuple):
    """The content of the page. All strings are plain text, not HTML, except the drawings in SVG."""

    title: str
    about: Sequence[str]
    tiles: Sequence[tuple[str, str]]
    """The boxes at the top of the page, each as (figure, label)."""
    sections: Sequence[Section]


def render(page: Page) -> str:
    """Return the page as HTML."""
    about = "".join(f'<p class="note">{escape(line)}</p>' for line in page.about)
    tiles = "".join(
        f'<div class="tile"><b>{escape(figure)}</b>{escape(what)}</div>' for figure, what in page.tiles
    )
    sections = "\n".join(_section(one) for one in page.sections)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(page.title)}</title>\n<style>{_STYLE}</style></head>\n"
        f"<body>\n<h1>{escape(page.title)}</h1>\n{about}\n"
        f'<div class="tiles">{tiles}</div>\n{sections}\n</body></html>\n'
    )


def _section(section: Section) -> str:
    picture = base64.b64encode(section.svg.encode()).decode()
    note = f'<p class="note">{escape(section.note)}</p>' if section.note else ""
    return (
        f'<section id="{escape(section.id)}"><h2>{escape(section.title)}</h2>\n<p>{escape(section.words)}</p>{note}\n'
        f'<img alt="{escape(section.title)}" src="data:image/svg+xml;base64,{picture}">\n'
        f"{_list(section.listed)}</section>"
    )


def _list(listed: FigureTable | None) -> str:
    if listed is None or not listed.rows:
        return ""
    numbers = [isinstance(cell, int) for cell in listed.rows[0]]
    marks = [' class="number"' if number else "" for number in numbers]
    head = "".join(f"<th{mark}>{escape(name)}</th>" for mark, name in zip(marks, listed.columns, strict=True))
    rows = "\n".join(
        "<tr>"
        + "".join(f"<td{mark}>{_cell(cell)}</td>" for mark, cell in zip(marks, row, strict=True))
        + "</tr>"
        for row in listed.rows
    )
    return f"<details><summary>in numbers</summary><table><tr>{head}</tr>\n{rows}</table></details>"


def _cell(cell: str | int) -> str:
    # A name may be written from right to left; <bdi> keeps it from changing the direction of the text around it.
    return f"{cell:,}" if isinstance(cell, int) else f"<bdi>{escape(cell)}</bdi>"
