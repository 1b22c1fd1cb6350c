"""Reads and writes files outside of the database: local paths directly, all others through pyiceberg's FileIO."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast
from urllib.parse import urlsplit

from polaris_spark.backends.open_files import ReadFile, open_to_read
from polaris_spark.catalog.files.confinement import (
    Below,
    Confinement,
    open_folder,
    read_descriptor,
    replace_file,
    write_file,
)
from polaris_spark.catalog.metadata.bounds import BOUNDS
from polaris_spark.errors import (
    BadRequestError,
    FileStorageFullError,
    ForbiddenError,
    MissingFileError,
    PolarisError,
    UnreadableFileError,
    UnwritableFileError,
)

if TYPE_CHECKING:
    from pyiceberg.io import FileIO, InputStream

_LONGEST: Final = BOUNDS["characters in a location"]


def local_path(location: str) -> Path | None:
    """Return the path of a location that is a local path or a `file:` URI; None for any other location.

    Raises:
        ValueError: the location is not a URI.
        OSError: the path is too long. There is a maximum, because the time to resolve the links of a path grows with
            the square of its length.
    """
    if len(location) > _LONGEST and (location.startswith("/") or urlsplit(location).scheme == "file"):
        problem = f"the location has {len(location)} characters, but the maximum is {_LONGEST}"
        raise OSError(errno.ENAMETOOLONG, problem)
    if location.startswith("/"):
        return Path(location)
    uri = urlsplit(location)
    if uri.scheme != "file" or uri.netloc.lower() not in ("", "localhost"):
        return None
    path = location.split(":", 1)[1]
    if uri.netloc:
        path = path[len("//") + len(uri.netloc) :]
    return Path("/" + path.lstrip("/"))


class Files:
    """Reads and writes files of a catalog's tables. `Folders` deletes them."""

    def __init__(self, properties: dict[str, str], confinement: Confinement | None = None) -> None:
        """
        Args:
            properties: passed to pyiceberg's FileIO.
            confinement: decides which symbolic links are followed on the paths of local files; None follows all.
        """
        self.properties = properties
        self._confinement = confinement
        self._ios: dict[tuple[int, str, str], FileIO] = {}

    def confined(self, confinement: Confinement | None) -> Files:
        """Return a `Files` with the same properties that follows symbolic links only as `confinement` allows."""
        found = Files(self.properties, confinement)
        found._ios = self._ios
        return found

    def _below(self, path: Path) -> Below | None:
        """Return the root folder of a local file, and the file's path relative to it. Return None if all links on the
        path may be followed, because there is no confinement or the file is outside its roots.

        Raises:
            ForbiddenError: a link on the path leads outside the roots.
        """
        return None if self._confinement is None else self._confinement.below(path)

    def io(self, location: str) -> FileIO:
        """Return the FileIO for a location. All files of a bucket share one FileIO, because each FileIO opens its own
        connections.

        Raises:
            BadRequestError: the location is local or malformed, or no FileIO supports its scheme.
        """
        from pyiceberg.io import (
            load_file_io,
        )  # imported here: it would be half of the imports of a process that reads no files

        uri = urlsplit(location)
        if uri.scheme in ("", "file"):  # a FileIO would open a local file without confinement
            raise BadRequestError(
                f"{location!r} is a relative path or on another host; write a local file as file:///path or /path"
            )
        key = (os.getpid(), uri.scheme, uri.netloc)  # connections do not survive a fork
        try:
            if key not in self._ios:
                self._ios[key] = load_file_io(self.properties, location)
            return self._ios[key]
        except (ValueError, ImportError) as error:
            raise BadRequestError(f"no FileIO is available to read or write {location!r}: {error}") from error

    def stream(self, location: str) -> BinaryIO:
        """Open a file as a stream from its beginning; the stream supports `read`, `tell` and closing.

        Raises:
            MissingFileError: the file does not exist.
            UnreadableFileError: the file cannot be opened.
            ForbiddenError: the path contains a symbolic link that must not be followed (see `confinement`).
        """
        try:
            path = local_path(location)
            if path is None:
                return cast("BinaryIO", _Stream(self.io(location).new_input(location).open(seekable=False)))
            return _opened_local(path, self._below(path))
        except FileNotFoundError as error:
            raise MissingFileError(f"there is no file {location!r}", location=location) from error
        except (OSError, TypeError, ValueError, BadRequestError) as error:
            raise UnreadableFileError(f"cannot read {location!r}: {error}", location=location) from error

    def read(self, location: str, *, limit: int | None = None) -> bytes:
        """Return the content of a file.

        Args:
            limit: maximum size of the file, in bytes.
        Raises:
            BadRequestError: the file cannot be read, or is larger than `limit`.
            ForbiddenError: the path contains a symbolic link that must not be followed (see `confinement`).
        """
        most = () if limit is None else (limit + 1,)
        try:
            path = local_path(location)
            if path is not None:
                content = _read_local(path, self._below(path), *most)
            else:
                with self.io(location).new_input(location).open() as stream:
                    content = stream.read(*most)
            if limit is not None and len(content) > limit:
                raise ValueError(f"the file has more than {limit} bytes")
            return content
        except (OSError, TypeError, ValueError) as error:
            raise BadRequestError(f"cannot read {location!r}: {error}") from error

    def write_all(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Write files, given as (location, content) pairs; existing files are replaced.

        Raises:
            BadRequestError, ForbiddenError: a file cannot be written to its location, and trying again is useless.
            UnwritableFileError: a file cannot be written now; a later attempt may succeed.
        """
        for location, content in files:
            try:
                self._write(location, content)
            except (OSError, TypeError, ValueError) as error:
                raise unwritable(location, error) from error

    def _write(self, location: str, content: bytes) -> None:
        path = local_path(location)
        if path is not None:
            _write_local(path, self._below(path), content)
            return
        with self.io(location).new_output(location).create(overwrite=True) as stream:
            stream.write(content)

    def read_if_there(self, location: str) -> bytes | None:
        """Return the content of a file; None if the file does not exist.

        Raises:
            BadRequestError: the file exists and cannot be read, or it is unknown whether the file exists.
        """
        try:
            path = local_path(location)
            there = path.exists() if path is not None else self.io(location).new_input(location).exists()
        except (OSError, TypeError, ValueError) as error:
            raise BadRequestError(f"cannot check whether {location!r} exists: {error}") from error
        return self.read(location) if there else None

    def make_folder(self, location: str) -> None:
        """Make a local folder and the missing folders above it. If the location is not local, do nothing, because
        object stores need no folders.

        Raises:
            ForbiddenError: the path contains a symbolic link that must not be followed (see `confinement`).
            OSError, ValueError: the folder cannot be made.
        """
        path = local_path(location)
        if path is None:
            return
        below = self._below(path / "file")
        if below is None:
            path.mkdir(parents=True, exist_ok=True)
            return
        with open_folder(below, create=True):
            pass

    def put(self, location: str, content: bytes) -> None:
        """Write a file that other processes may be reading. They see either all old content or all new content.

        Raises:
            BadRequestError, ForbiddenError: the file cannot be written to its location, and trying again is useless.
            UnwritableFileError: the file cannot be written now; a later attempt may succeed.
        """
        path = local_path(location)
        if path is None:
            self.write_all([(location, content)])
            return
        aside: Path | None = None
        try:
            aside = path.with_name(f".{uuid.uuid4()}.tmp")
            _write_local(aside, self._below(aside), content)
            # Otherwise Hadoop's file system would find that the new content does not match the old file's checksum.
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
            aside.replace(path)
        except (OSError, TypeError, ValueError) as error:
            if aside is not None:
                with contextlib.suppress(OSError):
                    aside.unlink(missing_ok=True)
            raise unwritable(location, error) from error


class _Stream:
    """A stream that counts the bytes read, because the streams of object stores do not report their position."""

    def __init__(self, stream: InputStream) -> None:
        self._stream = stream
        self._read = 0

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._read += len(data)
        return data

    def tell(self) -> int:
        return self._read

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_IMPOSSIBLE = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
    errno.EINVAL,
    errno.ELOOP,
}


def unwritable(location: str, error: Exception) -> PolarisError:
    """Return the error to raise after a failed write. It never has HTTP status 500, because Iceberg's clients treat
    this status as an unknown outcome."""
    number = getattr(error, "errno", None)
    message = f"cannot write {location!r}, nothing was changed: {error}"
    if number in _NO_SPACE:
        return FileStorageFullError(message)
    if number in _FORBIDDEN:
        return ForbiddenError(message)
    if number in _IMPOSSIBLE or not isinstance(error, OSError):
        return BadRequestError(message)
    return UnwritableFileError(message)


def _read_local(path: Path, below: Below | None, most: int = -1) -> bytes:
    """Return up to `most` bytes of a regular file; all bytes if `most` is negative.

    Devices and pipes are refused, because reading them may never end.
    """
    with _opened_local(path, below) as file:
        # `read` with a size allocates that much memory first.
        return file.read() if os.fstat(file.fileno()).st_size < most else file.read(most)


def _opened_local(path: Path, below: Below | None) -> BinaryIO:
    return io.BufferedReader(ReadFile(open_to_read(str(path)) if below is None else read_descriptor(below)))


def _write_local(path: Path, below: Below | None, content: bytes) -> None:
    """Write a file under its final name, without a rename. This is safe for a metadata file: its name is unique to its
    version, and no reader knows the name before the commit."""
    if below is not None:
        write_file(below, content)
        return
    try:
        replace_file(str(path), content)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(str(path), content)


def absolute(location: str) -> str:
    """Return a warehouse location as an absolute URI; a relative or bare path becomes a `file:` URI of this machine."""
    if (urlsplit(location).scheme and "://" in location) or location.startswith("file:"):
        return location.rstrip("/")
    return "file://" + str(Path(location).expanduser().resolve())
