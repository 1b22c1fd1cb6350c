"""The storage contract on Google's emulator."""

from __future__ import annotations

import pytest
from google.cloud.bigtable_admin_v2 import BigtableTableAdminClient
from google.cloud.bigtable_admin_v2.types import ColumnFamily
from google.cloud.bigtable_admin_v2.types import Table as TableOfAPI
from google.cloud.bigtable_v2.services.bigtable import BigtableClient
from google.cloud.bigtable_v2.types import Mutation

from polaris_spark.backends.base import Table
from polaris_spark.testing.admin_cases import AdminCases, StoreAdmin
from polaris_spark.testing.conformance import ServerConformance
from polaris_spark.testing.server import Server
from polaris_spark.testing.stores import TABLES
from tests.stores import ServerOf


class BigtableAdmin(StoreAdmin):
    unreadable = dict.fromkeys(TABLES, "does not contain a store")
    checks_first = False

    def __init__(self, admin: BigtableTableAdminClient, client: BigtableClient, references: str) -> None:
        self._admin = admin
        self._client = client
        self._instance = references.partition("/tables/")[0]
        self._prefix = references.removesuffix("references")

    def contents(self) -> dict[str, object]:
        return {
            name: (
                sorted(self._admin.get_table(name=name).column_families),
                [
                    (chunk.row_key, chunk.value)
                    for answer in self._client.read_rows({"table_name": name})
                    for chunk in answer.chunks
                ],
            )
            for name in self._names()
        }

    def create_foreign_table(self, table: Table) -> None:
        name = f"{self._prefix}{table}"
        theirs = TableOfAPI(column_families={"theirs": ColumnFamily()})
        self._admin.create_table(parent=self._instance, table_id=name.rpartition("/")[2], table=theirs)
        cell = Mutation.SetCell(family_name="theirs", column_qualifier=b"c", value=b"x")
        self._client.mutate_row(table_name=name, row_key=b"key", mutations=[Mutation(set_cell=cell)])

    def drop(self) -> None:
        for name in self._names():
            self._admin.delete_table(name=name)

    def set_newer_format(self) -> None:
        cell = Mutation.SetCell(
            family_name="f", column_qualifier=b"value", timestamp_micros=1_000, value=b"2"
        )
        self._client.mutate_row(
            table_name=f"{self._prefix}references", row_key=b"\x00store", mutations=[Mutation(set_cell=cell)]
        )

    def _names(self) -> list[str]:
        found = self._admin.list_tables(parent=self._instance)
        return [table.name for table in found if table.name.startswith(self._prefix)]


class TestBigtable(AdminCases, ServerConformance):
    bad_uris = (
        ("bigtable://project/instance?app_profile=x", "did you mean 'app-profile'"),
        ("bigtable://project", "instance.*bigtable://project/instance/prefix"),
        ("bigtable:///instance", "the project"),
        ("bigtable://project/instance/a/b", "the prefix"),
        (f"bigtable://project/instance/{'p' * 40}", "at most 39"),
        ("bigtable://project/instance/%20", "the prefix"),
        ("bigtable://project/inst%2e/x", "the instance"),
        ("bigtable://project/instance?app-profile=", "app-profile"),
        ("bigtable://user:correct-horse@project/instance", "credentials"),
        ("bigtable://user@project/instance", "credentials"),
        ("bigtable://project/instance?timeout=soon", "duration"),
        ("bigtable://project/instance?timeout=0s", "longer than 0"),
        ("bigtable://project/instance?channels=0", "1 to 99"),
        ("bigtable://project/instance?endpoint=localhost:8086", "http://host:port"),
        ("bigtable://project/instance?endpoint=http://u:correct-horse@host:1", "is or contains a secret"),
        ("bigtable://project/instance?endpoint=http://host:99999", "http://host:port"),
    )

    @pytest.fixture
    def server(self, server_of: ServerOf) -> Server:
        return server_of("bigtable")

    @pytest.fixture
    def store_admin(
        self, admin: BigtableTableAdminClient, client: BigtableClient, references: str
    ) -> StoreAdmin:
        return BigtableAdmin(admin, client, references)
