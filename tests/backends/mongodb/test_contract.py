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
    bad_uris = (
        ("mongodb://host/db?replicaset=rs", "did you mean 'replicaSet'"),
        ("mongodb://host/db?tlsCAfile=a", "did you mean 'tlsCAFile'"),
        ("mongodb://host/db?w=1", "wait for a majority"),
        ("mongodb://host/db?readPreference=nearest", "a secondary may return"),
        ("mongodb://host/db?retryWrites=true", "a repeated swap"),
        ("mongodb://host", "names no database"),
        ("mongodb://host/admin", "cannot use a MongoDB database named"),
        ("mongodb://host/a.b", "cannot use a MongoDB database named"),
        ("mongodb://host/a%2Fb", "cannot use a MongoDB database named"),
        ("mongodb://host/db%00", "NUL"),
        (f"mongodb://host/{'d' * 64}", "cannot use a MongoDB database named"),
        ("mongodb:///db", "not of the form host:port"),
        ("mongodb://host:port/db", "not of the form host:port"),
        ("mongodb://host:0/db", "not of the form host:port"),
        ("mongodb://a,,b/db", "not of the form host:port"),
        ("mongodb://host/db?timeout=soon", "duration"),
        ("mongodb://host/db?timeout=0s", "longer than 0"),
        ("mongodb://host/db?pool=0", "1 to 1000"),
        ("mongodb://host/db?pool=many", "1 to 1000"),
        ("mongodb://user:correct-horse@host/db?timeout=soon", "duration"),
    )

    @pytest.fixture
    def server(self, server_of: ServerOf) -> Server:
        return server_of("mongodb")

    @pytest.fixture
    def store_admin(self, database: Database[dict[str, Any]]) -> StoreAdmin:
        return MongoDBAdmin(database)
