"""`polaris-spark materialized-view`: the procedures of materialized views as commands."""

from __future__ import annotations

import typer

from polaris_spark.cli.maintain import command_of
from polaris_spark.jobs.materialized_views import alter, create, drop, explain, refresh, show, stale

app = typer.Typer(
    name="materialized-view",
    help="Create, refresh, show, change and drop materialized views.",
    no_args_is_help=True,
    add_completion=False,
)

COMMANDS = {
    "create": create.PROCEDURE,
    "refresh": refresh.PROCEDURE,
    "refresh-stale": stale.PROCEDURE,
    "explain": explain.PROCEDURE,
    "show": show.SHOW,
    "describe": show.DESCRIBE,
    "alter": alter.PROCEDURE,
    "drop": drop.PROCEDURE,
}
"""The procedures by the names of their commands."""

for _name, _procedure in COMMANDS.items():
    app.command(_name)(command_of(_procedure, _name))
