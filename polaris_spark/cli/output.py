"""How commands show things: consoles, and text of times, sizes, ids and names."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from polaris_spark.clock import iso_text
from polaris_spark.errors import CorruptionError

WIDTH_OF_FILES = 200
"""Columns where the output is no terminal, so that nothing is cut for want of width."""

NOTHING_TO_DO = "nothing to do"
"""What a command prints that had nothing to do."""

NO_PROBLEMS = "no problems found"
"""What a command prints that looked for faults and found none."""


def screen() -> Console:
    """The console of standard output."""
    width = None if sys.stdout.isatty() else WIDTH_OF_FILES
    return Console(width=width, highlight=False, markup=False, emoji=False)


def errors() -> Console:
    """The console of standard error, where progress and complaints go."""
    return Console(stderr=True, highlight=False, emoji=False)


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def grid(title: str | None, *columns: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table with light lines; the columns named in `right` hold numbers."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def utc(ms: int) -> str:
    """A time in milliseconds since 1970, to the second; the number itself outside the years 1 to 9999."""
    moment = _moment(ms)
    return str(ms) if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def iso(ms: int) -> str:
    """A time in milliseconds since 1970 as ISO 8601 text, to the millisecond; the number itself as by `utc`."""
    return iso_text(ms)


def hexadecimal(id: int) -> str:
    """An object or entity id as commands print it and `cat` takes it."""
    return f"{id:x}"


def size(count: int) -> str:
    """A number of bytes for people."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1_000:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1_000
    return f"{value:,.1f} TB"


def noun(count: int, word: str) -> str:
    """A word as it follows a number: in the plural, but for 1."""
    return word if count == 1 else f"{word}s"


def counted(count: int, word: str) -> str:
    """A number with its word: `1 table`, `2,000 tables`."""
    return f"{count:,} {noun(count, word)}"


def plain(text: str) -> str:
    """Text of others, safe for a terminal: what does not print stands as its escape."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def dotted(parts: tuple[str, ...]) -> str:
    """A name of several parts as SQL writes it; parts that need it stand in backquotes."""
    return ".".join(_quoted(part) for part in parts)


def kind_of(kind: bytes) -> str:
    """The word for the kind byte of a key in the index `names`."""
    from polaris_spark.catalog.rows import CATALOG, NAMESPACE, TABLE, VIEW

    words = {NAMESPACE: "namespace", TABLE: "table", VIEW: "view", CATALOG: "catalog"}
    return words.get(kind, "entity")


def as_sql(name: str) -> str:
    """The name of a table or namespace, as a procedure gives it, as SQL writes it."""
    from polaris_spark.catalog.identifiers import levels_of

    levels = levels_of(name)
    return name if levels is None else dotted(levels)


def entity_name(key: bytes) -> tuple[str, str]:
    """(kind, name) of a log entry's key; a key without structure, such as a reference's, is a name as it is."""
    from polaris_spark.index.keys import decode_key

    try:
        decoded = decode_key(key)
    except CorruptionError:
        return "reference", key.decode(errors="backslashreplace")
    return kind_of(decoded.kind), dotted((*decoded.path, decoded.name))


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A JSON value with every leaf changed."""
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [mapped(item, change) for item in value]
    return change(value)


def _moment(ms: int) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromtimestamp(ms / 1_000, datetime.timezone.utc)
    except (ValueError, OverflowError):  # clients may send any number of 64 bits
        return None


def _quoted(part: str) -> str:
    if part.isidentifier():
        return part
    return "`" + part.replace("`", "``") + "`"
