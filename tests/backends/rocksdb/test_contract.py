"""The storage contract, on RocksDB."""

from __future__ import annotations

import pytest

from polaris_spark.testing.admin_cases import AdminCases, StoreAdmin
from polaris_spark.testing.conformance import FileConformance
from tests.backends.file_admins import FolderAdmin
from tests.stores import StoreOn


class TestRocksDB(AdminCases, FileConformance):
    bad_uris = (
        ("rocksdb:///store?synchronous=off", "it must be full or normal"),
        ("rocksdb:///store?cache=1", "cache"),
        ("rocksdb:///store?synchronous=", "full or normal"),
    )

    @pytest.fixture
    def uri(self, store_on: StoreOn) -> str:
        return store_on("rocksdb")

    @pytest.fixture
    def store_admin(self, uri: str) -> StoreAdmin:
        return FolderAdmin(uri, "POLARIS_SPARK")
