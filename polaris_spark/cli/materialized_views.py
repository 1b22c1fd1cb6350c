"""`polaris-spark materialized-view`: the procedures of materialized views as commands."""

from __future__ import annotations

from polaris_spark.cli.maintain import command_group
from polaris_spark.jobs.materialized_views import alter, create, drop, explain, refresh, show, stale

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

app = command_group(
    "materialized-view", "Create, refresh, show, change and drop materialized views.", COMMANDS
)
