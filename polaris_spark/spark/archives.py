"""Prevents Spark's Python workers from reading the file lists of Spark's own archives and of jars again and again.

Before each task, and before each step of planning a query, a worker invalidates Python's import caches. Python before
3.12 then reads the file list of a zip archive again, once for each package that was imported from the archive. The
module path of a worker contains `pyspark.zip`, Spark's core, and each jar of `spark.jars.packages`, such as that of
Iceberg with its thousands of files. Reading their lists takes longer than most of the tasks here. These archives do not
change while a process runs, so this module keeps their cached file lists.
"""

from __future__ import annotations

import sys
from pathlib import Path
from zipimport import zipimporter

_SPARKS = ("pyspark", "py4j")


def keep_known() -> None:
    """From now on, keep the file lists of Spark's archives and of jars when this process invalidates its import caches.

    This holds for packages that are imported later, too. Do nothing in Python 3.12 and later.
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
