"""`polaris-spark report`: write an HTML page with charts of a catalog."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import SpinnerColumn, TextColumn

from polaris_spark.cli.options import Password, Realm, Store
from polaris_spark.cli.output import plain, require_matplotlib, screen, utc
from polaris_spark.cli.progress import shown
from polaris_spark.errors import InputError
from polaris_spark.names import MAIN

if TYPE_CHECKING:
    from polaris_spark.cli.report.page import Page
    from polaris_spark.cli.stores import OpenStore

_TOLD = 10
"""Maximum number of damaged rows that the page lists."""

SHARES = 3
"""Number of parts into which the time limit is divided: for the log, for the tables and for the rows. Time that one
part does not use goes to the next part."""


def report(
    store: Store,
    output: Annotated[Path, typer.Option(help="File to write; an existing file is replaced.")] = Path(
        "report.html"
    ),
    realm: Realm = "default",
    catalog: Annotated[
        str | None, typer.Option(help="Catalog to show; required if there are several.")
    ] = None,
    branch: Annotated[str, typer.Option(help="Branch of the catalog.")] = MAIN,
    seconds: Annotated[
        float,
        typer.Option(
            help="Approximate time limit for reading, in seconds. The page of a large catalog shows the part read."
        ),
    ] = 60,
    password: Password = None,
) -> None:
    """Write an HTML page with charts of a catalog: its commits, tables, storage, growth and garbage."""
    from polaris_spark.cli.report.page import render
    from polaris_spark.cli.stores import open_store

    if not seconds > 0:
        raise InputError(f"--seconds is {seconds:g}; it must be a number above 0")
    if output.is_dir() or not output.parent.is_dir():
        raise InputError(f"--output is {str(output)!r}; it must be a file in a folder that exists")
    require_matplotlib("report")
    with open_store(store, password) as opened:
        page = _read(opened, realm, catalog, branch, seconds)
    _replace(output, render(page))
    screen().print(f"wrote {plain(str(output))}")


def _read(opened: OpenStore, realm: str, catalog: str | None, branch: str, seconds: float) -> Page:
    from polaris_spark.cli.report.history import read_history
    from polaris_spark.cli.report.lake import read_lake
    from polaris_spark.cli.report.page import Page
    from polaris_spark.cli.report.rows import read_rows
    from polaris_spark.cli.report.sections import Figures, sections, tiles

    place = opened.realm(realm)
    row = place.catalog(catalog)
    head = place.catalog_head(row, branch)
    now = time.time_ns() // 1_000_000
    end = time.monotonic() + seconds

    def share(part: int) -> float:
        return time.monotonic() + (end - time.monotonic()) / (SHARES - part)

    with shown(SpinnerColumn(), TextColumn("{task.description}")) as progress:
        task = progress.add_task("reading the log")
        history = read_history(head, share(0))
        progress.update(task, description="reading tables")
        lake = read_lake(head, now, share(1))
        progress.update(task, description="reading rows")
        rows = read_rows(opened.backend, place, now, share(2))
        progress.update(task, description="drawing")
        figures = Figures(history, lake, rows)
        return Page(
            title=f"Catalog {plain(row.name)}",
            about=[
                f"Branch {plain(branch)} of catalog {plain(row.name)}, realm {plain(realm)}, store {opened.uri}; "
                f"made {utc(now)} from commit {head.head.commit:x} (number {head.head.number:,}, "
                f"{utc(head.head.time)}).",
                "All times are UTC.",
                *_damage(history.damaged),
            ],
            tiles=tiles(figures),
            sections=sections(figures),
        )


def _damage(problems: Sequence[str]) -> list[str]:
    """Return the paragraphs of the page about rows of the log that cannot be read."""
    if not problems:
        return []
    told = "; ".join(plain(one) for one in problems[:_TOLD])
    more = "" if len(problems) <= _TOLD else f"; and {len(problems) - _TOLD:,} more"
    return [f"Damaged rows of the log, which are not shown: {told}{more}. Run `fsck` to find other damage."]


def _replace(path: Path, text: str) -> None:
    """Write a text to a file atomically: on an error, the file is unchanged."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8", errors="backslashreplace")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
