"""The backends of this package against the storage contract."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from polaris_spark.testing.conformance import BackendConformance

_numbers = count()


class TestMemory(BackendConformance):
    @pytest.fixture
    def uri(self) -> str:
        return f"memory:conformance-{next(_numbers)}"


class TestSQLite(BackendConformance):
    @pytest.fixture
    def uri(self, tmp_path: Path) -> str:
        return f"sqlite://{tmp_path}/store.db"


class TestPostgreSQL(BackendConformance):
    @pytest.fixture
    def uri(self, postgresql_uri: str) -> str:
        return postgresql_uri


class TestObjectStore(BackendConformance):
    @pytest.fixture
    def uri(self, s3_uri: str) -> str:
        return s3_uri
