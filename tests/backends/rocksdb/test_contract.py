"""The storage contract, on RocksDB."""

from __future__ import annotations

import pytest

from polaris_spark.testing.conformance import FileConformance
from tests.stores import StoreOn


class TestRocksDB(FileConformance):
    bad_uris = (
        ("rocksdb:///store?synchronous=off", "it must be full or normal"),
        ("rocksdb:///store?cache=1", "cache"),
        ("rocksdb:///store?synchronous=", "full or normal"),
    )

    @pytest.fixture
    def uri(self, store_on: StoreOn) -> str:
        return store_on("rocksdb")
