"""One catalog that several tests only read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from polaris_spark.clock import ManualClock
from tests.views.catalogs import SPEC, Catalog


@pytest.fixture(scope="session")
def clock() -> ManualClock:
    """The clock of `shop`."""
    return ManualClock()


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory, clock: ManualClock) -> Iterator[Catalog]:
    """A catalog with two namespaces, one inside the other and with a dot in its name; two tables, one of them with
    snapshots; and a view."""
    catalog = Catalog(
        tmp_path_factory.mktemp("views") / "shop.db", clock=clock, catalog="shop", principal="ann"
    )
    catalog.namespace("sales", owner="ann")
    clock.advance(1_000)
    catalog.namespace("sales", "2026.q1")
    clock.advance(1_000)
    catalog.table("sales", "orders", **{"partition-spec": SPEC}, properties={"colour": "red"})
    clock.advance(1_000)
    catalog.table("sales%1F2026.q1", "returns")
    clock.advance(1_000)
    for id in (11, 12):
        catalog.snapshot("sales", "orders", id)
        clock.advance(1_000)
    tag = {"action": "set-snapshot-ref", "ref-name": "old", "type": "tag", "snapshot-id": 11}
    catalog.update("sales", "orders", tag)
    clock.advance(1_000)
    catalog.view("sales", "today", "SELECT 1 AS n, current_date() AS day")
    yield catalog
    catalog.session.close()
