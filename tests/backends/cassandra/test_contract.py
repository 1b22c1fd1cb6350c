"""Cassandra against the storage contract."""

from __future__ import annotations

import pytest

from polaris_spark.testing.conformance import BackendConformance
from tests.servers import StoreOn


class TestCassandra(BackendConformance):
    @pytest.fixture
    def uri(self, store_on: StoreOn) -> str:
        return store_on("cassandra")
