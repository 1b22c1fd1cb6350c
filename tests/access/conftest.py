"""A realm with content, of which a principal sees nothing but the catalog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.access.world import User, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    for namespace in ("db", "hidden"):
        made.namespace(namespace)
        for table in ("t", "u"):
            made.table(namespace, table)
    made.namespace("deep", "er")
    made.table("deep%1Fer", "t")
    made.view("db", "v")
    yield made
    made.close()


@pytest.fixture
def ann(world: World) -> User:
    world.grant(["CATALOG_LIST"])
    return world.open(world.credentials)
