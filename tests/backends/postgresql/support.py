"""Functions that inspect a store of PostgreSQL with a connection of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg

from polaris_spark.backends.base import Backend, Table
from polaris_spark.store_uris import StoreURI
from polaris_spark.testing.session_cases import SessionAdmin
from polaris_spark.testing.stores import with_options
from polaris_spark.testing.waiting import wait_until


class PostgreSQLAdmin(SessionAdmin):
    """The administrator of one store, with a connection in autocommit."""

    slow_statement = "57014"
    long_wait = "other transactions"

    def __init__(self, admin: psycopg.Connection[Any], uri: str) -> None:
        self._admin = admin
        self._schema = schema_of(uri)
        self.uri = with_options(uri, f"application_name={self._schema}")

    def contents(self) -> dict[str, object] | None:
        if not self._rows("SELECT 1 FROM pg_namespace WHERE nspname = %s", self._schema):
            return None
        columns = (
            "SELECT column_name, data_type FROM information_schema.columns"
            " WHERE (table_schema, table_name) = (%s, %s) ORDER BY ordinal_position"
        )
        return {
            name: (
                self._rows(columns, self._schema, name),
                self._rows(f'SELECT * FROM {self._schema}."{name}"'),
            )
            for (name,) in self._rows("SELECT tablename FROM pg_tables WHERE schemaname = %s", self._schema)
        }

    def create_foreign_table(self, table: Table) -> None:
        self._admin.execute(f"CREATE SCHEMA {self._schema}")
        self._admin.execute(f'CREATE TABLE {self._schema}."{table}" (name text)')
        self._admin.execute(f"INSERT INTO {self._schema}.\"{table}\" VALUES ('theirs')")

    def drop(self) -> None:
        self._admin.execute(f"DROP SCHEMA {self._schema} CASCADE")

    def set_newer_format(self) -> None:
        self._admin.execute(f"COMMENT ON TABLE {self._schema}.objects IS 'polaris_spark store, format 2'")

    def sessions(self) -> set[int]:
        found = self._rows("SELECT pid FROM pg_stat_activity WHERE application_name = %s", self._schema)
        return {pid for (pid,) in found}

    def kill(self, session: int) -> None:
        self._admin.execute("SELECT pg_terminate_backend(%s)", (session,))

    def blocked(self, operation: str) -> int:
        return blocked(self._admin, self.uri)

    def locked_tables(self) -> AbstractContextManager[object]:
        return held(self.uri, 'LOCK TABLE objects, "references" IN ACCESS EXCLUSIVE MODE')

    def locked_reference(self, name: str) -> AbstractContextManager[object]:
        return held(self.uri, 'SELECT FROM "references" WHERE name = %s FOR UPDATE', name.encode())

    def occupy(self, backend: Backend, work: Callable[[], None]) -> None:
        backend._connections.read(lambda _: work())  # type: ignore[attr-defined]

    def _rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        return self._admin.execute(query, parameters or None).fetchall()


def schema_of(uri: str) -> str:
    return StoreURI.parse(uri).options["schema"]


def of_user(uri: str, user: str) -> str:
    return uri.replace("postgres@", f"{user}@")


@contextmanager
def held(uri: str, statement: str, *parameters: object) -> Iterator[None]:
    """Run a statement on the store in a transaction of another program, which stays open until the block ends."""
    with psycopg.connect(uri.partition("?")[0]) as connection:
        connection.execute(f"SET search_path = {schema_of(uri)}")
        connection.execute(statement, parameters)
        yield
        connection.rollback()


def blocked(admin: psycopg.Connection[Any], uri: str) -> int:
    """Wait until a session of the store waits for a lock, and return its process id."""
    query = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    found: list[int] = []

    def look() -> bool:
        found.extend(pid for (pid,) in admin.execute(query, (f"%{schema_of(uri)}%",)))
        return bool(found)

    wait_until(look, "a session waits for a lock")
    return found[0]
