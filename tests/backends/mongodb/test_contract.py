"""The MongoDB backend against the storage contract."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo.database import Database

from polaris_spark.backends.base import Table
from polaris_spark.testing.admin_cases import AdminCases, StoreAdmin
from polaris_spark.testing.conformance import ServerConformance
from polaris_spark.testing.server import Server
from polaris_spark.testing.stores import TABLES
from tests.stores import ServerOf


class MongoDBAdmin(StoreAdmin):
    unreadable = dict.fromkeys(TABLES, "does not contain a store")

    def __init__(self, database: Database[dict[str, Any]]) -> None:
        self._database = database

    def contents(self) -> dict[str, list[dict[str, Any]]]:
        return {name: list(self._database[name].find()) for name in self._database.list_collection_names()}

    def create_foreign_table(self, table: Table) -> None:
        self._database[table].insert_one({"_id": 1})

    def set_newer_format(self) -> None:
        changed = self._database["references"].update_one(
            {"_id": {"realm": "", "name": ""}}, {"$set": {"format": 2}}
        )
        assert changed.modified_count == 1


class TestMongoDB(AdminCases, ServerConformance):
    @pytest.fixture
    def server(self, server_of: ServerOf) -> Server:
        return server_of("mongodb")

    @pytest.fixture
    def store_admin(self, database: Database[dict[str, Any]]) -> StoreAdmin:
        return MongoDBAdmin(database)
