"""Normalized names of files: two spellings of one location have the same name."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

from polaris_spark.catalog.engine import I, MapFunction, R
from polaris_spark.maintenance.orphans.decisions import Comparison
from polaris_spark.maintenance.orphans.known_files import Names

_WITHOUT_AUTHORITY = ("", "file", "hdfs", "viewfs")
"""Schemes whose locations may leave out the host or the scheme: their names consist of the path alone."""


def file_key(location: str) -> str:
    """Return a location, normalized for comparison, as one text. Different files may have the same key.

    Normalizing a location takes half as long as reading it from a manifest, so it is done once per folder.
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
    """Return the digests, of eight bytes each, of the two names by which a file is recognized: its key and location.

    The result has one digest if both names are equal. Both names are needed because machines may have different
    symbolic links, and so different keys for one location.
    """
    return tuple(_digest(name) for name in {file_key(location), location})


def _digest(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


forget_folders = _folder.cache_clear
"""Clears the cache of folders. Call this when a run begins: symbolic links may have changed since the run before."""


class NamingFunction(MapFunction[I, R]):
    """Function that uses keys of files. Unpickling it on an executor begins a run, and clears the cache of folders."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), self.__dict__)


def _unpickled(cls: type[NamingFunction[Any, Any]], state: dict[str, Any]) -> NamingFunction[Any, Any]:
    forget_folders()
    made = cls.__new__(cls)
    made.__dict__.update(state)
    return made
