"""`polaris-spark branch`, `tag`, `staging` and `check`: the procedures of branches, tags, staging areas and checks as
commands."""

from __future__ import annotations

from polaris_spark.cli.maintain import command_group
from polaris_spark.jobs import branches, checks, staging

branch = command_group(
    "branch",
    "Create, list, change, protect, drop and restore branches of a catalog.",
    {
        "create": branches.CREATE,
        "show": branches.SHOW,
        "describe": branches.DESCRIBE,
        "rename": branches.RENAME,
        "reassign": branches.REASSIGN,
        "protect": branches.PROTECT,
        "unprotect": branches.UNPROTECT,
        "alter": branches.ALTER,
        "drop": branches.DROP,
        "drop-unused": branches.DROP_UNUSED,
        "undrop": branches.UNDROP,
    },
)
tag = command_group(
    "tag",
    "Create, list, change, drop and restore tags of a catalog.",
    {
        "create": branches.CREATE_TAG,
        "show": branches.SHOW_TAGS,
        "describe": branches.DESCRIBE_TAG,
        "rename": branches.RENAME_TAG,
        "alter": branches.ALTER_TAG,
        "drop": branches.DROP_TAG,
        "undrop": branches.UNDROP_TAG,
    },
)
area = command_group(
    "staging",
    "Create a staging area of a branch, and commit what was staged in it.",
    {"create": staging.STAGE, "commit": staging.COMMIT_STAGED},
)
check = command_group(
    "check",
    "Add, drop and list checks that must hold before merges into protected branches.",
    {"add": checks.ADD, "drop": checks.DROP, "show": checks.SHOW},
)
