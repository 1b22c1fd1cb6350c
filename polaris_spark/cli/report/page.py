"""The page: HTML with everything in it. It holds no script, allows none, and asks nobody for anything."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""What a browser may load: pictures that stand in the page itself. No script runs, whatever a name holds."""

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


class Listed(NamedTuple):
    """Rows beneath a picture."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str | int, ...]]
    """Numbers are written with separators, to the right."""


class Section(NamedTuple):
    """A picture with what it means."""

    id: str
    title: str
    words: str
    """What it shows, and how it was measured."""
    svg: str
    note: str = ""
    """What was left out."""
    listed: Listed | None = None


class Page(NamedTuple):
    """What is on the page; everything is text, nothing HTML."""

    title: str
    about: Sequence[str]
    tiles: Sequence[tuple[str, str]]
    """(figure, what it is)."""
    sections: Sequence[Section]


def render(page: Page) -> str:
    """The page as HTML."""
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


def _list(listed: Listed | None) -> str:
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
    # Text of others may be written from right to left; it shall not turn its neighbours around.
    return f"{cell:,}" if isinstance(cell, int) else f"<bdi>{escape(cell)}</bdi>"
