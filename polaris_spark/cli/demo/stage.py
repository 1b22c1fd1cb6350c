"""The object that all chapters of the demo share (`Stage`): a Spark session, a console, and the results to check at the
end."""

from __future__ import annotations

import math
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rich.console import Console
from rich.padding import Padding
from rich.progress import Progress, TaskID
from rich.syntax import Syntax
from rich.text import Text

from polaris_spark.cli.demo.data import DemoTables
from polaris_spark.cli.demo.model import Flights
from polaris_spark.cli.demo.session import DemoCatalog
from polaris_spark.cli.output import grid, plain

Row = Mapping[str, Any]

_SHOWN = 200
"""Maximum number of characters of a cell that are printed."""


class Figure(NamedTuple):
    """A result that the catalog returned, and the expected result."""

    what: str
    found: Any
    expected: Any

    @property
    def right(self) -> bool:
        """Whether both results are equal according to `same`."""
        return same(self.found, self.expected)


@dataclass
class Stage:
    """The demo's Spark session and console, with methods that run statements, print their results, and record results
    to check."""

    console: Console
    progress: Progress
    task: TaskID
    spark: Any
    """A SparkSession."""
    data: DemoTables
    flights: Flights
    place: DemoCatalog
    figures: list[Figure] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    """Values that a chapter stores for later chapters, by name."""

    def chapter(self, title: str) -> None:
        """Print the title of a new chapter, and advance the progress bar."""
        self.progress.update(self.task, description=title, advance=1)
        self.console.print()
        self.console.rule(Text(title, style="bold cyan"), align="left", style="cyan")

    def say(self, text: str) -> None:
        """Print a sentence between statements."""
        self.console.print(Padding(Text(text, style="italic"), (0, 0, 0, 2)))

    def sql(self, statement: str) -> list[Row]:
        """Run a SQL statement, print the statement and its duration, and return its rows."""
        text = textwrap.dedent(statement).strip()
        begun = time.perf_counter()
        rows = self.quiet(text)
        took = time.perf_counter() - begun
        code = Syntax(text, "sql", theme="ansi_dark", background_color="default", word_wrap=True)
        self.console.print(Padding(code, (0, 0, 0, 2)))
        self.console.print(Text(f"  └ {took:.1f} s", style="dim"))
        return rows

    def quiet(self, statement: str) -> list[Row]:
        """Run a SQL statement without printing anything, and return its rows."""
        return [row.asDict(recursive=True) for row in self.spark.sql(statement).collect()]

    def one(self, query: str) -> Any:
        """Run a query that returns a single value, and return the value. Print nothing."""
        (row,) = self.quiet(query)
        (value,) = row.values()
        return value

    def show(self, rows: Sequence[Row], title: str | None = None, limit: int = 12) -> None:
        """Print at most `limit` rows as a table."""
        if not rows:
            return
        numbers = [name for name, value in rows[0].items() if isinstance(value, (int, float))]
        table = grid(title, *rows[0], right=tuple(numbers))
        for row in rows[:limit]:
            table.add_row(*(Text(_cell(value)) for value in row.values()))
        if len(rows) > limit:
            table.caption = f"… and {len(rows) - limit:,} more"
        self.console.print(Padding(table, (0, 0, 1, 4)))

    def check(self, what: str, found: Any, expected: Any) -> None:
        """Record a result and the expected result. They are compared and printed at the end of the demo."""
        self.figures.append(Figure(what, found, expected))


def same(found: Any, expected: Any) -> bool:
    """Whether two results are equal. Floating-point numbers are compared to nine digits, because a sum depends on the
    order of its terms."""
    if isinstance(expected, Mapping):
        return (
            isinstance(found, Mapping)
            and found.keys() == expected.keys()
            and all(same(found[key], expected[key]) for key in expected)
        )
    if isinstance(expected, float) and isinstance(found, (int, float)):
        return math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9)
    return bool(found == expected)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**12 else str(value)
    if isinstance(value, float):
        return f"{value:,.2f}"
    return plain(str(value))[:_SHOWN]
