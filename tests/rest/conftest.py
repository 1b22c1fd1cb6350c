"""Catalogs for tests of the protocol."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import polaris_spark
from polaris_spark.clock import ManualClock
from polaris_spark.jobs.registry import call
from polaris_spark.rest.session import Session
from tests.rest.client import Client, connect
from tests.rest.realms import Realm
from tests.stores import SHARED, StoreOn, in_turn

Open = Callable[..., Client]
OpenBranch = Callable[..., Client]


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


@pytest.fixture
def clock() -> ManualClock:
    """A clock that only the test advances."""
    return ManualClock(int(time.time() * 1_000))


@pytest.fixture
def open_branch(tmp_path: Path) -> Iterator[OpenBranch]:
    """Opens sessions of a branch of one catalog. At the end of the test, `fsck` must find no problem in the store."""
    store, warehouse = f"sqlite://{tmp_path / 'store.db'}", str(tmp_path / "warehouse")
    sessions: list[Session] = []

    def open_(branch: str = "main", **properties: Any) -> Client:
        sessions.append(polaris_spark.connect(store=store, warehouse=warehouse, branch=branch, **properties))
        return Client(sessions[-1])

    yield open_
    assert call(sessions[0], "fsck") == []
    for session in sessions:
        session.close()


@pytest.fixture
def realm(tmp_path: Path) -> Iterator[Realm]:
    """A realm of which tests open several catalogs."""
    made = Realm(tmp_path)
    yield made
    for session in made.sessions:
        session.close()
