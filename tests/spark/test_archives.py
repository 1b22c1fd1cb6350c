"""What Spark's workers know of Spark's archives and of jars is kept, and of other archives is not."""

from __future__ import annotations

import importlib
import sys
import zipfile
import zipimport
from pathlib import Path

import pytest

from polaris_spark.spark import archives


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
    archives.keep_known()
    archives.keep_known()
    importlib.import_module("in_pyspark.later")
    importlib.invalidate_caches()
    assert not {"pyspark.zip", "iceberg.jar"} & set(asked)
    assert asked.count("theirs.zip") == 1
