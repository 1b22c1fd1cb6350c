"""`polaris-spark branch`: the procedures of branches as commands."""

from __future__ import annotations

from polaris_spark.cli.maintain import command_group
from polaris_spark.jobs import branches

COMMANDS = {
    "create": branches.CREATE,
    "show": branches.SHOW,
    "drop": branches.DROP,
    "undrop": branches.UNDROP,
}
"""The procedures by the names of their commands."""

app = command_group("branch", "Create, list, drop and restore branches of a catalog.", COMMANDS)
