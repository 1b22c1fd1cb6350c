"""Progress of commands, shown on standard error if it is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from polaris_spark.cli.output import errors, plain
from polaris_spark.jobs.procedure import Watch


def shown(*columns: ProgressColumn) -> Progress:
    """Return a display with these columns, which disappears at the end of its `with` block."""
    console = errors()
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)


@contextmanager
def reading() -> Iterator[Callable[[int], None]]:
    """Show the number of objects read. Yield a function that adds to this number."""
    with shown(SpinnerColumn(), TextColumn("{task.description} {task.completed:,}")) as progress:
        task = progress.add_task("reading objects", total=None)
        yield lambda count: progress.advance(task, count)


@contextmanager
def steps() -> Iterator[Watch]:
    """Show a bar for the current step of a job. Yield the function to call with the progress."""
    text = TextColumn("{task.description}", markup=False)
    with shown(text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()) as progress:
        task = progress.add_task("")

        def watch(doing: str, done: int, total: int) -> None:
            progress.update(task, description=plain(doing), completed=done, total=total or None)

        yield watch
