"""Opens the source of an import by its kind, location and options, and removes secret options from messages."""

from __future__ import annotations

import os
from collections.abc import Mapping

from polaris_spark.catalog.imports.directory import DirectoryTree
from polaris_spark.catalog.imports.sources import Source
from polaris_spark.catalog.imports.sql import SqlTables
from polaris_spark.errors import InputError
from polaris_spark.secret_options import REFERENCE, holds_secret, is_secret

SOURCES = ("directory", "hadoop", "sql", "jdbc", "rest", "pyiceberg")
"""Kinds of sources of an import. `jdbc` is the same as `sql`."""


def open_source(
    source: str, location: str, options: Mapping[str, str], file_options: Mapping[str, str]
) -> Source:
    """Open the catalog or directory tree to import from.

    Args:
        source: kind of source, one of `SOURCES`.
        location: the root of the tree, or the URI of the catalog.
        options: options of the source; a value `env:NAME` is replaced by the value of the environment variable NAME.
            `sql` has the options `catalog`, `user` and `password`; `rest` and `pyiceberg` have those of pyiceberg's
            `load_catalog`.
        file_options: options of pyiceberg's FileIO, for trees that are not on this machine.
    Raises:
        InputError: the kind of source does not exist, an option of `sql` is unknown, an environment variable is not
            set, or the location is missing or contains a password or another secret.
        SourceError: the source cannot be opened.
    """
    if source not in SOURCES:
        raise InputError(f"there is no kind of source {source!r}; the kinds are: {', '.join(SOURCES)}")
    _refuse_password(location)
    given = resolved(options)
    if source in ("directory", "hadoop"):
        _require(location, source)
        return DirectoryTree(location, {**file_options, **given}, hadoop=source == "hadoop")
    if source in ("sql", "jdbc"):
        _require(location, source)
        unknown = set(given) - {"catalog", "user", "password"}
        if unknown:
            raise InputError(
                f"a sql source has no option {min(unknown)!r}; its options are: catalog, user, password"
            )
        return SqlTables(location, given.get("catalog", ""), given)
    # Imported here, because pyiceberg's catalogs take a second to import, and other sources do not need them.
    from polaris_spark.catalog.imports.catalogs import PyIcebergTables

    if source == "rest":
        _require(location, source)
        return PyIcebergTables({"type": "rest", "uri": location, **given})
    return PyIcebergTables({**({"uri": location} if location else {}), **given})


def resolved(options: Mapping[str, str]) -> dict[str, str]:
    """Return options in which `env:NAME` is replaced by the value of the environment variable.

    Raises:
        InputError: a variable is not set. The message contains its name.
    """
    found = {}
    for name, value in options.items():
        if value.startswith(REFERENCE):
            variable = value.removeprefix(REFERENCE)
            if variable not in os.environ:
                raise InputError(
                    f"the option {name!r} refers to the environment variable {variable!r}, which is not set"
                )
            value = os.environ[variable]
        found[name] = value
    return found


class Scrubber:
    """Removes the values of secret options from messages."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._secrets = sorted(
            {v for k, v in resolved(options).items() if v and _is_secret(k, options[k])}, key=len
        )

    def __call__(self, message: str) -> str:
        """Return the message without the values of secret options."""
        for secret in reversed(self._secrets):
            message = message.replace(secret, "***")
        return message


def _is_secret(name: str, given: str) -> bool:
    return given.startswith(REFERENCE) or is_secret(name, given)


def _refuse_password(location: str) -> None:
    """Check that a location contains no secret, because locations appear in statements, plans and logs.

    Raises:
        InputError: the location contains a password, or another secret.
    """
    if holds_secret(location):
        raise InputError(
            "the location of the source contains a password or another secret; give the secret as an option such as "
            "'password', preferably as env:NAME"
        )


def _require(location: str, source: str) -> None:
    if not location:
        raise InputError(
            f"a {source} source needs a location: the top folder of a directory or hadoop source, or "
            "the URI of a sql, jdbc or rest source"
        )
