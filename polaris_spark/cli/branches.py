"""`polaris-spark branch`, `tag` and `staging`: the procedures of branches, tags and staging areas as commands."""

from __future__ import annotations

from polaris_spark.cli.maintain import command_group
from polaris_spark.jobs import branches, staging

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
