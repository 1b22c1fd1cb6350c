"""The storage contract on a real server."""

from __future__ import annotations

import pytest

from polaris_spark.backends.base import Table
from polaris_spark.store_uris import StoreURI
from polaris_spark.testing.admin_cases import AdminCases, StoreAdmin
from polaris_spark.testing.conformance import ServerConformance
from polaris_spark.testing.server import Server
from tests.servers.cassandra import Cassandra
from tests.stores import ServerOf


class CassandraAdmin(StoreAdmin):
    def __init__(self, cassandra: Cassandra, uri: str) -> None:
        self._run = cassandra.run
        self._keyspace = StoreURI.parse(uri).path

    def contents(self) -> dict[object, object] | None:
        named = f"WHERE keyspace_name = '{self._keyspace}'"
        if not self._run(f"SELECT keyspace_name FROM system_schema.keyspaces {named}"):
            return None
        return {
            name: (comment, self._run(f'SELECT * FROM {self._keyspace}."{name}"'))
            for name, comment in self._run(f"SELECT table_name, comment FROM system_schema.tables {named}")
        }

    def create_foreign_table(self, table: Table) -> None:
        self._run(
            f"CREATE KEYSPACE {self._keyspace} WITH replication = "
            f"{{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        )
        self._run(f'CREATE TABLE {self._keyspace}."{table}" (name text PRIMARY KEY)')
        self._run(f"INSERT INTO {self._keyspace}.\"{table}\" (name) VALUES ('theirs')")

    def drop(self) -> None:
        self._run(f"DROP KEYSPACE {self._keyspace}")

    def set_newer_format(self) -> None:
        mark = "polaris_spark store, format 2, SERIAL"
        self._run(f"ALTER TABLE {self._keyspace}.objects WITH comment = '{mark}'")


class TestCassandra(AdminCases, ServerConformance):
    bad_uris = (
        ("cassandra://host/store?replicaton=3", "did you mean 'replication'"),
        ("cassandra://host", "a keyspace that cannot be used"),
        ("cassandra://host/two/parts", "a keyspace that cannot be used"),
        ("cassandra://host/a-b", "a keyspace that cannot be used"),
        ("cassandra://host/system_auth", "a keyspace that cannot be used"),
        ("cassandra://host/" + "k" * 49, "a keyspace that cannot be used"),
        ("cassandra:///store", "not of the form host:port"),
        ("cassandra://host:port/store", "not of the form host:port"),
        ("cassandra://host:0/store", "not of the form host:port"),
        ("cassandra://a,,b/store", "not of the form host:port"),
        ("cassandra://host/store?serial=QUORUM", "SERIAL or LOCAL_SERIAL"),
        ("cassandra://host/store?replication=0", "number of replicas"),
        ("cassandra://host/store?replication=dc1:3,dc1:2", "number of replicas"),
        ("cassandra://host/store?replication=dc'1:3", "number of replicas"),
        ("cassandra://host/store?datacenter=a'b", "it must be the name of a datacenter"),
        ("cassandra://host/store?timeout=soon", "duration"),
        ("cassandra://host/store?timeout=0s", "longer than 0"),
        ("cassandra://host/store?concurrency=0", "1 to 9999"),
        ("cassandra://host/store?tls=yes", "verify-ca or verify-full"),
        ("cassandra://host/store?tls_ca=/a.pem", "without tls"),
        ("cassandra://user:correct-horse@host/store?timeout=soon", "duration"),
    )

    @pytest.fixture
    def server(self, server_of: ServerOf) -> Server:
        return server_of("cassandra")

    @pytest.fixture
    def store_admin(self, cassandra: Cassandra, uri: str) -> StoreAdmin:
        return CassandraAdmin(cassandra, uri)
