"""The local files that the database libraries in this process have open. Other code must not open these files: when it
closes them, the process loses its locks on them.

When a process closes any descriptor of a file, it loses all record locks that it holds on that file (POSIX,
`fcntl(2)`). SQLite and RocksDB hold such locks on their files; without the locks, two processes could write at once.
So only the database library may open these files. Other code must open a file with `open_to_read` and close it with
`close`, unless it chose the name of the file itself.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import threading
from collections import Counter
from collections.abc import Iterator

Identity = tuple[int, int]
"""Device and inode numbers of a file, which are the same for all its hard links and paths."""

_guard = threading.RLock()  # reentrant: garbage collection of a connection can call `release` at any point
_held: Counter[Identity] = Counter()
_opening: Counter[str] = Counter()


def hold(*files: Identity) -> None:
    """Record that a database has opened these files."""
    with _guard:
        _held.update(files)


def release(*files: Identity) -> None:
    """Record that a database has closed these files."""
    with _guard:
        _subtract(_held, files)


@contextlib.contextmanager
def opening(*paths: str) -> Iterator[None]:
    """Make `is_held` return True for the files at these paths until the block ends, for use while a database opens or
    creates them. If the files stay open, the backend must call `hold` before the block ends."""
    with _guard:
        _opening.update(paths)
    try:
        yield
    finally:
        with _guard:
            _subtract(_opening, paths)


def is_held(found: os.stat_result) -> bool:
    """Whether a database of this process has a file open or is opening it. `found` is the file's status (`os.stat`)."""
    file = found.st_dev, found.st_ino
    with _guard:
        return file in _held or (bool(_opening) and file in {identity(path) for path in _opening})


def identity(path: str) -> Identity | None:
    """Return the device and inode numbers of the file at a path; None if there is no file, or it cannot be accessed."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def open_to_read(name: str, *, folder: int | None = None, follow_links: bool = True) -> int:
    """Open a regular file for reading.

    Args:
        folder: descriptor of the folder that `name` is relative to; None for the working directory.
        follow_links: True to follow symbolic links; False to refuse a `name` that is a symbolic link.
    Returns:
        the file's descriptor, which the caller must close with `close` of this module.
    Raises:
        OSError: the file cannot be opened.
        ValueError: the file is not a regular file, or it belongs to a store that this process has open.
    """
    _require_readable(os.stat(name, dir_fd=folder, follow_symlinks=follow_links))
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    descriptor = os.open(name, flags, dir_fd=folder)
    try:
        _require_readable(os.fstat(descriptor))  # the file may have been replaced in the meantime
    except ValueError:
        close(descriptor)
        raise
    return descriptor


def close(descriptor: int) -> None:
    """Close a descriptor that `open_to_read` returned. If a database of this process has opened the file in the
    meantime, leave the descriptor open, because closing it would release the database's locks."""
    with _guard:
        if not is_held(os.fstat(descriptor)):
            os.close(descriptor)


class ReadFile(io.FileIO):
    """A file object for a descriptor that `open_to_read` returned. `close` keeps the locks of this process's
    databases."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "rb", closefd=False)

    def close(self) -> None:
        """Close the file. Closing twice is allowed."""
        if not self.closed:
            descriptor = self.fileno()
            super().close()
            close(descriptor)


def _require_readable(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):  # opening a pipe would block until it has a writer
        raise ValueError("the file is not a regular file")
    if is_held(found):
        raise ValueError("the file is a file of a store that this process has open")


def _subtract(counts: Counter[Identity] | Counter[str], keys: tuple[object, ...]) -> None:
    counts.subtract(keys)  # type: ignore[arg-type]  # keys of that counter
    for key in keys:
        if counts.get(key, 0) <= 0:  # type: ignore[call-overload]
            counts.pop(key, None)  # type: ignore[call-overload]


def _start_in_child() -> None:
    """Forget all files in a forked child: it does not inherit its parent's file locks, so it has none to lose."""
    global _guard
    _guard = threading.RLock()
    _held.clear()
    _opening.clear()


os.register_at_fork(after_in_child=_start_in_child)
