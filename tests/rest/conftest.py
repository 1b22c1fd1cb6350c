"""Catalogs to test the protocol on."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rest.client import Client, connect

Open = Callable[..., Client]


@pytest.fixture(params=["memory", "sqlite", "postgresql", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URI of a store that does not exist yet."""
    if request.param == "memory":
        return f"memory:{uuid.uuid4()}"
    if request.param in ("postgresql", "s3"):
        return str(request.getfixturevalue(f"{request.param}_uri"))
    return f"sqlite://{tmp_path / 'store.db'}"


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """A folder for tables."""
    return tmp_path / "warehouse"


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens sessions that are closed when the test is over."""
    clients: list[Client] = []

    def open(store: str, warehouse: Path | None, **properties: Any) -> Client:
        clients.append(connect(store, warehouse, **properties))
        return clients[-1]

    yield open
    for client in clients:
        client.session.close()


@pytest.fixture
def catalog(opened: Open, warehouse: Path) -> Client:
    """A catalog in memory with the empty namespace `db`, which writes metadata files."""
    client = opened(f"memory:{uuid.uuid4()}", warehouse)
    client.namespace("db")
    return client
