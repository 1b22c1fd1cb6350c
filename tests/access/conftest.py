"""A realm with content, of which a principal sees nothing but the catalog, and a low cost of the hashes of secrets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from polaris_spark.access import credentials
from tests.access.world import User, World


@pytest.fixture(scope="module", autouse=True)
def _quick_hashes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hash secrets by the same function at a low cost. Each hash would otherwise take 50 ms.

    `test_principals.py`, which tests the cost, and the servers of `tests/server` have the cost of the product.
    """
    if request.path.name == "test_principals.py":
        yield
        return
    cost = 2**4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(credentials, "_COST", cost)
        patch.setattr(credentials, "_NOBODYS", msgspec.structs.replace(credentials._NOBODYS, cost=cost))
        yield


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
