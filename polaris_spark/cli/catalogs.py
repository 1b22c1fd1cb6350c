"""`polaris-spark catalog`: the procedures of the catalogs of a realm as commands."""

from __future__ import annotations

from polaris_spark.cli.maintain import command_group
from polaris_spark.jobs import catalogs

catalog = command_group(
    "catalog",
    "Create, list, rename, drop and restore the catalogs of a realm.",
    {
        "create": catalogs.CREATE,
        "show": catalogs.SHOW,
        "describe": catalogs.DESCRIBE,
        "rename": catalogs.RENAME,
        "drop": catalogs.DROP,
        "undrop": catalogs.UNDROP,
    },
)
