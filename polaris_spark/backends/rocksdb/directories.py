"""The directory of a RocksDB store: creating it, and telling it from others.

A file in it says that it is a store. It is written before the database is, and RocksDB leaves it alone.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Final

from polaris_spark.errors import CorruptionError, NewerFormatError, NoStoreError, StoreURIError

FORMAT: Final = 1
"""Version of the keys and values."""

MARK: Final = "POLARIS_SPARK"

_TEXT: Final = "polaris_spark store, format "


def identity(path: str) -> tuple[int, int, int]:
    """Tells stores apart: the same for every path to one, another one when a directory was made anew.

    Raises:
        StoreURIError: there is no store.
        NewerFormatError: a newer release made it.
    """
    _check_format(path)
    found = os.stat(f"{path}/{MARK}")
    return found.st_dev, found.st_ino, found.st_mtime_ns


def stamp(path: str) -> tuple[int, int, int] | None:
    """Device, inode and time of the file that marks a store, without reading it; None if there is no store."""
    try:
        found = os.stat(f"{path}/{MARK}")
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def create(path: str) -> None:
    """Make the directory, which only its owner may use, and mark it; one that is a store is left alone.

    Raises:
        StoreURIError: it cannot be made, or holds something else.
        NewerFormatError: a newer release made the store.
    """
    where = f"rocksdb://{path}"
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        others = [name for name in os.listdir(path) if not name.startswith(MARK)]
        if others and not os.path.exists(f"{path}/{MARK}"):
            raise StoreURIError(
                f"{where} is a directory with other files in it; a store needs one of its own"
            )
        if not os.path.exists(f"{path}/{MARK}"):
            _flush(os.path.dirname(os.path.abspath(path)))  # before anybody takes it for a store
            _mark(path)
            _flush(path)
    except NotADirectoryError:
        raise StoreURIError(
            f"{where} names a file, or lies below one; a rocksdb: store is a directory"
        ) from None
    except FileNotFoundError:
        raise StoreURIError(
            f"{where} cannot be created: the directory {os.path.dirname(path)} does not exist; check the path, or make "
            "the directory first"
        ) from None
    except OSError as error:
        raise StoreURIError(f"{where} cannot be created: {error.strerror}") from error
    _check_format(path)


def check(path: str) -> None:
    """Refuse what is no store.

    Raises:
        StoreURIError: there is none, or it may not be read.
        NewerFormatError: a newer release made it.
    """
    _check_format(path)
    if not os.path.exists(f"{path}/CURRENT"):
        raise NoStoreError(f"rocksdb://{path}")


def refuse_damaged(path: str) -> None:
    """Refuse to make a database where the rest of one is: RocksDB would remove its files.

    Raises:
        CorruptionError: there are rows, and what names their files is missing.
    """
    rows = [name for name in os.listdir(path) if name.endswith((".sst", ".log"))]
    if rows and not os.path.exists(f"{path}/CURRENT"):
        raise CorruptionError(
            f"rocksdb://{path} is damaged: the file CURRENT is missing; restore a backup of the whole directory"
        )


def exists(path: str) -> bool:
    """Whether a store was made there."""
    return os.path.exists(f"{path}/{MARK}") and os.path.exists(f"{path}/CURRENT")


def _check_format(path: str) -> None:
    where = f"rocksdb://{path}"
    try:
        text = Path(path, MARK).read_text("ascii").strip()
    except (FileNotFoundError, NotADirectoryError):
        if os.path.exists(f"{path}/CURRENT"):
            raise StoreURIError(f"{where} is a database of another program") from None
        raise NoStoreError(where) from None
    except (OSError, UnicodeDecodeError) as error:
        raise StoreURIError(f"{where} cannot be opened: {error}") from None
    number = text.removeprefix(_TEXT)
    if not number.isdecimal():
        raise StoreURIError(f"{where} is no store: its file {MARK} says {text[:60]!r}")
    if int(number) > FORMAT:
        raise NewerFormatError(
            f"{where} has rows of format {number}; this release knows format {FORMAT}: use the release that made it, "
            "or a later one"
        )


def _flush(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _mark(path: str) -> None:
    new = f"{path}/{MARK}.{os.getpid()}.{threading.get_ident()}"
    with open(new, "w", encoding="ascii") as file:
        file.write(f"{_TEXT}{FORMAT}\n")
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(
        FileExistsError
    ):  # somebody else was faster; a second mark would make a second store
        os.link(new, f"{path}/{MARK}")
    os.remove(new)
