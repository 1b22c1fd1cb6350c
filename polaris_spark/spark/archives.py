"""Keeps the file lists of zip archives and jars cached in Spark's Python workers, because reading them again is slow.

Before each task, and before each step of planning a query, a worker invalidates Python's import caches. Python before
3.12 then reads the file list of a zip archive again, once for each package that was imported from the archive. The
module path of a worker contains `pyspark.zip`, Spark's core jar, and each jar of `spark.jars.packages`, such as
Iceberg's with thousands of files. Reading these lists takes longer than most tasks that read a system view. The
archives do not change while a process runs, so this module keeps their cached file lists.
"""

from __future__ import annotations

import sys
from pathlib import Path
from zipimport import zipimporter

_SPARKS = ("pyspark", "py4j")


def keep_known() -> None:
    """Make this process keep the file lists of Spark's archives and of jars when it invalidates its import caches.

    This includes the lists of packages that are imported later. In Python 3.12 and later, do nothing.
    """
    if sys.version_info >= (3, 12) or getattr(zipimporter.invalidate_caches, "keeps_archives", False):
        return
    invalidate = zipimporter.invalidate_caches

    def invalidate_others(finder: zipimporter) -> None:
        name = Path(finder.archive).name
        if not name.startswith(_SPARKS) and not name.endswith(".jar"):
            invalidate(finder)

    invalidate_others.keeps_archives = True  # type: ignore[attr-defined]  # the mark of this function
    setattr(zipimporter, "invalidate_caches", invalidate_others)  # noqa: B010  # an assignment has no type here
