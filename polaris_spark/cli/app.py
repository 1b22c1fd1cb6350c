"""The command line `polaris-spark`. An expected error is printed in one line, and the exit code is 2."""

from __future__ import annotations

import errno
import io
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polaris_spark import __version__
from polaris_spark.cli.commands import LazyGroup
from polaris_spark.cli.exit_codes import FAILED, INTERRUPTED
from polaris_spark.errors import PolarisError

if TYPE_CHECKING:
    import click


class OneLineErrors(LazyGroup):
    """Command group that prints expected errors in one line. Any other error is a defect and keeps its traceback."""

    def invoke(self, ctx: click.Context) -> Any:  # type: ignore[override,unused-ignore]  # typer brings its own click
        """Run the command. If it raises an expected error, print the error and exit with code 2 (`FAILED`). After
        Ctrl-C, exit with code 130 (`INTERRUPTED`)."""
        from polaris_spark.cli.output import tell

        try:
            return super().invoke(ctx)  # type: ignore[arg-type,unused-ignore]  # the same
        except KeyboardInterrupt as interrupt:
            tell("interrupted; run it again")
            raise typer.Exit(INTERRUPTED) from interrupt
        except (PolarisError, OSError) as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise
            tell(str(error))
            raise typer.Exit(FAILED) from error


app = typer.Typer(
    name="polaris-spark",
    cls=OneLineErrors,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"polaris-spark {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """Inspect, serve and maintain a store of Iceberg catalogs, or run a demo of its features."""


def main() -> None:
    """Run the command that the arguments of this process (`sys.argv`) name."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # If the terminal cannot show a character, the rest of the text is still printed.
            stream.reconfigure(errors="replace")
    app()
