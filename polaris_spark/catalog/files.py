"""Files beside the rows, read and written: local paths directly, everything else through pyiceberg's FileIO."""

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

from polaris_spark.backends.held import ReadFile, open_to_read
from polaris_spark.catalog.confinement import (
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
    """The path of a `file:` location, or None where it is not on this machine.

    Raises:
        ValueError: it is no URI.
        OSError: the path is too long. Resolving the links of a path takes a time that grows with the square of its
            length.
    """
    if len(location) > _LONGEST and (location.startswith("/") or urlsplit(location).scheme == "file"):
        problem = f"the location has {len(location)} characters, and at most {_LONGEST} are possible"
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
    """Reads and writes files of a catalog's tables; `properties` go to pyiceberg's FileIO. `Folders` deletes them."""

    def __init__(self, properties: dict[str, str], confinement: Confinement | None = None) -> None:
        """
        Args:
            confinement: decides which symbolic links to local files below its folders are followed; without one, all
                are followed.
        """
        self.properties = properties
        self._confinement = confinement
        self._ios: dict[tuple[int, str, str], FileIO] = {}

    def confined(self, confinement: Confinement | None) -> Files:
        """The same files, with local ones opened under a confinement."""
        found = Files(self.properties, confinement)
        found._ios = self._ios
        return found

    def _below(self, path: Path) -> Below | None:
        """Root and relative path of a local file in the confinement; None if links on its path may be followed.

        Raises:
            ForbiddenError: links lead outside the confinement.
        """
        return None if self._confinement is None else self._confinement.below(path)

    def io(self, location: str) -> FileIO:
        """The FileIO that serves a location: one for all of a bucket, since each has connections of its own.

        Raises:
            BadRequestError: none does.
        """
        from pyiceberg.io import (
            load_file_io,
        )  # imported here: half of what processes import that read no files

        uri = urlsplit(location)
        if uri.scheme in ("", "file"):  # a FileIO would open a file of this machine, unconfined
            raise BadRequestError(f"{location!r} names no file: one of this machine is named file:///path")
        key = (os.getpid(), uri.scheme, uri.netloc)  # connections do not survive a fork
        try:
            if key not in self._ios:
                self._ios[key] = load_file_io(self.properties, location)
            return self._ios[key]
        except (ValueError, ImportError) as error:
            raise BadRequestError(f"nothing here can read or write {location!r}: {error}") from error

    def stream(self, location: str) -> BinaryIO:
        """A file, opened to be read from its beginning as it comes; it can `read`, `tell` and be closed.

        Raises:
            MissingFileError: there is no such file.
            UnreadableFileError: it cannot be opened.
            ForbiddenError: a symbolic link leads to it that is not followed.
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
        """The content of a file.

        Args:
            limit: the most bytes that it may have.
        Raises:
            BadRequestError: it cannot be read, or is longer.
            ForbiddenError: a symbolic link leads to it that is not followed.
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
                raise ValueError(f"it has more than {limit} bytes")
            return content
        except (OSError, TypeError, ValueError) as error:
            raise BadRequestError(f"cannot read {location!r}: {error}") from error

    def write_all(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Write (location, content) pairs, replacing what is there.

        Raises:
            BadRequestError, ForbiddenError: a file cannot be written there.
            UnwritableFileError: a file cannot be written there now.
        """
        for location, content in files:
            try:
                self._write(location, content)
            except (OSError, TypeError, ValueError) as error:
                raise _unwritable(location, error) from error

    def _write(self, location: str, content: bytes) -> None:
        path = local_path(location)
        if path is not None:
            _write_local(path, self._below(path), content)
            return
        with self.io(location).new_output(location).create(overwrite=True) as stream:
            stream.write(content)

    def read_if_there(self, location: str) -> bytes | None:
        """The content of a file, or None where there is none.

        Raises:
            BadRequestError: it is there and cannot be read, or nobody can say whether it is.
        """
        try:
            path = local_path(location)
            there = path.exists() if path is not None else self.io(location).new_input(location).exists()
        except (OSError, TypeError, ValueError) as error:
            raise BadRequestError(f"cannot look for {location!r}: {error}") from error
        return self.read(location) if there else None

    def make_folder(self, location: str) -> None:
        """Make a local folder and the missing folders above it. Other locations are left alone: they need no folders.

        Raises:
            ForbiddenError: a symbolic link leads to it that is not followed.
            OSError, ValueError: it cannot be made.
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
        """Write a file that others may be reading: they see what was there before, or all of the new content.

        Raises:
            BadRequestError, ForbiddenError: the file cannot be written there.
            UnwritableFileError: the file cannot be written there now.
        """
        path = local_path(location)
        if path is None:
            self.write_all([(location, content)])
            return
        aside: Path | None = None
        try:
            aside = path.with_name(f".{uuid.uuid4()}.tmp")
            _write_local(aside, self._below(aside), content)
            # Hadoop's file system would find that the content does not fit the checksum of what was there.
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
            aside.replace(path)
        except (OSError, TypeError, ValueError) as error:
            if aside is not None:
                with contextlib.suppress(OSError):
                    aside.unlink(missing_ok=True)
            raise _unwritable(location, error) from error


class _Stream:
    """A stream that knows how far it was read: those of object stores do not say."""

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


def _unwritable(location: str, error: Exception) -> PolarisError:
    """What a client is told; never 500, which Iceberg's clients take for an unknown outcome."""
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
    """Up to `most` bytes of a regular file, all if negative; devices and pipes could go on for ever."""
    with _opened_local(path, below) as file:
        # `read` with a number takes that much memory first.
        return file.read() if os.fstat(file.fileno()).st_size < most else file.read(most)


def _opened_local(path: Path, below: Below | None) -> BinaryIO:
    return io.BufferedReader(ReadFile(open_to_read(str(path)) if below is None else read_descriptor(below)))


def _write_local(path: Path, below: Below | None, content: bytes) -> None:
    """Write a file. A metadata file needs no rename: its name is unique to its version, and nobody knows it before the
    commit."""
    if below is not None:
        write_file(below, content)
        return
    try:
        replace_file(str(path), content)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(str(path), content)


def absolute(location: str) -> str:
    """A warehouse location as an absolute URI; a relative or bare path becomes a `file:` URI of this machine."""
    if (urlsplit(location).scheme and "://" in location) or location.startswith("file:"):
        return location.rstrip("/")
    return "file://" + str(Path(location).expanduser().resolve())
