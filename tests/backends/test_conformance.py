"""The backends of this package against the storage contract."""

from __future__ import annotations

import pytest

from polaris_spark.testing.conformance import BackendConformance
from tests.servers import StoreOn


class TestMemory(BackendConformance):
    @pytest.fixture
    def uri(self, store_on: StoreOn) -> str:
        return store_on("memory")


class TestSQLite(BackendConformance):
    @pytest.fixture
    def uri(self, store_on: StoreOn) -> str:
        return store_on("sqlite")


class TestPostgreSQL(BackendConformance):
    @pytest.fixture
    def uri(self, store_on: StoreOn) -> str:
        return store_on("postgresql")


class TestObjectStore(BackendConformance):
    @pytest.fixture
    def uri(self, store_on: StoreOn) -> str:
        return store_on("s3")
