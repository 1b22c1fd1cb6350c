"""Avoids work that Spark's Python workers repeat for each task, and that takes longer than most tasks.

**File lists of archives.** Before each task, and before each step of planning a query, a worker invalidates Python's
import caches. Python before 3.12 then reads the file list of a zip archive again, once for each package that was
imported from the archive. The module path of a worker contains `pyspark.zip`, Spark's core jar, and each jar of
`spark.jars.packages`, such as Iceberg's with thousands of files. The archives do not change while a process runs, so
this module keeps their cached file lists.

**Garbage collection.** After each task, a worker runs a full garbage collection. It examines all objects of all
imported modules, PyArrow's and pandas' among them. These objects are never garbage, so this module exempts them
(`gc.freeze`).
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from zipimport import zipimporter

_SPARKS = ("pyspark", "py4j")

_frozen = 0
"""Number of imported modules when the objects of this process were last exempted from garbage collection."""


def spare_repeated_work() -> None:
    """Keep the file lists, and in Spark's workers exempt imported modules from garbage collection.

    Call this at the beginning of each task, when its modules have been imported.
    """
    _keep_file_lists()
    if _is_worker():
        _exempt_modules()


def _is_worker() -> bool:
    """Return whether Spark started this process to run Python functions: its program is `pyspark.daemon`, or
    `pyspark.worker` where processes cannot be forked."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name in ("pyspark.daemon", "pyspark.worker")


def _exempt_modules() -> None:
    """Exempt all current objects from garbage collection if modules were imported since the last call.

    Objects that earlier tasks still use are exempted, too. They are freed once nothing references them, unless they
    reference each other.
    """
    global _frozen
    if _frozen != len(sys.modules):
        _frozen = len(sys.modules)
        gc.freeze()


def _keep_file_lists() -> None:
    """When Python's import caches are invalidated, keep the cached file lists of Spark's zip archives and of jars.

    This also holds for packages that are imported after this call. Python 3.12 and later do not need this, so there the
    function does nothing.
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
