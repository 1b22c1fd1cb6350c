"""Spark's own archives on the module path of its Python workers.

Before each task, and each step of planning a query, a worker forgets what Python knows of the module path. Python
before 3.12 then reads the whole directory of an archive again, once for each package that was imported from it: for
`pyspark.zip` that takes longer than most of our tasks. Spark's archives do not change beneath a running process, so
what is known of them is kept.
"""

from __future__ import annotations

import sys
import zipimport
from pathlib import Path

_SPARKS = ("pyspark", "py4j", "spark-")


def keep_known() -> None:
    """Keep what this process knows of Spark's archives; others are read again as ever."""
    if sys.version_info >= (3, 12):
        return
    for finder in sys.path_importer_cache.values():
        if isinstance(finder, zipimport.zipimporter) and Path(finder.archive).name.startswith(_SPARKS):
            finder.invalidate_caches = _nothing  # type: ignore[method-assign]  # of this archive alone


def _nothing() -> None:
    pass
