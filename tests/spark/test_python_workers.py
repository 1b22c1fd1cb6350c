"""Two optimizations of Spark's workers: they read file lists of archives only once, and garbage collection skips
imported modules."""

from __future__ import annotations

import gc
import importlib
import sys
import zipfile
import zipimport
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from polaris_spark.spark import python_workers


@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="Python reads archives again only when they are asked"
)
def test_only_other_archives_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    original = zipimport.zipimporter.invalidate_caches
    for name in ("pyspark.zip", "theirs.zip", "iceberg.jar"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(f"in_{Path(name).stem}/__init__.py", "")
            archive.writestr(f"in_{Path(name).stem}/later/__init__.py", "")
        monkeypatch.syspath_prepend(str(tmp_path / name))
        importlib.import_module(f"in_{Path(name).stem}")

    def noted(finder: zipimport.zipimporter) -> None:
        asked.append(Path(finder.archive).name)
        original(finder)

    monkeypatch.setattr(zipimport.zipimporter, "invalidate_caches", noted)
    importlib.invalidate_caches()
    assert {"pyspark.zip", "theirs.zip", "iceberg.jar"} <= set(asked)
    asked.clear()
    python_workers.spare_repeated_work()
    python_workers.spare_repeated_work()
    importlib.import_module("in_pyspark.later")
    importlib.invalidate_caches()
    assert not {"pyspark.zip", "iceberg.jar"} & set(asked)
    assert asked.count("theirs.zip") == 1


def exempted(_: object) -> list[int]:
    """Return how many objects of this process are exempt from garbage collection, before and after the optimization."""
    before = gc.get_freeze_count()
    python_workers.spare_repeated_work()
    return [before, gc.get_freeze_count()]


@pytest.mark.spark
def test_workers_search_no_imported_module_for_garbage(spark: SparkSession) -> None:
    [[before, after]] = spark.sparkContext.parallelize([0], 1).map(exempted).collect()
    assert after > max(before, 10_000)


def test_the_garbage_of_other_programs_is_still_collected() -> None:
    before, after = exempted(None)
    assert before == after
