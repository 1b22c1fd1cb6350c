"""The storage contract on the databases that need no server."""

from __future__ import annotations

import pytest

from polaris_spark.testing.conformance import BackendConformance, FileConformance
from tests.stores import StoreOn


class TestMemory(BackendConformance):
    @pytest.fixture
    def uri(self, store_on: StoreOn) -> str:
        return store_on("memory")


class TestSQLite(FileConformance):
    @pytest.fixture
    def uri(self, store_on: StoreOn) -> str:
        return store_on("sqlite")


class TestDirectory(FileConformance):
    @pytest.fixture
    def uri(self, store_on: StoreOn) -> str:
        return store_on("file")
