"""Views whose read outlasts the history, and lost objects. The errors distinguish the two cases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.backends.base import ObjectKey
from polaris_spark.clock import ManualClock
from polaris_spark.commits.change import Operation
from polaris_spark.commits.rows import Commit
from polaris_spark.errors import HistoryTrimmedError, MissingObjectError, RealmStateError
from polaris_spark.maintenance.periods import Policy
from polaris_spark.maintenance.sweep import sweep
from polaris_spark.objects import ONE_PART
from polaris_spark.spark.views import VIEWS
from polaris_spark.spark.views.stored import stored_object
from polaris_spark.store.cache import process_cache
from tests.views.catalogs import OF_ENTITIES, OF_HISTORY, Catalog, reader, rows

_DAY = 86_400_000
_LED_TO = [*OF_ENTITIES, *OF_HISTORY]
"""Views of what heads lead to."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def catalog(tmp_path: Path, clock: ManualClock) -> Iterator[Catalog]:
    catalog = Catalog(tmp_path / "c.db", clock=clock)
    catalog.namespace("db")
    catalog.table("db", "t")
    catalog.snapshot("db", "t", 11)
    catalog.view("db", "v", "SELECT 1")
    yield catalog
    catalog.session.close()


def swept(catalog: Catalog, clock: ManualClock) -> None:
    """Change the catalog, and trim and sweep its earlier history some days later."""
    clock.advance(40 * _DAY)
    for number in range(3):
        catalog.set_property("db", "t", "n", str(number))
        catalog.namespace(f"n{number}")
    clock.advance(4 * _DAY)
    references = catalog.session.catalog.references
    sweep(references, Policy(3 * _DAY, _DAY), operation=Operation(b"", "ann"))
    process_cache().clear()


def delete_head(catalog: Catalog) -> None:
    """Delete the newest commit."""
    objects = catalog.session.catalog.references.store
    objects.backend.delete_objects(objects.realm, [ObjectKey(catalog.head())])
    process_cache().clear()


def read(found: Any, partitions: Any) -> list[Any]:
    """Read the batches of partitions that were planned before."""
    return [batch for partition in partitions for batch in found.read(partition)]


@pytest.mark.parametrize("view", _LED_TO)
def test_a_view_that_is_read_for_longer_than_the_retention_raises_an_error(
    catalog: Catalog, clock: ManualClock, view: str
) -> None:
    found = reader(view, store=catalog.store, catalog="polaris")
    partitions = found.partitions()
    swept(catalog, clock)
    with pytest.raises(HistoryTrimmedError, match=r"trimmed and deleted during the read.*history-retention"):
        read(found, partitions)
    assert rows(view, store=catalog.store, catalog="polaris")


@pytest.mark.parametrize("view", _LED_TO)
def test_an_object_that_no_sweep_took_is_corruption(catalog: Catalog, clock: ManualClock, view: str) -> None:
    swept(catalog, clock)  # before the read began
    found = reader(view, store=catalog.store, catalog="polaris")
    partitions = found.partitions()
    delete_head(catalog)
    with pytest.raises(MissingObjectError, match="is missing from the store"):
        read(found, partitions)
    with pytest.raises(MissingObjectError):
        rows(view, store=catalog.store, catalog="polaris")


def test_a_view_whose_heads_are_swept_while_it_is_planned_is_planned_again(
    catalog: Catalog, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = VIEWS["tables"]
    plan = tables.plan

    def slow(request: Any) -> Any:
        """Delete the commit after the heads were read and before the commit is read."""
        monkeypatch.undo()
        plan(request)
        swept(catalog, clock)
        objects = request.store.objects(catalog.session.catalog.references.store.realm)
        objects.get(old, Commit)
        raise AssertionError("the old head is there")

    old = catalog.head()
    monkeypatch.setattr(tables, "plan", slow)
    [row] = rows("tables", store=catalog.store, catalog="polaris")
    assert row["name"] == "t"


def test_a_realm_that_is_purged_while_it_is_read_is_named(catalog: Catalog) -> None:
    found = reader("tables", store=catalog.store, catalog="polaris")
    partitions = found.partitions()
    objects = catalog.session.catalog.references.store
    objects.backend.drop_realm(objects.realm)
    process_cache().clear()
    with pytest.raises(RealmStateError, match="'default' was purged while it was being read"):
        read(found, partitions)


def test_an_object_that_is_deleted_between_its_parts_is_left_out(catalog: Catalog) -> None:
    objects = catalog.session.catalog.references.store
    backend, key = objects.backend, ObjectKey(catalog.head())
    whole = backend.read_objects(objects.realm, [key])[key]
    of_two = ONE_PART[:-1] + b"\x02" + whole[len(ONE_PART) :]
    broken = stored_object(backend, objects.realm, key, of_two, whole=True)
    assert broken is not None
    assert broken.error is not None
    backend.delete_objects(objects.realm, [key])
    assert stored_object(backend, objects.realm, key, of_two, whole=True) is None
