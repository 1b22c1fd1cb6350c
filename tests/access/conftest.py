"""Secrets that are hashed at a low cost."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from polaris_spark.access import credentials


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
