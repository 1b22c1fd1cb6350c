"""The storage contract, on RocksDB."""

from __future__ import annotations

import pytest

from polaris_spark.testing.conformance import FileConformance
from tests.stores import StoreOn


class TestRocksDB(FileConformance):
    @pytest.fixture
    def uri(self, store_on: StoreOn) -> str:
        return store_on("rocksdb")
