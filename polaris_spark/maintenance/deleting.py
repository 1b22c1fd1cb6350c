"""Deleting files and checking which files exist, in portions that can be spread over executors."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from polaris_spark.catalog.files import local_path
from polaris_spark.catalog.folders import CHANGED, Folders
from polaris_spark.catalog.permits import Grant, Permit
from polaris_spark.errors import PolarisError
from polaris_spark.maintenance.spreading import Reach, Spread, Work

FILES_OF_AN_ITEM = 50
"""Number of files in an item of work; an item's files are processed one after the other."""

_ATTEMPTS = 3
_PAUSE_SECONDS = 0.2


class ToDelete(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some files to delete."""

    files: tuple[Grant, ...]
    changed_before: int | None = None
    """Files last changed at or after this time stay, in milliseconds since 1970; None if age does not matter."""


class Left(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Files that were not deleted."""

    files: dict[str, str]
    """Locations, each with the reason."""


class DeleteFiles(Work[ToDelete, Left]):
    """Work that deletes files, with retries, and returns the files that are left. Missing files count as deleted."""

    item = ToDelete
    result = Left

    def __init__(self, permit: Permit) -> None:
        self._permit = permit

    def __call__(self, reach: Reach, item: ToDelete) -> Left:
        folders = Folders(reach.files)
        left: dict[str, str] = {}
        again: Iterable[Grant] = item.files
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE_SECONDS * 2**attempt)
            left = {at: why for at, why in left.items() if why == CHANGED}
            left |= folders.delete_all(again, self._permit, changed_before=item.changed_before)
            again = [one for one in item.files if left.get(one.location, CHANGED) != CHANGED]
            if not again:
                break
        return Left(left)


def delete_files(
    spread: Spread, files: Sequence[Grant], permit: Permit, *, changed_before: int | None = None
) -> Iterator[Left]:
    """Delete files that a permit allows, and yield for each portion the files that are left.

    Args:
        changed_before: see `ToDelete`.
    """
    parts = [
        ToDelete(tuple(files[start : start + FILES_OF_AN_ITEM]), changed_before)
        for start in range(0, len(files), FILES_OF_AN_ITEM)
    ]
    return spread(DeleteFiles(permit), parts)


class ToLookFor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some files that may exist."""

    locations: tuple[str, ...]


class Absent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The files of a `ToLookFor` that do not exist."""

    locations: tuple[str, ...]


class FindAbsent(Work[ToLookFor, Absent]):
    """Work that finds files that do not exist. If storage gives no clear answer, a file counts as existing."""

    item = ToLookFor
    result = Absent

    def __call__(self, reach: Reach, item: ToLookFor) -> Absent:
        folders = Folders(reach.files)
        return Absent(tuple(location for location in item.locations if not _is_there(folders, location)))


def _is_there(folders: Folders, location: str) -> bool:
    try:
        path = local_path(location)
        if path is None:
            return folders.file(location) is not None
        path.lstat()  # a link is deleted as well
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError, PolarisError):  # deleting the file will report the error
        return True
    return True


def absent_files(spread: Spread, locations: Sequence[str]) -> Iterator[Absent]:
    """Check which files exist, and yield for each portion the files that do not."""
    parts = [
        ToLookFor(tuple(locations[start : start + FILES_OF_AN_ITEM]))
        for start in range(0, len(locations), FILES_OF_AN_ITEM)
    ]
    return spread(FindAbsent(), parts)
