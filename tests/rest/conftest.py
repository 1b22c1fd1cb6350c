"""Catalogs to test the protocol on."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rest.client import Client, connect
from tests.stores import SHARED, StoreOn, in_turn

Open = Callable[..., Client]


@pytest.fixture(params=in_turn())
def store(request: pytest.FixtureRequest, store_on: StoreOn) -> str:
    """The URI of a store that does not exist yet."""
    return store_on(request.param)


@pytest.fixture(params=in_turn(SHARED, ordinary=("sqlite", "postgresql")))
def shared_store(request: pytest.FixtureRequest, store_on: StoreOn) -> str:
    """The URI of a store that does not exist yet and that several processes can open."""
    return store_on(request.param)


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
