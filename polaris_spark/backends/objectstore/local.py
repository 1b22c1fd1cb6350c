"""`file:///path`: a store in the files of a directory, for any number of processes on one machine. Each object is a
file.

- **Durability.** A file is written under another name, flushed, and renamed, and its directory is flushed, before the
  write is acknowledged. So readers see only whole files, and a power failure does not undo an acknowledged write.
- **Conditional PUTs.** A conditional write holds an advisory lock (`flock`) while it compares and renames. A hash of
  the key selects one of 256 lock files. If the process ends or crashes, the lock is released.

In file names, each capital letter is encoded as `^` and the small letter, because some file systems ignore case.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import random
import re
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from zlib import crc32

from polaris_spark.backends import Options
from polaris_spark.backends.directories import flush_directory
from polaris_spark.backends.objectstore.requests import AT_ONCE, Mark, Requests
from polaris_spark.backends.store_options import Given
from polaris_spark.errors import (
    NewerFormatError,
    NoStoreError,
    OutcomeUnknownError,
    PolarisError,
    StateError,
    StorageFullError,
    StoreURIError,
    TryAgainError,
)

_FORMAT: Final = "polaris_spark store, format 1\n"
_CAPITAL: Final = re.compile("[A-Z]")
_MARKED: Final = re.compile(r"\^([a-z])")
_SETTING_UP: Final = "setting up"
_THREADS: Final = 8
_ABANDONED_S: Final = 3_600
_LONGEST_PAUSE_S: Final = 0.001
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_FORBIDDEN: Final = (errno.EACCES, errno.EPERM, errno.EROFS)


def lock_timeout_ms(options: Options) -> int:
    """Return the maximum wait for a lock, in milliseconds, from the option `timeout` (30 s by default).

    Raises:
        StoreURIError: an option or its value is not valid.
    """
    return Given("file", options, ("timeout",)).duration_ms("timeout", "30 s")


class DirectoryRequests(Requests):
    """Sends requests to one directory, whose files are the objects."""

    conditional_deletes = True

    def __init__(self, path: str, timeout_ms: int) -> None:
        super().__init__(f"file://{path}", _THREADS)
        self._root = Path(path)
        self._timeout_s = timeout_ms / 1_000
        self._checked = False
        self._directories: set[Path] = set()
        """Directories that are known to survive a power failure, because their parent directories were flushed."""
        self._unflushed: set[Path] = set()
        """Directories that could not be flushed. Reads of their files fail until a flush succeeds."""
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        """Descriptor of the store's directory. It stays open as long as the store, so that no other directory gets the
        same inode number."""

    def close(self) -> None:
        super().close()
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
            self._descriptor = None

    def begin_in_child(self) -> None:
        super().begin_in_child()
        self._lock = threading.Lock()

    def refuse_if_unusable(self) -> None:
        super().refuse_if_unusable()
        with self._explaining("reading the format"):
            self._has_known_format()

    def setup(self) -> None:
        """Create the store's directory if it is missing; its parent must exist. Check that the file system has locks.

        Raises:
            StoreURIError: the directory cannot be created, holds other files, or is on a file system without locks.
            NewerFormatError: a newer release made the store.
        """
        marker = self._root / "format"
        with self._explaining(_SETTING_UP):
            with contextlib.suppress(FileExistsError):
                self._root.mkdir(0o700)
            self._has_known_format()
            if not marker.exists():
                others = set(os.listdir(self._root)) - {"locks", "new", "format"}
                if others and not marker.exists():  # another process may have written the marker since
                    raise StoreURIError(
                        f"{self.where} holds other files; a store needs a directory without other files"
                    )
                for name in ("locks", "new"):
                    (self._root / name).mkdir(0o700, exist_ok=True)
                flush_directory(self._root.parent)  # before any process can recognize it as a store
                self._write(marker, _FORMAT.encode())
            self._refuse_without_locks()
            for abandoned in (self._root / "new").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if abandoned.stat().st_mtime < time.time() - _ABANDONED_S:
                        abandoned.unlink()

    def get(self, key: str) -> tuple[bytes, Mark] | None:
        self.refuse_if_unusable()
        with self._explaining(f"reading {key!r}"):
            path = self._path(key)
            body = _body(path)
            if path.parent in self._unflushed:
                flush_directory(path.parent)
                self._unflushed.discard(path.parent)
            if not self._is_current():
                raise self._replaced()
        if body is None:
            self._refuse_no_store()
            return None
        return body, _mark(body)

    def put(self, key: str, body: bytes) -> None:
        self.refuse_if_unusable()
        with self._explaining(f"writing {key!r}"):
            self._write(self._path(key), body)

    def put_if(self, key: str, body: bytes, mark: Mark | None) -> Mark | None:
        self.refuse_if_unusable()
        with self._explaining(f"writing {key!r}"), self._locked(key):
            if not self._is_current():
                raise self._replaced()
            path = self._path(key)
            current = _body(path)
            if (None if current is None else _mark(current)) != mark:
                return None
            self._write(path, body)
            if not self._is_current():
                raise OutcomeUnknownError(f"{self._replaced()}; the change to {key!r} may be lost")
        return _mark(body)

    def delete(self, keys: Sequence[str]) -> None:
        self.refuse_if_unusable()
        directories = set()
        with self._explaining(f"deleting {len(keys)} objects"):
            for key in keys:
                path = self._path(key)
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
                    directories.add(path.parent)
            for directory in directories:
                self._flush(directory, "deleted")

    def delete_if(self, key: str, mark: Mark) -> bool:
        self.refuse_if_unusable()
        with self._explaining(f"deleting {key!r}"), self._locked(key):
            current = _body(self._path(key))
            if current is None or _mark(current) != mark:
                return False
            self.delete([key])
            return True

    def pages(self, prefix: str) -> Iterator[Sequence[tuple[str, int]]]:
        self.refuse_if_unusable()
        page: list[tuple[str, int]] = []
        with self._explaining(f"listing {prefix!r}"):
            self._refuse_no_store()
            for directory, below, names in os.walk(self._path(prefix), onerror=_raise):
                below.sort()
                for name in sorted(names):
                    path = Path(directory, name)
                    with contextlib.suppress(FileNotFoundError):
                        page.append((self._key(path), path.stat().st_size))
                    if len(page) == AT_ONCE:
                        yield page
                        page = []
        if page:
            yield page

    def folders(self, prefix: str) -> list[str]:
        self.refuse_if_unusable()
        with self._explaining(f"listing {prefix!r}"), contextlib.suppress(FileNotFoundError):
            self._refuse_no_store()
            return sorted(self._key(each).rpartition("/")[2] for each in self._path(prefix).iterdir())
        return []

    def _is_current(self) -> bool:
        """Whether the path still leads to the directory that this process used first. If another directory has replaced
        that directory, the path leads to another store, for which this process's leases and cached rows are not valid.

        Raises:
            FileNotFoundError: this is the first call, and the directory does not exist.
        """
        with self._lock:
            self.refuse_if_unusable()
            if self._descriptor is None:
                self._descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            used = os.fstat(self._descriptor)
        try:
            return os.path.samestat(os.stat(self._root), used)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _replaced(self) -> StateError:
        return StateError(
            f"{self.where} was removed or replaced while this process had it open: end this process, put the "
            "directory "
            "back if it was removed by mistake, then start the process again"
        )

    def _path(self, key: str) -> Path:
        return self._root / _CAPITAL.sub(lambda found: "^" + found[0].lower(), key)

    def _key(self, path: Path) -> str:
        return _MARKED.sub(lambda found: found[1].upper(), path.relative_to(self._root).as_posix())

    def _write(self, path: Path, body: bytes) -> None:
        """Create or replace a whole file, durably.

        Raises:
            OutcomeUnknownError: the file was written, but a power failure may undo this.
        """
        new = self._root / "new" / os.urandom(16).hex()
        try:
            with open(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            self._make_directories(path.parent)
            os.replace(new, path)
        except BaseException:
            with contextlib.suppress(OSError):
                new.unlink()
            raise
        self._flush(path.parent, "written")

    def _flush(self, directory: Path, done: str) -> None:
        """Flush a directory, so that the changes to its files survive a power failure. `done` names the change, for the
        error message.

        Raises:
            OutcomeUnknownError: the flush failed, so a power failure may undo the changes.
        """
        try:
            flush_directory(directory)
        except OSError as error:
            self._unflushed.add(directory)
            raise OutcomeUnknownError(
                f"{self.where}: files of {directory.name!r} were {done}, but not flushed "
                f"({error.strerror}); a power failure may undo this"
            ) from error

    def _make_directories(self, directory: Path) -> None:
        """Create a directory and its parents durably. The parent of an existing directory is flushed, too, because
        another process may have just created the directory."""
        if directory != self._root and directory not in self._directories:
            self._make_directories(directory.parent)
            directory.mkdir(0o700, exist_ok=True)
            flush_directory(directory.parent)
            self._directories.add(directory)

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """Within the block, hold the lock that belongs to a key.

        Raises:
            TryAgainError: other operations held the lock until the time-out.
        """
        end, pause = time.monotonic() + self._timeout_s, 0.000_2
        path = self._root / "locks" / f"{crc32(key.encode()) & 0xFF:02x}"
        with open(path, "ab") as file, _closed_in_children(file.fileno()):
            while not _lock(file.fileno()):
                if time.monotonic() > end:
                    raise TryAgainError(
                        f"{self.where}: {key!r} was locked by other operations; nothing was changed: try again"
                    )
                time.sleep(random.uniform(0.0, pause))
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            try:
                yield
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def _explaining(self, doing: str) -> Iterator[None]:
        """Translate an `OSError` in the block to an error of this package. Such an `OSError` means that nothing was
        changed, because `_flush` handles the errors that occur after a change."""
        try:
            yield
        except OSError as error:
            if isinstance(error, FileNotFoundError) and doing != _SETTING_UP:
                if self._descriptor is not None and not self._is_current():
                    raise self._replaced() from error
                self._checked = False
                self._refuse_no_store()
            raise self._explained(error, doing) from error

    def _explained(self, error: OSError, doing: str) -> PolarisError:
        if error.errno in _NO_SPACE:
            return StorageFullError(
                f"the disk of {self.where} is full; nothing was changed: free space, then try again"
            )
        if error.errno in _FORBIDDEN:
            return StoreURIError(
                f"{self.where}: {doing}: {error.strerror}; check the permissions of the directory and its files, "
                "and whether its file system is read-only"
            )
        if error.errno == errno.ENAMETOOLONG:
            return StoreURIError(
                f"the path of {self.where} is too long for its file system: use a shorter path"
            )
        if isinstance(error, NotADirectoryError) and self._root.exists():
            return StoreURIError(
                f"{self.where} names a file, but a file: store is a directory: give the path of a directory, which "
                "need not exist"
            )
        if isinstance(error, (FileNotFoundError, NotADirectoryError)) and not self._root.is_dir():
            return StoreURIError(
                f"{self.where} cannot be created: {self._root.parent} is not a directory; create this directory first"
            )
        return TryAgainError(f"{self.where}: {doing} failed ({error.strerror}); nothing was changed")

    def _refuse_no_store(self) -> None:
        """Check that the directory holds a store, in a format that this release supports.

        Raises:
            NoStoreError: the directory holds no store.
            NewerFormatError: a newer release made the store.
        """
        if not self._has_known_format():
            raise NoStoreError(self.where)

    def _has_known_format(self) -> bool:
        """Return whether the directory holds a store. After the first answer True, the directory is not read again.

        Raises:
            NewerFormatError: a newer release made the store.
        """
        if not self._checked:
            found = _body(self._root / "format")
            if found is not None and found.decode(errors="replace") != _FORMAT:
                raise NewerFormatError(
                    f"{self.where} has a format that this release does not support: "
                    f"{found[:100].decode(errors='replace').strip()!r}; use a newer release"
                )
            self._checked = found is not None
        return self._checked

    def _refuse_without_locks(self) -> None:
        """Check that the directory's file system has working locks (`flock`).

        Raises:
            StoreURIError: the file system has no locks, or two descriptors can lock the same file at the same time.
        """
        path = self._root / "locks" / "probe"
        with open(path, "ab") as one, open(path, "ab") as other:
            try:
                locked = _lock(one.fileno())
                excluded = not locked or not _lock(other.fileno())
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                excluded = False
        if not excluded:
            raise StoreURIError(
                f"{self.where} is on a file system without locks (flock); use a local file system"
            )


_held: set[int] = set()


def _let_go_in_child() -> None:
    """Close the descriptors of locked files in a forked child. Otherwise the child would keep its parent's locks."""
    while _held:
        with contextlib.suppress(OSError):
            os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go_in_child)


@contextlib.contextmanager
def _closed_in_children(descriptor: int) -> Iterator[None]:
    _held.add(descriptor)
    try:
        yield
    finally:
        _held.discard(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _body(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _mark(body: bytes) -> Mark:
    return {"e_tag": hashlib.blake2b(body, digest_size=16).hexdigest()}


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
