"""The directory of a RocksDB store: functions that create it, and distinguish it from other directories.

The file `POLARIS_SPARK` marks a directory as a store. It is written before the database, and RocksDB does not touch it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Final

from polaris_spark.backends.directories import flush_directory
from polaris_spark.backends.limits import refuse_newer_format
from polaris_spark.errors import CorruptionError, NoStoreError, StoreURIError

FORMAT: Final = 1
"""Version of the format of keys and values, in the file `MARK`."""

MARK: Final = "POLARIS_SPARK"

_TEXT: Final = "polaris_spark store, format "


def identity(path: str) -> tuple[int, int, int]:
    """Return numbers that identify the store at a path: device, inode and modification time of the file `MARK`. They
    are the same for every path to the store. They change if the directory is deleted and created again.

    Raises:
        StoreURIError: there is no store.
        NewerFormatError: a newer release made the store.
    """
    _check_format(path)
    found = os.stat(f"{path}/{MARK}")
    return found.st_dev, found.st_ino, found.st_mtime_ns


def stamp(path: str) -> tuple[int, int, int] | None:
    """Return device, inode and modification time of the file `MARK` at a path, which identify the store. The file is
    not read. Return None if it does not exist or cannot be accessed."""
    try:
        found = os.stat(f"{path}/{MARK}")
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def create(path: str) -> None:
    """Create the directory of a store, accessible only to its owner, and mark it as a store. An existing store is not
    changed.

    Raises:
        StoreURIError: the directory cannot be created, or holds other files.
        NewerFormatError: a newer release made the store.
    """
    where = f"rocksdb://{path}"
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        others = [name for name in os.listdir(path) if not name.startswith(MARK)]
        if others and not os.path.exists(f"{path}/{MARK}"):
            raise StoreURIError(
                f"{where} is a directory with other files in it; a store needs a directory without other files"
            )
        if not os.path.exists(f"{path}/{MARK}"):
            flush_directory(
                os.path.dirname(os.path.abspath(path))
            )  # before any process can recognize it as a store
            _mark(path)
            flush_directory(path)
    except NotADirectoryError:
        raise StoreURIError(
            f"{where} is a file, or is below a file; a rocksdb: store is a directory"
        ) from None
    except FileNotFoundError:
        raise StoreURIError(
            f"{where} cannot be created: the directory {os.path.dirname(path)} does not exist; check the path, or "
            "create the directory first"
        ) from None
    except OSError as error:
        raise StoreURIError(f"{where} cannot be created: {error.strerror}") from error
    _check_format(path)


def check(path: str) -> None:
    """Check that a directory is a store, in a format that this release supports, and contains a database.

    Raises:
        StoreURIError: there is no store, or this process lacks the permission to read it.
        NewerFormatError: a newer release made the store.
    """
    _check_format(path)
    if not os.path.exists(f"{path}/CURRENT"):
        raise NoStoreError(f"rocksdb://{path}")


def refuse_damaged(path: str) -> None:
    """Check that a directory has no files of a damaged database. Call this before a database is created, because
    RocksDB would delete these files.

    Raises:
        CorruptionError: there are files with rows, but the file CURRENT, which every database has, is missing.
    """
    rows = [name for name in os.listdir(path) if name.endswith((".sst", ".log"))]
    if rows and not os.path.exists(f"{path}/CURRENT"):
        raise CorruptionError(
            f"rocksdb://{path} is damaged: the file CURRENT is missing; restore a backup of the whole directory"
        )


def exists(path: str) -> bool:
    """Whether a directory is a store that contains a database."""
    return os.path.exists(f"{path}/{MARK}") and os.path.exists(f"{path}/CURRENT")


def _check_format(path: str) -> None:
    where = f"rocksdb://{path}"
    try:
        text = Path(path, MARK).read_text("ascii").strip()
    except (FileNotFoundError, NotADirectoryError):
        if os.path.exists(f"{path}/CURRENT"):
            raise StoreURIError(
                f"{where} is a database of another program; choose another directory"
            ) from None
        raise NoStoreError(where) from None
    except (OSError, UnicodeDecodeError) as error:
        raise StoreURIError(f"{where} cannot be opened: {error}") from None
    number = text.removeprefix(_TEXT)
    if number == text or not number.isdecimal():
        raise StoreURIError(f"{where} is not a store: its file {MARK} contains {text[:60]!r}")
    refuse_newer_format(where, int(number), FORMAT)


def _mark(path: str) -> None:
    new = f"{path}/{MARK}.{os.getpid()}.{threading.get_ident()}"
    with open(new, "w", encoding="ascii") as file:
        file.write(f"{_TEXT}{FORMAT}\n")
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(FileExistsError):  # another process was faster
        os.link(new, f"{path}/{MARK}")
    os.remove(new)
