"""The cost of a commit and of a load does not grow with the number of snapshots."""

from __future__ import annotations

import pytest

from polaris_spark.catalog.metadata.rows import LogItems, Snapshot, Statistics
from polaris_spark.index import Branch, Leaf
from polaris_spark.objects import decode
from tests.catalog.metadata.tables import Catalog, point

FEW, MANY = 10, 1000


@pytest.fixture(scope="module")
def costs() -> dict[int, dict[str, int]]:
    """Return the highest number of rows that one commit and the following load without snapshots read and wrote, near
    both sizes."""
    found = {FEW: {"read": 0, "written": 0, "load": 0}, MANY: {"read": 0, "written": 0, "load": 0}}
    catalog = Catalog().create()
    objects = catalog.objects
    for number in range(1, MANY + 1):
        size = FEW if number <= FEW + 20 else MANY
        measured = number <= FEW + 20 or number > MANY - 200
        read, written = objects.read, objects.written
        catalog.append((number * 0x9E3779B97F4A7C15) % 2**63)
        cost = {"read": objects.read - read, "written": objects.written - written}
        if measured:
            read = objects.read
            catalog.text("refs")
            cost["load"] = objects.read - read
            found[size] = {name: max(found[size][name], cost[name]) for name in cost}
    return found


def test_rows_written_by_an_append_do_not_grow(costs: dict[int, dict[str, int]]) -> None:
    assert costs[MANY]["written"] <= costs[FEW]["written"] + 10


def test_rows_read_by_an_append_do_not_grow(costs: dict[int, dict[str, int]]) -> None:
    assert costs[MANY]["read"] <= costs[FEW]["read"] + 20


def test_rows_read_by_a_lean_load_do_not_grow(costs: dict[int, dict[str, int]]) -> None:
    assert costs[MANY]["load"] <= costs[FEW]["load"] + 8


def thousand() -> Catalog:
    catalog = Catalog().create()
    for number in range(1, MANY + 1):
        catalog.append(number * 7919)
    return catalog


def test_a_thousand_snapshots_are_removed_added_and_listed() -> None:
    catalog = thousand()
    ids = [number * 7919 for number in range(1, MANY + 1)]
    assert [s["snapshot-id"] for s in catalog.json()["snapshots"]] == ids
    assert [e["snapshot-id"] for e in catalog.json()["snapshot-log"]] == ids
    catalog.commit({"action": "remove-snapshots", "snapshot-ids": ids[:900]})
    found = catalog.json()
    assert [s["snapshot-id"] for s in found["snapshots"]] == ids[900:]
    assert [e["snapshot-id"] for e in found["snapshot-log"]] == ids[900:]


def test_the_row_of_a_long_lived_table_stays_small() -> None:
    catalog = thousand()
    assert len(catalog.objects.rows[catalog.id]) < 5000


def test_every_pointer_of_a_table_is_in_its_header() -> None:
    catalog = thousand()
    catalog.commit(point("v1", 7919, "tag"))
    kinds = set()
    for id in decode(catalog.objects.rows[catalog.id], "table").header.strong:
        kinds.add(type(decode(catalog.objects.rows[id], str(id)).value))
    assert {Snapshot, LogItems} <= kinds
    assert kinds & {Leaf, Branch}
    assert Statistics not in kinds
