"""`polaris-spark branch`: the procedures of branches as commands."""

from __future__ import annotations

import typer

from polaris_spark.cli.maintain import command_of
from polaris_spark.jobs import branches

app = typer.Typer(
    name="branch",
    help="Create, list, drop and restore branches of a catalog.",
    no_args_is_help=True,
    add_completion=False,
)

COMMANDS = {
    "create": branches.CREATE,
    "show": branches.SHOW,
    "drop": branches.DROP,
    "undrop": branches.UNDROP,
}
"""The procedures by the names of their commands."""

for _name, _procedure in COMMANDS.items():
    app.command(_name)(command_of(_procedure, _name))
