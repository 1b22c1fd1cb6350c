"""Access to local files below given root folders, without following a symbolic link that leads outside of them.

Checking a path and then opening it would be unsafe, because a folder of the path could be replaced by a link in
between. So a file is opened in two steps. `Confinement.below` resolves links and returns the path relative to a root.
`open_folder` then opens the folders of that path one by one, each relative to the previous one, and refuses every link.
"""

from __future__ import annotations

import contextlib
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from polaris_spark.backends.open_files import Identity, is_held, open_to_read
from polaris_spark.catalog.files.paths import is_in, segments_of
from polaris_spark.errors import ForbiddenError

_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
# With `O_PATH`, where the system has it, search permission for the folder is enough; it need not be readable.


class Below(NamedTuple):
    """A local file below a root."""

    root: str
    """Path of the root folder, as given to `Confinement`. Symbolic links in this path are followed."""
    path: str
    """Path of the file relative to the root. If one of its folders is a link, opening the file is refused."""

    @property
    def parts(self) -> list[str]:
        """The segments of `path`."""
        return self.path.split("/")

    @property
    def real(self) -> str:
        """The absolute path of the file. Links in the path of the root are resolved each time this property is read."""
        return os.path.join(os.path.realpath(self.root), self.path)


class Confinement:
    """Root folders below which local files are read, written or deleted. Thread-safe.

    Links in the roots are resolved once, at first use. A root below another root is dropped, so that a link on the path
    from the outer root to the inner one counts as a link below a root.
    """

    def __init__(self, roots: Iterable[str], *, follow_links: bool, remember: bool = False) -> None:
        """
        Args:
            roots: absolute paths.
            follow_links: whether to follow a symbolic link below a root if its target is also below a root. All other
                links below the roots are refused.
            remember: whether to cache the real paths of folders, which is faster for many files. A stale real path is
                safe, because no link is followed when a file is opened.
        """
        given = sorted({"/" + "/".join(segments_of(root)) for root in roots})
        self.roots = tuple(
            root for root in given if not any(other != root and is_in(root, other) for other in given)
        )
        self.follow_links = follow_links
        self._resolved: tuple[tuple[str, str], ...] | None = None
        self._real: Callable[[str], str] = os.path.realpath
        if remember:
            self._real = lru_cache(maxsize=65_536)(os.path.realpath)

    @property
    def resolved(self) -> tuple[tuple[str, str], ...]:
        """A pair of paths for each root: the path of the root, without resolving links, and its real path."""
        if self._resolved is None:
            self._resolved = tuple((root, os.path.realpath(root)) for root in self.roots)
        return self._resolved

    def below(self, path: Path) -> Below | None:
        """Return the root of a file, and the file's path relative to this root; None if the file is outside all roots.

        It is not checked whether the last segment of the path is a link.

        Raises:
            ForbiddenError: the path contains `..` or a null character; or links are followed, and a link leads from
                below a root to a folder outside all roots.
        """
        spelled = "/" + "/".join(segments_of(str(path)))
        named = self._named(spelled)
        if ".." in path.parts or "\0" in spelled:
            raise ForbiddenError(f"path {spelled!r} contains '..' or a null character")
        if not self.follow_links:
            return named
        folder, _, name = spelled.rpartition("/")
        real = self._real(folder or "/")
        for root, resolved in self.resolved:
            if is_in(real, resolved):
                return Below(root, f"{real[len(resolved.rstrip('/')) :]}/{name}".lstrip("/"))
        if named is None:
            return None
        raise ForbiddenError(
            f"path {spelled!r} contains a symbolic link that leads out of {named.root!r}, to {real!r}"
        )

    def _named(self, path: str) -> Below | None:
        for pair in self.resolved:
            for beginning in dict.fromkeys(pair):
                if path != beginning and is_in(path, beginning):
                    return Below(pair[0], path[len(beginning.rstrip("/")) :].lstrip("/"))
        return None

    def require(self, path: Path) -> None:
        """Check the symbolic links on a path. The file or folder need not exist. Paths outside all roots are accepted.

        If `follow_links` is true, a path below a root is refused if a link leads outside all roots. Otherwise, a path
        below a root is refused if any part of it below the root is a link.

        Raises:
            ForbiddenError: the path is refused.
        """
        inner = self.below(path / "x")  # the last folder may be a link, too
        if inner is None or self.follow_links:
            return
        at = os.path.realpath(inner.root)
        for part in inner.parts[:-1]:
            at = f"{at.rstrip('/')}/{part}"
            if os.path.islink(at):
                raise _refused(at)


def _refused(path: str) -> ForbiddenError:
    return ForbiddenError(f"{path!r} is a symbolic link, which is not followed")


