"""Files and folders of the databases (stores) that this process has open. No job deletes them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from polaris_spark.backends.open_files import Identity, identity
from polaris_spark.catalog.files.paths import is_in, normal_path, split_location
from polaris_spark.databases import database_of
from polaris_spark.store_uris import StoreURI
from polaris_spark.system.connections import open_stores


class StoreFiles(NamedTuple):
    """Files and folders of stores, which jobs must never delete, even if they find them under another name."""

    paths: tuple[str, ...] = ()
    """Local paths of files and folders, as given and with links resolved. A file that a job wants to delete is also
    compared with them by device and inode."""
    names: tuple[str, ...] = ()
    """Paths of files and folders, normalized by `folded`, without scheme and authority."""
    beginnings: tuple[str, ...] = ()
    """Prefixes of paths, normalized by `folded`. Every file whose path begins with one of them belongs to a store."""

    @classmethod
    def of(cls, stores: Iterable[StoreURI]) -> StoreFiles:
        """Return the files of the given stores."""
        paths: list[str] = []
        names: list[str] = []
        beginnings: list[str] = []
        for store in stores:
            database = database_of(store.scheme)
            files = None if database is None else database.files
            if store.address == "path":
                for path in dict.fromkeys((store.path, os.path.realpath(store.path))):
                    paths += [f"{path}{ending}" for ending in files or ("",)]
                    beginnings += [path] if files is None else []
            else:
                prefix = store.path.strip("/")
                names += [f"{prefix}{ending}" for ending in files or ()]
        names += paths
        return cls(tuple(paths), tuple(map(folded, names)), tuple(map(folded, beginnings)))

    @classmethod
    def of_process(cls) -> StoreFiles:
        """Return the files of all stores that this process has open now."""
        return cls.of(open_stores())

    def holds(self, location: str) -> bool:
        """Whether a location is a file or folder of a store, or is below a folder of a store. Only paths are
        compared."""
        path = folded(split_location(location)[2])
        return any(is_in(path, name) for name in self.names) or path.startswith(self.beginnings)

    def identities(self) -> frozenset[Identity]:
        """Return the device and inode of each of the files and folders in `paths` that exists now."""
        return frozenset(found for path in self.paths if (found := identity(path)) is not None)


def folded(path: str) -> str:
    """Return a path normalized for comparison, in lower case, because file systems may ignore letter case."""
    folder, _, name = path.rpartition("/")
    if name in ("", ".", "..") or "%" in name or not name.isascii():
        return normal_path(path).casefold()
    return f"{_folded_folder(folder)}/{name.lower()}"


@lru_cache(maxsize=65_536)
def _folded_folder(folder: str) -> str:
    return normal_path(folder).casefold().rstrip("/")
