"""Transactions whose steps a test calls one by one, and the tables that they read and write."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest

from polaris_spark.errors import MergeConflictError
from polaris_spark.rest.session import Session
from tests.rest.appends import appendable
from tests.rest.client import Client

BOTH = pytest.mark.parametrize("isolation", ["serializable", "snapshot"])


def two_tables(client: Client) -> Client:
    """Create the tables `db.t` and `db.u`, both with the value 0, and return the client."""
    client.namespace("db")
    for name in ("t", "u"):
        appendable(client, name)
        write(client, name, 0)
    return client


def write(client: Client, name: str, value: int) -> None:
    """Set the value of a table."""
    client.set(name, **{"my.value": str(value)})


def read(client: Client, name: str) -> int:
    """The value of a table."""
    return int(client.load(name)["metadata"]["properties"]["my.value"])


class Tx:
    """A transaction whose steps a test calls one by one."""

    def __init__(self, client: Client, isolation: str) -> None:
        self._context: AbstractContextManager[Session] = client.session.transaction(isolation=isolation)
        self.client = Client(self._context.__enter__())

    def commit(self) -> None:
        self._context.__exit__(None, None, None)

    def roll_back(self) -> None:
        assert not self._context.__exit__(RuntimeError, RuntimeError("rolled back"), None)

    def refused(self, *parts: str) -> None:
        with pytest.raises(MergeConflictError) as raised:
            self.commit()
        for part in parts:
            assert part in str(raised.value)
