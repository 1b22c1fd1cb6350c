"""The commands of `polaris-spark`, and how their errors are told: in one line, with exit code 2."""

from __future__ import annotations

import errno
import io
import sys
from typing import Annotated, Any

import click
import typer
from typer.core import TyperGroup

from polaris_spark import __version__
from polaris_spark.cli import INTERRUPTED
from polaris_spark.cli.cat import cat
from polaris_spark.cli.demo.command import demo
from polaris_spark.cli.export import export
from polaris_spark.cli.fsck import fsck
from polaris_spark.cli.heads import heads
from polaris_spark.cli.info import info
from polaris_spark.cli.log import log
from polaris_spark.cli.maintain import app as maintain
from polaris_spark.cli.output import errors, plain
from polaris_spark.cli.realms import realms
from polaris_spark.cli.recover import recover
from polaris_spark.cli.report.command import report
from polaris_spark.cli.serve import serve
from polaris_spark.cli.tables import tables
from polaris_spark.errors import PolarisError

FAILED = 2
"""Exit code of a command that could not do what was asked."""


class OneLineErrors(TyperGroup):
    """Tells expected errors in one line; anything else is a defect and keeps its traceback."""

    def invoke(self, ctx: click.Context) -> Any:  # type: ignore[override,unused-ignore]  # typer brings its own click
        """Run the command."""
        try:
            return super().invoke(ctx)  # type: ignore[arg-type,unused-ignore]  # the same
        except KeyboardInterrupt as interrupt:
            errors().print("polaris-spark: interrupted; run it again", markup=False)
            raise typer.Exit(INTERRUPTED) from interrupt
        except (PolarisError, OSError) as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise
            errors().print("polaris-spark:", plain(str(error)), markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(FAILED) from error


app = typer.Typer(
    name="polaris-spark",
    cls=OneLineErrors,
    help="Look into a store of catalogs, serve it, and see the whole of it at work.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True)
    ] = False,
) -> None:
    """Look into a store of catalogs, serve it, and see the whole of it at work."""
    if version:
        print(f"polaris-spark {__version__}")
        raise typer.Exit


for command in (demo, info, log, tables, cat, report, serve, export, heads, recover, fsck, realms):
    app.command()(command)
app.add_typer(maintain)


def main() -> None:
    """Run the command line of this process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character of some name still shows the rest.
            stream.reconfigure(errors="replace")
    app()
