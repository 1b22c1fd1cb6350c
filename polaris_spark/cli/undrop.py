"""`polaris-spark undrop`: the procedure `undrop` as a command."""

from __future__ import annotations

from polaris_spark.cli.maintain import command_of
from polaris_spark.jobs.undrop import PROCEDURE

undrop = command_of(PROCEDURE, "undrop")
