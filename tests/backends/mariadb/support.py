"""Functions that inspect a store of MariaDB with a connection of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pymysql

from polaris_spark.backends.base import Backend, Table
from polaris_spark.store_uris import StoreURI
from polaris_spark.testing.session_cases import SessionAdmin
from polaris_spark.testing.waiting import PATIENCE_S, wait_until
from tests.servers.mariadb import ADMIN, GUEST, MariaDB

_STATEMENTS = {
    "read_objects": "SELECT id, part, value",
    "write_objects": "INSERT",
}
"""Text of the statement that waits for a lock, by operation."""


class Admin:
    """A connection of the user with all privileges, in autocommit."""

    def __init__(self, server: MariaDB, database: str | None = None) -> None:
        self._connection = pymysql.connect(
            **server.login, database=database, autocommit=True, read_timeout=PATIENCE_S
        )
        self._cursor = self._connection.cursor()

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""
        self._cursor.execute(statement)
        return list(self._cursor.fetchall())

    def sessions(self, uri: str, *, busy: bool = False) -> set[int]:
        """Return the ids of the server's sessions that use a store, or of those that are running a statement."""
        database = database_of(uri)
        return {
            id
            for id, name, text in self.run("SELECT id, db, info FROM information_schema.processlist")
            if name == database and (text or not busy) and id != self._connection.thread_id()
        }

    def blocked(self, uri: str, among: str) -> int:
        """Wait until a session of a store runs a statement that contains `among`, and return the session's id."""
        database, found = database_of(uri), list[int]()

        def look() -> bool:
            for id, name, text in self.run("SELECT id, db, info FROM information_schema.processlist"):
                if name == database and among in str(text):
                    found.append(int(id))
            return bool(found)

        wait_until(look, f"a statement with '{among}' is under way")
        return found[0]

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


class MariaDBAdmin(SessionAdmin):
    """The administrator of one store."""

    slow_statement = "max_statement_time"
    long_wait = "Lock wait|max_statement_time"

    def __init__(self, server: MariaDB, admin: Admin, uri: str) -> None:
        self.uri = uri
        self._server, self._admin = server, admin
        self._run = admin.run
        self._database = database_of(uri)

    def contents(self) -> dict[str, object] | None:
        if (self._database,) not in self._run("SHOW DATABASES"):
            return None
        return {
            name: (
                self._run(f"SHOW CREATE TABLE {self._database}.`{name}`"),
                self._run(f"SELECT * FROM {self._database}.`{name}`"),
            )
            for (name,) in self._run(f"SHOW TABLES FROM {self._database}")
        }

    def create_foreign_table(self, table: Table) -> None:
        self._run(f"CREATE DATABASE {self._database}")
        self._run(f"CREATE TABLE {self._database}.`{table}` (name text)")
        self._run(f"INSERT INTO {self._database}.`{table}` VALUES ('theirs')")

    def drop(self) -> None:
        self._run(f"DROP DATABASE {self._database}")

    def set_newer_format(self) -> None:
        self._run(f"ALTER TABLE {self._database}.objects COMMENT = 'polaris_spark store, format 2'")

    def sessions(self) -> set[int]:
        return self._admin.sessions(self.uri)

    def kill(self, session: int) -> None:
        self._run(f"KILL {session}")

    def blocked(self, operation: str) -> int:
        return self._admin.blocked(self.uri, _STATEMENTS[operation])

    def locked_tables(self) -> AbstractContextManager[object]:
        return held(self._server, self.uri, "LOCK TABLES `references` WRITE, objects WRITE")

    def locked_reference(self, name: str) -> AbstractContextManager[object]:
        return held(self._server, self.uri, f"SELECT 1 FROM `references` WHERE name = '{name}' FOR UPDATE")

    def occupy(self, backend: Backend, work: Callable[[], None]) -> None:
        backend._connections.read(lambda _: work())  # type: ignore[attr-defined]


def database_of(uri: str) -> str:
    return StoreURI.parse(uri).path


def place_of(uri: str) -> str:
    """Return a store's URI without scheme and credentials."""
    return uri.rpartition("@")[2]


def of_guest(uri: str, server: MariaDB) -> str:
    """Return a store's URI for a user who has only the permission to log in."""
    return uri.replace(f"{ADMIN}:{server.password}", f"{GUEST}:{server.guests_password}")


@contextmanager
def held(server: MariaDB, uri: str, *statements: str) -> Iterator[Admin]:
    """Run statements on the store in a transaction of another program, which stays open until the block ends."""
    with Admin(server, database_of(uri)) as other:
        # The list of processes may show a statement for a moment after its answer, so the last one looks like nothing.
        for statement in ("SET autocommit = 0", *statements, "DO 0"):
            other.run(statement)
        yield other
        other.run("ROLLBACK")
        other.run("UNLOCK TABLES")


@contextmanager
def globally(admin: Admin, variables: Mapping[str, str]) -> Iterator[None]:
    """Change settings of the whole server for sessions that begin during the block."""
    before = {name: admin.run(f"SELECT @@GLOBAL.{name}")[0][0] for name in variables}
    try:
        for name, value in variables.items():
            admin.run(f"SET GLOBAL {name} = {value}")
        yield
    finally:
        for name, value in before.items():
            admin.run(f"SET GLOBAL {name} = {value!r}")
