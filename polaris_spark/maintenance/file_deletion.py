"""Deletion of files, and checks which files exist. An engine may distribute this work to executors."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from polaris_spark.catalog.engine import Engine, MapFunction, Reach
from polaris_spark.catalog.files.files import local_path
from polaris_spark.catalog.files.folders import CHANGED, Folders
from polaris_spark.catalog.files.permits import Grant, Permit
from polaris_spark.errors import PolarisError

FILES_OF_AN_ITEM = 50
"""Maximum number of files in one item of work for an engine. The files of an item are processed one after the other."""

_ATTEMPTS = 3
_PAUSE_SECONDS = 0.2


class ToDelete(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some files to delete, given as permissions to delete them."""

    files: tuple[Grant, ...]
    changed_before: int | None = None
    """Time in milliseconds since 1970: files that were changed at or after this time are kept. None to delete files of
    any age."""


class DeleteFiles(MapFunction[ToDelete, dict[str, str]]):
    """Function that deletes files, with retries. Missing files count as deleted.

    It returns a dict from the location of each file that was not deleted to the reason.
    """

    item = ToDelete
    result = dict[str, str]

    def __init__(self, permit: Permit) -> None:
        self._permit = permit

    def __call__(self, reach: Reach, item: ToDelete) -> dict[str, str]:
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
        return left


def delete_files(
    engine: Engine, files: Sequence[Grant], permit: Permit, *, changed_before: int | None = None
) -> Iterator[dict[str, str]]:
    """Delete files that a permit allows.

    Args:
        changed_before: time in milliseconds since 1970: files that were changed at or after this time are kept. None to
            delete files of any age.
    Yields:
        for each group of up to `FILES_OF_AN_ITEM` files, a dict from the location of each file that was not deleted to
        the reason.
    """
    parts = [
        ToDelete(tuple(files[start : start + FILES_OF_AN_ITEM]), changed_before)
        for start in range(0, len(files), FILES_OF_AN_ITEM)
    ]
    return engine.map(DeleteFiles(permit), parts)


class FindAbsent(MapFunction[list[str], list[str]]):
    """Function that returns which of the given files do not exist.

    If storage fails, so that it is not known whether a file exists, the file counts as existing.
    """

    item = list[str]
    result = list[str]

    def __call__(self, reach: Reach, item: list[str]) -> list[str]:
        folders = Folders(reach.files)
        return [location for location in item if not _is_there(folders, location)]


def _is_there(folders: Folders, location: str) -> bool:
    try:
        path = local_path(location)
        if path is None:
            return folders.file(location) is not None
        path.lstat()  # a symbolic link exists even if its target does not, and is deleted as well
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError, PolarisError):  # deleting the file will report the error
        return True
    return True


def absent_files(engine: Engine, locations: Sequence[str], doing: str) -> Iterator[list[str]]:
    """Find the files that do not exist.

    Args:
        doing: the step that is reported as progress.
    Yields:
        for each group of up to `FILES_OF_AN_ITEM` files, the locations of the files that do not exist.
    """
    starts = range(0, len(locations), FILES_OF_AN_ITEM)
    parts = [list(locations[start : start + FILES_OF_AN_ITEM]) for start in starts]
    return engine.map(FindAbsent(), parts, doing)
