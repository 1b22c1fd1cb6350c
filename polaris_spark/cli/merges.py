"""`polaris-spark diff`, `merge`, `revert` and `cherry-pick`: the procedures of merges as commands."""

from __future__ import annotations

from polaris_spark.cli.maintain import command_of
from polaris_spark.jobs import merges

diff = command_of(merges.DIFF, "diff")
merge = command_of(merges.MERGE, "merge")
revert = command_of(merges.REVERT, "revert")
cherry_pick = command_of(merges.CHERRY_PICK, "cherry-pick")
