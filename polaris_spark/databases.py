"""The databases that can hold a store, by scheme of the store URI. Nothing here needs a database's driver.

Other packages add databases with the entry-point group `polaris_spark.backends`: the entry's name is the scheme, and
its value is a `Database` (`package.module:DATABASE`).
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from polaris_spark.errors import MissingLibraryError, StoreURIError

GROUP: Final = "polaris_spark.backends"
"""The entry-point group of databases."""


@dataclass(frozen=True, slots=True)
class Database:
    """Description of a database that can hold a store."""

    module: str
    """Name of the module with the function `open_backend(uri, options)`, which may import the driver."""
    address: Literal["host", "path", "name"] = "host"
    """Form of a store URI after the scheme: `host`: `//host/path`; `path`: a path on this machine, which is made
    absolute; `name`: the name of a store that exists in one process only."""
    locating: tuple[str, ...] = ()
    """Options that are part of a store's identity: stores that differ only in such an option are different stores."""
    files: tuple[str, ...] | None = None
    """Suffixes, such as `""` or `-wal`. The URI's path with one of them appended is the name of a file or folder of the
    store. Maintenance jobs do not delete these files and folders. If None, and if the address is a path, all files and
    folders whose names begin with the path belong to the store."""
    extra: str | None = None
    """The extra of polaris_spark that installs the database's driver library."""


_CASSANDRA: Final = Database("polaris_spark.backends.cassandra", extra="cassandra")
_MARIADB: Final = Database("polaris_spark.backends.mariadb", locating=("socket",), extra="mariadb")
_MONGODB: Final = Database("polaris_spark.backends.mongodb", extra="mongodb")
_OBJECT_STORE: Final = Database(
    "polaris_spark.backends.objectstore",
    locating=("endpoint",),
    files=("/clock", "/objects", "/references", "/tested"),
    extra="objectstore",
)
_POSTGRESQL: Final = Database("polaris_spark.backends.postgresql", locating=("schema",), extra="postgresql")

BUILT_IN: Final = {
    "az": _OBJECT_STORE,
    "bigtable": Database("polaris_spark.backends.bigtable", locating=("endpoint",), extra="bigtable"),
    "cassandra": _CASSANDRA,
    "dynamodb": Database("polaris_spark.backends.dynamodb", locating=("endpoint",), extra="dynamodb"),
    "file": Database("polaris_spark.backends.objectstore", "path", files=("",)),
    "gs": _OBJECT_STORE,
    "mariadb": _MARIADB,
    "memory": Database("polaris_spark.backends.memory", "name"),
    "mongodb": _MONGODB,
    "mongodb+srv": _MONGODB,
    "mysql": _MARIADB,
    "postgres": _POSTGRESQL,
    "postgresql": _POSTGRESQL,
    "rocksdb": Database("polaris_spark.backends.rocksdb", "path", files=("",), extra="rocksdb"),
    "s3": _OBJECT_STORE,
    "sqlite": Database("polaris_spark.backends.sqlite", "path", files=("", "-wal", "-shm", "-journal")),
}
"""Databases of this package, by scheme."""

FILE_SCHEMES: Final = [scheme for scheme, database in BUILT_IN.items() if database.address == "path"]
"""Schemes of this package whose URI contains a path on this machine."""


def database_of(scheme: str) -> Database | None:
    """Return the database of a scheme; None if the scheme is unknown.

    Raises:
        MissingLibraryError: the package that adds the scheme cannot be imported.
        StoreURIError: the entry point of the package does not name a `Database`.
    """
    # This package's databases come first, because a search for entry points reads every archive on the module path.
    if scheme in BUILT_IN:
        return BUILT_IN[scheme]
    entry = _installed().get(scheme)
    if entry is None:
        return None
    try:
        found = entry.load()
    except (ImportError, AttributeError) as error:
        raise MissingLibraryError(
            f"the entry point {entry.value!r}, which an installed package declares for the URI scheme {scheme!r}, "
            f"cannot be imported: {error}"
        ) from error
    if not isinstance(found, Database):
        raise StoreURIError(
            f"the entry point {entry.value!r}, which an installed package declares for the URI scheme {scheme!r}, "
            "is not a polaris_spark.databases.Database; the package must correct it"
        )
    return found


def known_schemes() -> list[str]:
    """Return the schemes of all databases of this package and of installed packages, sorted."""
    return sorted({*BUILT_IN, *_installed()})


@cache
def _installed() -> dict[str, importlib.metadata.EntryPoint]:
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}
