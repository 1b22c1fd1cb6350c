"""Flushing of local directories."""

from __future__ import annotations

import os
from pathlib import Path


def flush_directory(path: str | Path) -> None:
    """Flush a local directory, so that a power failure does not undo the creation, renaming or deletion of its files.

    Raises:
        OSError: the directory cannot be opened or flushed.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
