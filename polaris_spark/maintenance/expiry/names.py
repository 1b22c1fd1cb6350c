"""Normalized names of files, for comparison: two spellings of one location have the same normalized name."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from polaris_spark.catalog.engine import I, MapFunction, R
from polaris_spark.maintenance.orphans.decisions import Comparison
from polaris_spark.maintenance.orphans.known_files import Names, digest

_WITHOUT_AUTHORITY = ("", "file", "hdfs", "viewfs")
"""Schemes whose locations may be written without host or scheme. Their normalized names therefore have only a path."""


def file_key(location: str) -> str:
    """Return a location as one text, normalized for comparison. Two different files may have the same result.

    Folders are normalized once and cached, because normalizing a location takes half as long as reading it from a
    manifest.
    """
    folder, _, name = location.rpartition("/")
    if name in ("", ".", "..") or "%" in name or not name.isascii():
        return _key(location)
    return _folder(folder) + name


@lru_cache(maxsize=65_536)
def _folder(folder: str) -> str:
    return _key(f"{folder}/x")[:-1]


def _key(location: str) -> str:
    name = Names(Comparison()).of(location)
    return name.path if name.scheme in _WITHOUT_AUTHORITY else f"{name.scheme}://{name.authority}{name.path}"


def digests(location: str) -> tuple[int, ...]:
    """Return the digests, of eight bytes each, of a file's `file_key` and of its location.

    The result has only one digest if the key equals the location. A file is recognized by either digest: machines may
    have different symbolic links, and therefore different keys for one location.
    """
    return tuple(digest(name) for name in {file_key(location), location})


forget_folders = _folder.cache_clear
"""Clears the cache of normalized folders. Call this when a run begins, because symbolic links may have changed."""


class NamingFunction(MapFunction[I, R]):
    """Function that uses `file_key`. When an executor unpickles it, the executor's cache of folders is cleared."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), self.__dict__)


def _unpickled(cls: type[NamingFunction[Any, Any]], state: dict[str, Any]) -> NamingFunction[Any, Any]:
    forget_folders()
    made = cls.__new__(cls)
    made.__dict__.update(state)
    return made
