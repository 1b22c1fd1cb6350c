"""`polaris-spark access`: the procedures of access control as commands."""

from __future__ import annotations

from polaris_spark.cli.maintain import command_group
from polaris_spark.jobs.access import PROCEDURES

app = command_group(
    "access",
    "Manage principals, roles and grants of a realm with access control.",
    {one.name.replace("_", "-"): one for one in PROCEDURES},
)
