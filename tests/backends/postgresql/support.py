"""Functions that inspect a store of PostgreSQL with a connection of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from polaris_spark.config import StoreURI
from polaris_spark.testing.waiting import wait_until


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


def sessions(admin: psycopg.Connection[Any]) -> int:
    found = admin.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'bounded'"
    ).fetchone()
    assert found is not None
    return int(found[0])
