"""Databases of one PostgreSQL server: each side has a new empty database in each turn."""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

from benchmarks.findings import Durability
from tests.servers.postgresql import PostgreSQL

_numbers = count(1)


class Database(NamedTuple):
    """An empty database."""

    name: str
    port: int

    @property
    def uri(self) -> str:
        """URI for psycopg and for polaris_spark stores."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{self.name}"

    @property
    def sqlalchemy(self) -> str:
        """URI for pyiceberg's SqlCatalog."""
        return self.uri.replace("postgresql:", "postgresql+psycopg:", 1)

    @property
    def jdbc(self) -> str:
        """URL for Iceberg's JdbcCatalog."""
        return f"jdbc:postgresql://127.0.0.1:{self.port}/{self.name}?user=postgres"


def new_database(server: PostgreSQL) -> Database:
    """Create an empty database."""
    import psycopg

    name = f"bench{next(_numbers)}"
    with psycopg.connect(server.database, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")  # the name is a word and a number
    return Database(name, server.port)


def durability(server: PostgreSQL) -> Durability:
    """Return the server's durability settings, queried from the server."""
    import psycopg

    names = ("fsync", "synchronous_commit", "full_page_writes")
    with psycopg.connect(server.database) as connection:
        found = {name: connection.execute(f"SHOW {name}").fetchone() for name in names}
    settings = ", ".join(f"{name}={row[0]}" for name, row in found.items() if row)
    return Durability("all on PostgreSQL", f"{settings} (the server's defaults)")
