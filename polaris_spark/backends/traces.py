"""Recognition of stores by their files, including stores that this process does not have open."""

from __future__ import annotations

import os
import re
import stat
from typing import Final

from polaris_spark.backends.open_files import close, is_held, open_to_read

_SQLITE: Final = b"SQLite format 3\0"
_LEAST_PAGE: Final = 512
"""Smallest page size of SQLite, in bytes. The size of a database file is a multiple of this number."""
_BESIDE: Final = ("-wal", "-shm", "-journal")
"""Suffixes of the names of the files that SQLite creates beside a database file."""

_MARKS: Final = ("POLARIS_SPARK", "format")
"""Names of the files that identify a folder as a store: the first in `rocksdb:` stores, the second in `file:`
stores."""
_MARK: Final = b"polaris_spark store, "
"""First bytes of the files in `_MARKS`."""

_KEY: Final = re.compile(
    r"/(?:objects/[^/]+/[0-9a-f]/[0-9a-f]/(?:[0-9a-f]{16}-[0-9]+|p[0-9]+-[0-9a-f]+)"
    r"|references/[^/]+/[0-9a-f]/[0-9a-f]/[^/]+)\Z"
)
"""Pattern for the part after the store's prefix of the keys of objects in a bucket that hold rows of a store (see
`objectstore.keys`)."""


def is_database(path: str) -> bool:
    """Whether a local file belongs to a SQLite database: a store, or a database of another program."""
    ending = next((ending for ending in _BESIDE if path.endswith(ending)), "")
    path = path.removesuffix(ending)
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    if not stat.S_ISREG(found.st_mode):
        return False
    if os.path.lexists(f"{path}-wal") or os.path.lexists(f"{path}-shm"):
        return True
    if not found.st_size or found.st_size % _LEAST_PAGE:
        return False
    return is_held(found) or _begins(path, _SQLITE)


def is_store_folder(folder: str) -> bool:
    """Whether a local folder is the directory of a `rocksdb:` or `file:` store."""
    return any(_begins(f"{folder}/{name}", _MARK) for name in _MARKS)


def is_key(path: str) -> bool:
    """Whether a path in a bucket is the key of an object that holds rows of a store."""
    return _KEY.search(path) is not None


def _begins(path: str, beginning: bytes) -> bool:
    """Whether a file begins with the bytes `beginning`; False if the file cannot be read."""
    try:
        descriptor = open_to_read(path, follow_links=False)
    except (OSError, ValueError):
        return False
    try:
        return os.read(descriptor, len(beginning)) == beginning
    except OSError:
        return False
    finally:
        close(descriptor)
