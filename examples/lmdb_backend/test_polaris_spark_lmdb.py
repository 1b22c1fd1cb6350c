"""The storage contract, on LMDB."""

from __future__ import annotations

from pathlib import Path

import pytest

from polaris_spark.testing.conformance import FileConformance


class TestLMDB(FileConformance):
    bad_uris = (("lmdb:///store?map_size=1", "no option 'map_size'"), ("lmdb://host/store", "has no host"))

    @pytest.fixture
    def uri(self, tmp_path: Path) -> str:
        return f"lmdb://{tmp_path}/store"
