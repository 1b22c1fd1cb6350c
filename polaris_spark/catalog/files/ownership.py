"""Rules that decide which of the locations in its metadata an imported table or view owns.

A metadata file may come from an untrusted source. It is trusted only for its own folder, which is the parent of the
folder `metadata` that contains it (`rows.folder_of`). If the table's location, data path or metadata path is elsewhere,
the row lists that location as `unconfirmed`. The table reads and writes there, but does not own the location: jobs that
list folders or delete files ignore it until an operator confirms it with the procedure `adopt`.

Some folders can never be owned, and `adopt` refuses them: the root of a file system or bucket, a home folder, and any
folder that contains one of these.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from polaris_spark.catalog.files.locations import is_below_any, named, segments
from polaris_spark.catalog.rows import folder_of

_LOCAL: Final = "file://"
_HOMES: Final = ("/home", "/Users")
"""Folders whose direct subfolders are home folders."""


def unconfirmed_of(location: str, properties: Mapping[str, str], metadata_location: str) -> tuple[str, ...]:
    """Return the locations in a metadata file that the table or view does not own, as sorted URIs.

    The table or view owns a location only if two conditions hold: the location is `folder_of(metadata_location)` or is
    inside it, and `unownable` does not refuse the location. `folder_of` returns the parent of the folder `metadata`
    that contains the metadata file. Local locations are compared by their real paths.

    Args:
        location: location of the table or view.
        properties: properties of the table or view.
        metadata_location: location of the metadata file.
    Raises:
        BadRequestError: a location is not absolute.
    """
    home = segments(folder_of(metadata_location))
    places = [segments(one) for one in named(location, properties)]
    return tuple(sorted({"/".join(one) for one in places if not _is_inside(one, home) or unownable(one)}))


def unownable(place: tuple[str, ...]) -> str:
    """Return why no table can own a location; an empty string if a table can own it.

    Args:
        place: the location as `locations.segments` returns it.
    """
    if len(place) == 1:
        return "it is the root of a file system or bucket"
    if place[0] != _LOCAL:
        return ""
    path = _path(place)
    real = _real(path)
    own = os.path.expanduser("~")
    return _home(path, own) or (_home(real, own) if real != path else "")


def _home(path: str, own: str) -> str:
    """Return why no table can own a local folder: it is the root of the file system, or is or contains a home folder.
    Return an empty string if a table can own it.

    Args:
        own: the home folder of this process's user.
    """
    above, _, _ = path.rpartition("/")
    if path == "/":
        return "it is the root of the file system"
    if above in _HOMES or path in ("/root", own):
        return "it is a home folder"
    if path in _HOMES or own.startswith(f"{path}/"):
        return "it contains home folders"
    return ""


def _is_inside(place: tuple[str, ...], home: tuple[str, ...]) -> bool:
    if place == home:
        return True
    if place[0] == home[0] == _LOCAL:
        real, at = _real(_path(home)), _real(_path(place))
        return at == real or at.startswith(f"{real}/")
    return is_below_any(place, [home])


def _path(place: tuple[str, ...]) -> str:
    return "/".join(("", *place[1:]))


def _real(path: str) -> str:
    """Return the real path of a local path. The real path of its parent folder is cached, because many tables have the
    same parent folder."""
    folder, _, name = path.rpartition("/")
    return os.path.realpath(path) if os.path.islink(path) else f"{_real_folder(folder)}/{name}"


@lru_cache(maxsize=4_096)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder or "/").rstrip("/")
