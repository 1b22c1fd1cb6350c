"""What Spark's workers know of Spark's archives is kept, and of other archives is not."""

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
    for name in ("pyspark.zip", "theirs.zip"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(f"in_{name.removesuffix('.zip')}/__init__.py", "")
        monkeypatch.syspath_prepend(str(tmp_path / name))
        importlib.import_module(f"in_{name.removesuffix('.zip')}")

    def noted(finder: zipimport.zipimporter) -> None:
        asked.append(Path(finder.archive).name)
        original(finder)

    monkeypatch.setattr(zipimport.zipimporter, "invalidate_caches", noted)
    importlib.invalidate_caches()
    assert {"pyspark.zip", "theirs.zip"} <= set(asked)
    asked.clear()
    archives.keep_known()
    importlib.invalidate_caches()
    assert "pyspark.zip" not in asked
    assert "theirs.zip" in asked
