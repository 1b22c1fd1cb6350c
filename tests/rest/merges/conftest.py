"""Branches of one catalog, which are checked when a test is over."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import polaris_spark
from polaris_spark.clock import ManualClock
from polaris_spark.rest.session import Session
from tests.rest.appends import appendable
from tests.rest.client import Client
from tests.rest.merges.steps import Opened, make


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(int(time.time() * 1_000))


@pytest.fixture
def opened(tmp_path: Path, clock: ManualClock) -> Any:
    """Open a branch of a catalog, `main` by default; the branch is created if it does not exist."""
    sessions: dict[str, Session] = {}
    store, warehouse = f"sqlite://{tmp_path / 'store.db'}", str(tmp_path / "warehouse")

    def open_(branch: str = "main", source: str = "main") -> Client:
        if branch not in sessions:
            if branch != "main":
                make(open_(source), "create_branch", name=branch, if_not_exists=True)
            sessions[branch] = polaris_spark.connect(
                store=store, warehouse=warehouse, branch=branch, clock=clock
            )
        return Client(sessions[branch])

    yield open_
    problems = make(open_(), "fsck")
    for session in sessions.values():
        session.close()
    assert problems == []


@pytest.fixture
def main(opened: Opened) -> Client:
    client = opened()
    client.namespace("db")
    for name in ("t", "u", "w"):
        appendable(client, name)
    return client
