"""`polaris-spark fsck`: what is wrong in a store, even one that is too damaged to be opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from polaris_spark.backends import open_backend
from polaris_spark.cli.opening import store_options
from polaris_spark.cli.options import AsJSON, Password, Store
from polaris_spark.cli.output import errors, plain, print_json, screen
from polaris_spark.clock import SystemClock
from polaris_spark.config import StoreURI
from polaris_spark.maintenance.checking.checker import Check
from polaris_spark.maintenance.checking.checker import Progress as Watch
from polaris_spark.maintenance.checking.references import reference_names
from polaris_spark.spark.options import refuse_memory
from polaris_spark.system.stores import SYSTEM_REALM, check_store

FAULTY = 1
"""Exit code where something is wrong."""


def fsck(
    store: Store,
    realm: Annotated[
        str | None, typer.Option(help="Only this realm; all of the store unless given.", show_default=False)
    ] = None,
    password: Password = None,
    as_json: AsJSON = False,
) -> None:
    """Find every row that is damaged, missing, or at odds with others; exit code 1 if there is any."""
    uri = StoreURI.parse(store)
    refuse_memory(uri)
    backend = open_backend(uri, store_options(uri, password))
    try:
        if not reference_names(backend, SYSTEM_REALM):
            check_store(backend)
        with _bar() as watch:
            found = Check(backend, SystemClock(), realm=realm, progress=watch).run()
    finally:
        backend.close()
    if as_json:
        print_json([problem._asdict() for problem in found])
    else:
        for one in found:
            where = f"{plain(one.realm)} {plain(one.key)}"
            way = f" ({plain(one.path)})" if one.path else ""
            screen().print(
                f"{one.severity} {one.kind}: {where}: {plain(one.message)}{way}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
        screen().print(f"{len(found):,} problems" if found else "sound")
    if found:
        raise typer.Exit(FAULTY)


@contextmanager
def _bar() -> Iterator[Watch]:
    console = errors()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("")

        def watch(doing: str, done: int, total: int) -> None:
            progress.update(task, description=plain(doing), completed=done, total=total or None)

        yield watch
