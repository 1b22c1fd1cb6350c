"""Prevents Spark's Python workers from reading the file lists of Spark's own archives again and again.

Before each task, and before each step of planning a query, a worker invalidates Python's import caches. Python before
3.12 then reads the file list of a zip archive again, once for each package that was imported from the archive. For
`pyspark.zip` this takes longer than most of the tasks here. Spark's archives do not change while a process runs, so
this module keeps their cached file lists.
"""

from __future__ import annotations

import sys
import zipimport
from pathlib import Path

_SPARKS = ("pyspark", "py4j", "spark-")


def keep_known() -> None:
    """From now on, keep the file lists of Spark's archives that are cached now when this process invalidates its import
    caches. Do nothing in Python 3.12 and later."""
    if sys.version_info >= (3, 12):
        return
    for finder in sys.path_importer_cache.values():
        if isinstance(finder, zipimport.zipimporter) and Path(finder.archive).name.startswith(_SPARKS):
            finder.invalidate_caches = _nothing  # type: ignore[method-assign]  # of this archive alone


def _nothing() -> None:
    pass
