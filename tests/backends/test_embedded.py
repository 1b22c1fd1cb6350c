"""The storage contract on the databases that need no server."""

from __future__ import annotations

import pytest

from polaris_spark.testing.admin_cases import AdminCases, StoreAdmin
from polaris_spark.testing.conformance import BackendConformance, FileConformance
from tests.backends.file_admins import FolderAdmin, SQLiteAdmin
from tests.stores import StoreOn


class TestMemory(BackendConformance):
    bad_uris = (("memory:?synchronous=full", "no option 'synchronous'"),)

    @pytest.fixture
    def uri(self, store_on: StoreOn) -> str:
        return store_on("memory")


class TestSQLite(AdminCases, FileConformance):
    bad_uris = (
        ("sqlite:///store.db?synchronous=maybe", "full, normal or off"),
        ("sqlite:///store.db?synchronus=full", "did you mean 'synchronous'"),
        ("sqlite:///store.db?timeout=5", "unit"),
    )

    @pytest.fixture
    def uri(self, store_on: StoreOn) -> str:
        return store_on("sqlite")

    @pytest.fixture
    def store_admin(self, uri: str) -> StoreAdmin:
        return SQLiteAdmin(uri)


class TestDirectory(AdminCases, FileConformance):
    bad_uris = (
        ("file://host/path", "has no host"),
        ("file:///", "must have a path"),
        ("file:///path?region=x", "no option 'region'"),
        ("file:///path?timeout=3", "with its unit"),
    )

    @pytest.fixture
    def uri(self, store_on: StoreOn) -> str:
        return store_on("file")

    @pytest.fixture
    def store_admin(self, uri: str) -> StoreAdmin:
        return FolderAdmin(uri, "format")
