"""Folders of a file system or object store: listing their files, and deleting them.

Local folders are read directly, all others through the Arrow or fsspec file system that pyiceberg's FileIO uses. Paths
are passed to this file system and not to the methods of FileIO, because these cut off a file's name at `?` or `#`.
Symbolic links are neither followed nor deleted, because their targets lie elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from polaris_spark.catalog.files.confinement import Below, remove_folder, unlink
from polaris_spark.catalog.files.files import Files, local_path
from polaris_spark.catalog.files.permits import Grant, Permit
from polaris_spark.errors import BadRequestError, PolarisError, UnreadableFileError

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

R = TypeVar("R")

_LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
"""Errors that a retry does not fix."""


CHANGED = "it was changed after it was listed"
"""Reason that is reported for a file that was kept because it was modified at or after `changed_before`. Callers list
only older files, so the file was modified after it was listed."""

UNKNOWN_MS = 253_402_300_799_000
"""Modification time that is given to files whose modification time is unknown, in milliseconds since 1970 (the end of
the year 9999). Such a file counts as new, so it is never old enough to be deleted."""


class FileStatus(NamedTuple):
    """An existing file."""

    location: str
    size: int
    """Size in bytes."""
    modified_ms: int
    """Modification time, in milliseconds since 1970."""


class Contents(NamedTuple):
    """The folders and files directly in a folder."""

    folders: list[str]
    files: list[FileStatus]


class Folders:
    """Lists folders, and deletes files in them. Thread-safe."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def contents(self, folder: str) -> Contents:
        """Return the folders and files directly in a folder; both lists are empty if the folder does not exist.

        Raises:
            BadRequestError: the folder cannot be read.
        """
        try:
            path = local_path(folder)
            if path is not None:
                return _local(path, folder.rstrip("/"))
            return repeated(lambda: self._remote(folder))
        except FileNotFoundError:
            return Contents([], [])
        except (OSError, ValueError) as error:
            raise BadRequestError(f"cannot list {folder!r}: {error}") from error

    def exists(self, folder: str) -> bool:
        """Whether a folder exists; in storage without folders, whether a file exists below it.

        Raises:
            BadRequestError: this cannot be determined.
        """
        from pyarrow.fs import FileType

        try:
            path = local_path(folder)
            if path is not None:
                return path.exists()
            system, name = self._system(folder.rstrip("/"))
            return bool(repeated(lambda: system.get_file_info(name)).type != FileType.NotFound)
        except (OSError, ValueError) as error:
            raise BadRequestError(f"cannot read the attributes of {folder!r}: {error}") from error

    def below(
        self, folder: str, unlisted: Callable[[str, PolarisError], object] | None = None
    ) -> Iterator[FileStatus]:
        """Yield every file in a folder and in the folders below it, in no particular order.

        Args:
            unlisted: function that is called with each folder that cannot be listed, and with the error. If the
                function returns, the folder is skipped.
        Raises:
            BadRequestError: a folder cannot be listed, and `unlisted` is None.
        """
        pending = [folder]
        while pending:
            at = pending.pop()
            try:
                found = self.contents(at)
            except BadRequestError as error:
                if unlisted is None:
                    raise
                unlisted(at, error)
                continue
            pending += found.folders
            yield from found.files

    def file(self, location: str) -> FileStatus | None:
        """Return the present size and modification time of a file; None if there is no regular file at the location.

        Raises:
            OSError, ValueError: this cannot be determined.
            BadRequestError: no installed file system can read the location.
        """
        path = local_path(location)
        if path is not None:
            if path.is_symlink() or not path.is_file():
                return None
            found = path.stat()
            return FileStatus(location, found.st_size, found.st_mtime_ns // 1_000_000)
        system, name = self._system(location)
        info = system.get_file_info(name)
        return _listed(location, system, info) if _is_file(info) else None

    def delete(self, grant: Grant, permit: Permit, *, changed_before: int | None = None) -> bool:
        """Delete an existing file; the Hadoop checksum file of a local file is deleted as well.

        Args:
            grant: the file, as returned by `Permit.grant`.
            permit: the permit of the job, which checks the grant again.
            changed_before: milliseconds since 1970; a file that was modified at that time or later is kept.
        Returns:
            True if the file was deleted; False if it was kept because of `changed_before`.
        Raises:
            FileNotFoundError: the file does not exist.
            ForbiddenError: the permit refuses the file, or a folder on the file's path has become a link.
            OSError, ValueError: the file cannot be deleted.
            BadRequestError: no installed file system can access the location.
        """
        permit.require(grant)
        if grant.root:
            since = None if changed_before is None else changed_before * 1_000_000
            return unlink(grant.below, permit.stores.identities(), changed_before_ns=since)
        location = grant.location
        if changed_before is not None:
            there = self.file(location)
            if there is None:
                raise FileNotFoundError(location)
            if there.modified_ms >= changed_before:
                return False
        system, name = self._system(location)
        inner = getattr(system, "handler", None)
        if inner is None:
            system.delete_file(name)
        else:  # Arrow would call fsspec's `rm`, which takes `*`, `?` and `[` for patterns
            inner.fs.rm_file(name)
        return True

    def delete_all(
        self, grants: Iterable[Grant], permit: Permit, *, changed_before: int | None = None
    ) -> dict[str, str]:
        """Delete files; files that no longer exist count as deleted.

        Args:
            grants: the files, as returned by `Permit.grant`.
            permit: the permit of the job, which checks each grant again.
            changed_before: milliseconds since 1970; a file that was modified at that time or later is kept, with the
                reason `CHANGED`.
        Returns:
            a dict from the location of each file that was not deleted to the reason.
        """
        failed = {}
        for grant in grants:
            try:
                if not self.delete(grant, permit, changed_before=changed_before):
                    failed[grant.location] = CHANGED
            except FileNotFoundError:
                continue
            except (OSError, ValueError, PolarisError) as error:
                failed[grant.location] = str(error)
        return failed

    def remove_empty(self, location: str, deleted: Iterable[Grant], permit: Permit) -> None:
        """Remove local folders that became empty when files were deleted: the folders of the deleted files, and the
        folders above them up to and including `location`. Folders that cannot be removed are left."""
        top = permit.may(f"{location.rstrip('/')}/x")
        forbidden = permit.stores.identities()
        folders = {(grant.root, grant.path.rpartition("/")[0]) for grant in deleted if grant.root}
        for root, folder in folders if top is not None and top.root else ():
            assert top is not None
            end = top.path.rpartition("/")[0]
            at = folder
            while at and root == top.root and (at == end or at.startswith(f"{end}/" if end else "")):
                with contextlib.suppress(OSError, PolarisError):
                    permit.require(Grant(f"file://{root}/{at}", root, at))
                    remove_folder(Below(root, at), forbidden)
                at = at.rpartition("/")[0]

    def _remote(self, folder: str) -> Contents:
        from pyarrow.fs import FileSelector, FileType

        root = folder.rstrip("/")
        system, name = self._system(root)
        found = Contents([], [])
        for info in system.get_file_info(FileSelector(name, allow_not_found=True)):
            at = f"{root}/{info.base_name}"
            if info.type == FileType.Directory:
                found.folders.append(at)
            elif _is_file(info):
                found.files.append(_listed(at, system, info))
        return found

    def _system(self, location: str) -> tuple[FileSystem, str]:
        """Return the file system of a location, and the path of the location in it.

        Raises:
            BadRequestError: no file system serves the location.
        """
        io: Any = self._files.io(location)
        scheme, _, rest = location.partition("://")
        authority, _, path = rest.partition("/")
        if hasattr(io, "fs_by_scheme"):  # of pyarrow
            inside = f"/{path}" if scheme in ("hdfs", "viewfs") else f"{authority}/{path}"
            return io.fs_by_scheme(scheme, authority), inside
        if hasattr(io, "get_fs"):  # of fsspec
            from pyarrow.fs import FSSpecHandler, PyFileSystem

            system = io.get_fs(scheme, authority.rpartition("@")[2] or None)
            return PyFileSystem(FSSpecHandler(system)), system._strip_protocol(location)
        raise BadRequestError(
            f"{type(io).__name__}, which reads {location!r}, cannot list folders; set the property py-io-impl to a "
            "FileIO of pyarrow or fsspec"
        )


class Links:
    """Resolves symbolic links in local paths. Thread-safe.

    Real paths of folders are cached, but links may change. So each job and each task on an executor uses a new `Links`.
    """

    def __init__(self) -> None:
        self._real = lru_cache(maxsize=65_536)(_real)

    def resolved(self, location: str) -> str:
        """Return the location of a local file as a `file:` URI in which the links in the folder's path are resolved, so
        that each file has only one name. Return other locations unchanged."""
        try:
            path = local_path(location)
        except (OSError, ValueError):  # too long, or not a URI: no file can be read from it either
            return location
        if path is None or "\0" in location:
            return location
        folder, _, name = str(path).rpartition("/")
        return f"file://{self._real(folder)}/{name}"

    def real(self, place: tuple[str, ...]) -> tuple[str, ...]:
        """Return a location, given as path segments, with all symbolic links resolved, including one in the last
        segment. Return a location that is not local unchanged."""
        if place[0] != "file://" or len(place) < 2:
            return place
        path = f"{self._real('/' + '/'.join(place[1:-1]))}/{place[-1]}"
        if os.path.islink(path):
            path = os.path.realpath(path)
        return ("file://", *(part for part in path.split("/") if part))

    def __reduce__(self) -> tuple[type[Links], tuple[()]]:
        return Links, ()  # another process may see other links


def _real(folder: str) -> str:
    return os.path.realpath(folder or "/").rstrip("/")


def repeated(action: Callable[[], R], *, attempts: int = 4, first_wait_s: float = 0.2) -> R:
    """Return the result of an action on a file system. If the action fails with an error that may be temporary, repeat
    it after a pause, which doubles each time.

    Args:
        attempts: maximum number of calls of the action.
        first_wait_s: pause before the second call, in seconds.
    Raises:
        OSError, UnreadableFileError: the action failed each time, or the file does not exist, is not accessible, or is
            damaged.
    """
    for attempt in range(attempts - 1):
        try:
            return action()
        except (OSError, UnreadableFileError) as error:
            reason = error.__cause__ if isinstance(error, UnreadableFileError) else error
            if not isinstance(reason, OSError) or isinstance(reason, _LASTING):
                raise
            time.sleep(first_wait_s * 2**attempt)
    return action()


def _is_file(info: FileInfo) -> bool:
    from pyarrow.fs import FileType

    return bool(info.type == FileType.File)


def _listed(location: str, system: FileSystem, info: FileInfo) -> FileStatus:
    if info.mtime_ns is not None:
        return FileStatus(location, info.size or 0, info.mtime_ns // 1_000_000)
    # Some fsspec file systems report modification times under names that Arrow does not read.
    asked = getattr(getattr(getattr(system, "handler", None), "fs", None), "modified", None)
    try:
        modified = None if asked is None else int(asked(info.path).timestamp() * 1_000)
    except NotImplementedError:
        modified = None
    return FileStatus(location, info.size or 0, UNKNOWN_MS if modified is None else modified)


def _local(path: Path, root: str) -> Contents:
    found = Contents([], [])
    with os.scandir(path) as entries:
        for entry in entries:
            try:
                entry.name.encode()
            except UnicodeEncodeError:  # neither metadata nor results can hold this name
                continue
            if entry.is_dir(follow_symlinks=False):
                found.folders.append(f"{root}/{entry.name}")
            elif entry.is_file(follow_symlinks=False):
                stat = entry.stat(follow_symlinks=False)
                found.files.append(
                    FileStatus(f"{root}/{entry.name}", stat.st_size, stat.st_mtime_ns // 1_000_000)
                )
    return found
