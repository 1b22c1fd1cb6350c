"""Output of commands: consoles, and the text of times, sizes, ids and names."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from polaris_spark.errors import MissingLibraryError
from polaris_spark.names import sql_name

WIDTH_OF_FILES = 200
"""Output width, in characters, if standard output is not a terminal; wide enough to avoid cutting text."""

NOTHING_TO_DO = "nothing to do"
"""Text that a command prints if it had nothing to do."""

NO_ROWS = "none"
"""Text that a command prints if the list that it shows is empty."""

NO_PROBLEMS = "no problems found"
"""Text that a command prints if it looked for problems and found none."""


def screen() -> Console:
    """Return a console that prints to standard output."""
    width = None if sys.stdout.isatty() else WIDTH_OF_FILES
    return Console(width=width, highlight=False, markup=False, emoji=False)


def errors() -> Console:
    """Return a console that prints to standard error, for progress and error messages."""
    return Console(stderr=True, highlight=False, emoji=False)


def tell(text: str) -> None:
    """Print a message on standard error, in one line. Unprintable characters of the text are escaped."""
    errors().print("polaris-spark:", plain(text), markup=False, highlight=False, soft_wrap=True)


def require_matplotlib(command: str) -> None:
    """Check that matplotlib is installed. The commands `demo` and `report` call this first, because they draw pictures
    at their end.

    Args:
        command: `demo` or `report`.
    Raises:
        MissingLibraryError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise MissingLibraryError(
            f"the {command} needs the library matplotlib; install it with: pip install 'polaris-spark[{command}]'"
        ) from error


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def grid(title: str | None, *columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table without a frame. The columns whose names are in `right`, such as numbers, are aligned to
    the right."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def utc(ms: int) -> str:
    """Return a time as text in UTC, to the second.

    Args:
        ms: the time, in milliseconds since 1970. If its year is not in the range 1 to 9999, the text is this number.
    """
    moment = _moment(ms)
    return str(ms) if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def hexadecimal(id: int) -> str:
    """Return the hexadecimal digits of an object's or entity's id. Commands print ids in this form, and `cat` accepts
    it."""
    return f"{id:x}"


def size(count: int) -> str:
    """Return a number of bytes with a decimal unit, such as `1.5 MB`."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1_000:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1_000
    return f"{value:,.1f} TB"


def noun(count: int, word: str) -> str:
    """Return a word in the singular if `count` is 1, else in the plural."""
    return word if count == 1 else f"{word}s"


def counted(count: int, word: str) -> str:
    """Return a number with its word: `1 table`, `2,000 tables`."""
    return f"{count:,} {noun(count, word)}"


def plain(text: str) -> str:
    """Return untrusted text in a form that is safe to print on a terminal: unprintable characters are escaped."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def as_sql(name: str) -> str:
    """Return the name of a table or namespace in SQL syntax. `name` is in the form in which procedures return names."""
    from polaris_spark.catalog.entities.identifiers import levels_of

    levels = levels_of(name)
    return name if levels is None else sql_name(levels)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a JSON value with `change` applied to every leaf."""
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [mapped(item, change) for item in value]
    return change(value)


def _moment(ms: int) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromtimestamp(ms / 1_000, datetime.timezone.utc)
    except (ValueError, OverflowError):  # clients may send any 64-bit number
        return None
