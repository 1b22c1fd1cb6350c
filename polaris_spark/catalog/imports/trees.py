"""Lists the entries of a directory, on this machine or in an object store."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from polaris_spark.catalog.files.files import local_path
from polaris_spark.errors import SourceError


class Directory(NamedTuple):
    """The entries of a directory, sorted by name."""

    directories: list[str]
    files: dict[str, float]
    """Names of files, with their modification times in seconds since 1970."""
    unread: dict[str, str]
    """Reasons why links, pipes and other entries are not read, by the entry's name."""


List = Callable[[str], Directory]
"""Function that lists the directory at a location.

Raises:
    OSError: the directory cannot be listed.
"""


def lister(root: str, properties: Mapping[str, str]) -> List:
    """Return a function that lists directories at and below `root`.

    Args:
        properties: properties of pyiceberg's FileIO, for directories that are not on this machine.
    Raises:
        SourceError: no installed file system can list the location.
    """
    if local_path(root) is not None:
        return _local
    from pyiceberg.io.pyarrow import PyArrowFileIO  # takes seconds, and most trees are local

    uri = urlsplit(root)
    try:
        filesystem = PyArrowFileIO(dict(properties)).fs_by_scheme(uri.scheme, uri.netloc)
    except (ValueError, ImportError, OSError) as error:
        raise SourceError(f"no file system is available to list {root!r}: {error}") from error
    return RemoteTree(filesystem)


def _local(location: str) -> Directory:
    path = local_path(location)
    assert path is not None
    return _scan(path)


def _scan(path: Path) -> Directory:
    found = Directory([], {}, {})
    with os.scandir(path) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            try:
                _sort_in(entry, found)
            except FileNotFoundError:
                continue  # it was deleted since the directory was listed
            except OSError as error:
                found.unread[entry.name] = f"its attributes cannot be read: {error.strerror or error}"
    return found


def _sort_in(entry: os.DirEntry[str], found: Directory) -> None:
    """Add an entry of a directory to `found`, by its type.

    Raises:
        OSError: the type cannot be read, for example if the entry is a symbolic link to itself.
    """
    if entry.is_dir(follow_symlinks=False):
        found.directories.append(entry.name)
    elif entry.is_symlink() and entry.is_dir():  # it may lead in circles
        found.unread[entry.name] = "a symbolic link, which is not followed"
    elif entry.is_file():
        found.files[entry.name] = entry.stat().st_mtime
    elif not entry.is_symlink():
        found.unread[entry.name] = "a FIFO, socket or device, which is not read"


class RemoteTree:
    """Lists directories of a pyarrow file system."""

    def __init__(self, filesystem: object) -> None:
        self._filesystem = filesystem

    def __call__(self, location: str) -> Directory:
        from pyarrow.fs import FileSelector, FileType

        # `urlsplit` is not used, because it cuts a directory's name at a `?` or `#`.
        scheme, _, path = location.partition("://")
        if scheme in ("hdfs", "viewfs"):
            path = "/" + path.partition("/")[2]
        found = Directory([], {}, {})
        listed = self._filesystem.get_file_info(FileSelector(path.rstrip("/")))  # type: ignore[attr-defined]  # untyped
        for info in sorted(listed, key=lambda info: info.base_name):
            if info.type == FileType.Directory:
                found.directories.append(info.base_name)
            elif info.type == FileType.File:
                found.files[info.base_name] = (info.mtime_ns or 0) / 1e9
        return found
