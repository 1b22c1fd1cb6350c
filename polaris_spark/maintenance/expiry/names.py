"""The name of a file in one form: however its location is spelled, a file that is needed is known again."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

from polaris_spark.maintenance.orphans.deciding import Comparison
from polaris_spark.maintenance.orphans.known_files import Names
from polaris_spark.maintenance.spreading import I, R, Work

_WITHOUT_AUTHORITY = ("", "file", "hdfs", "viewfs")
"""Schemes whose locations may leave out host or scheme: there the path alone is the name."""


def file_key(location: str) -> str:
    """A location in the form in which the store is asked for files, as one text; two files may have the same one.

    Bringing a location into that form takes half as long as reading it from a manifest, so it is done once a folder.
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
    """Eight bytes each for the two names by which a file is known again: its key, and its location as it stands.

    Machines may have other symbolic links, and so other keys, for one location.
    """
    return tuple(_digest(name) for name in {file_key(location), location})


def _digest(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


forget_folders = _folder.cache_clear
"""To be called when a run begins: symbolic links may have been set anew since the run before."""


class NamingWork(Work[I, R]):
    """Work that asks for keys of files: where it is unpickled, a run begins."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), self.__dict__)


def _unpickled(work: type[NamingWork[Any, Any]], state: dict[str, Any]) -> NamingWork[Any, Any]:
    forget_folders()
    made = work.__new__(work)
    made.__dict__.update(state)
    return made