@contextlib.contextmanager
def open_folder(
    file: Below, *, forbidden: frozenset[Identity] = frozenset(), create: bool = False
) -> Iterator[int]:
    """Open the folder of a file, without following a link below the root.

    Callers use the file's name relative to the returned descriptor, so later changes to the path have no effect.

    Args:
        forbidden: identities of folders that are refused.
        create: whether to make missing folders.
    Returns:
        a descriptor of the folder, closed at the end of the context.
    Raises:
        ForbiddenError: a folder on the path is a link, or is forbidden.
        OSError: a folder cannot be opened or made.
    """
    if create:
        os.makedirs(os.path.realpath(file.root), exist_ok=True)
    at = os.open(os.path.realpath(file.root), _FOLDER)
    try:
        for part in file.parts[:-1]:
            inner = _opened(at, part, file, create=create)
            os.close(at)
            at = inner
            if forbidden and _identity(os.fstat(at)) in forbidden:
                raise ForbiddenError(
                    f"{file.root}/{file.path} is not deleted: it is in the folder of a store's database"
                )
        yield at
    finally:
        os.close(at)


def _opened(folder: int, part: str, file: Below, *, create: bool) -> int:
    for attempt in range(3):
        try:
            return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
        except FileNotFoundError:
            if not create or attempt == 2:
                raise
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=folder)
        except OSError:
            if is_link(folder, part):
                raise ForbiddenError(
                    f"folder {part!r} in the path {file.root}/{file.path} is a symbolic link, which is not followed"
                ) from None
            raise
    raise AssertionError("unreachable")


def is_link(folder: int, name: str) -> bool:
    """Whether an open folder contains a symbolic link of this name."""
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def read_descriptor(file: Below) -> int:
    """Open a regular file for reading.

    Returns:
        the descriptor of the file. The caller must close it with `open_files.close`.
    Raises:
        ForbiddenError: the file, or a folder below the root on its path, is a link.
        OSError: the file cannot be opened.
        ValueError: the file is not a regular file, or belongs to a store that this process has open.
    """
    with open_folder(file) as folder:
        name = file.parts[-1]
        if is_link(folder, name):
            raise _refused(f"{file.root}/{file.path}")
        return open_to_read(name, folder=folder, follow_links=False)


def write_file(file: Below, content: bytes) -> None:
    """Write a file, replacing an existing one. Missing folders are made.

    Raises:
        ForbiddenError: the file, or a folder below the root on its path, is a link.
        OSError: the file cannot be written.
    """
    with open_folder(file, create=True) as folder:
        if is_link(folder, file.parts[-1]):
            raise _refused(f"{file.root}/{file.path}")
        replace_file(file.parts[-1], content, folder=folder)


def replace_file(name: str, content: bytes, *, folder: int | None = None) -> None:
    """Write a file. If a file of that name exists, replace it by the new file.

    An existing file is never written to, because it may be a hard link to another file, such as a file of a store.

    Args:
        name: path, relative to `folder` if that is given.
        folder: descriptor of an open folder.
    Raises:
        OSError: the file cannot be written.
    """
    try:
        _write_new(name, content, folder)
    except FileExistsError:
        aside = os.path.join(os.path.dirname(name), f".{uuid.uuid4()}.tmp")
        try:
            _write_new(aside, content, folder)
            os.replace(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(aside, dir_fd=folder)
            raise


def _write_new(name: str, content: bytes, folder: int | None) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(name, flags, 0o666, dir_fd=folder), "wb") as stream:
        stream.write(content)


def unlink(file: Below, forbidden: frozenset[Identity], *, changed_before_ns: int | None = None) -> bool:
    """Delete a file, and the checksum file that Hadoop writes beside it.

    Args:
        forbidden: identities of files and folders; these files, and files in these folders, are not deleted.
        changed_before_ns: nanoseconds since 1970; a file that was modified at that time or later is kept.
    Returns:
        True if the file was deleted; False if it was kept because of `changed_before_ns`.
    Raises:
        FileNotFoundError: the file does not exist.
        ForbiddenError: the file is forbidden; or the file, or a folder below the root on its path, is a link.
        OSError: the file cannot be deleted.
    """
    name = file.parts[-1]
    with open_folder(file, forbidden=forbidden) as folder:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            raise _refused(f"{file.root}/{file.path}")
        if _identity(found) in forbidden or is_held(found):
            raise ForbiddenError(f"{file.root}/{file.path} is not deleted: it is a file of a store")
        if changed_before_ns is not None and found.st_mtime_ns >= changed_before_ns:
            return False
        os.unlink(name, dir_fd=folder)
        checksum = f".{name}.crc"
        with contextlib.suppress(FileNotFoundError):
            beside = os.stat(checksum, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(beside.st_mode) and _identity(beside) not in forbidden and not is_held(beside):
                os.unlink(checksum, dir_fd=folder)
    return True


def remove_folder(file: Below, forbidden: frozenset[Identity]) -> None:
    """Remove an empty folder.

    Args:
        file: the folder to remove.
        forbidden: identities of folders. These folders and all folders in them are not removed.
    Raises:
        ForbiddenError: the folder is forbidden, or a folder above it, below the root, is a link.
        OSError: the folder cannot be removed, for example because it is not empty or is a link.
    """
    with open_folder(file, forbidden=forbidden) as folder:
        name = file.parts[-1]
        if _identity(os.stat(name, dir_fd=folder, follow_symlinks=False)) in forbidden:
            raise ForbiddenError(f"{file.root}/{file.path} is not removed: it is a folder of a store")
        os.rmdir(name, dir_fd=folder)


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino
