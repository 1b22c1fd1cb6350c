"""Fixtures of the tests of the PostgreSQL backend: each test has its own store on the server of the test session."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import psycopg
import pytest

from tests.servers.postgresql import GUARDED, PostgreSQL

_numbers = count(1)


@pytest.fixture
def admin(postgresql: PostgreSQL) -> Iterator[psycopg.Connection[Any]]:
    """A connection of the server's owner, in autocommit."""
    with psycopg.connect(postgresql.database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def user(admin: psycopg.Connection[Any]) -> str:
    """A new user whose only permission is to log in, with the password `correct horse`."""
    name = f"user_{next(_numbers)}"
    if admin.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (GUARDED,)).fetchone() is None:
        admin.execute(f"CREATE ROLE {GUARDED}")
    admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'correct horse' IN ROLE {GUARDED}")
    return name
