"""`polaris.expire-on-commit`: a commit that adds a snapshot drops the expired ones."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from pyiceberg.table import Table
from pyiceberg.types import IntegerType

from polaris_spark.catalog.metadata.rows import Snapshot
from polaris_spark.clock import ManualClock
from polaris_spark.jobs.registry import call
from polaris_spark.pyiceberg import PolarisCatalog
from polaris_spark.store.objects import ObjectStore
from tests.maintenance.conftest import Open
from tests.maintenance.histories import SCHEMA, expire, ids, needed, rows, there

DAY = 24 * 3_600_000


def made(opened: Open, appends: int = 6, **properties: str) -> tuple[PolarisCatalog, ManualClock, Table]:
    """A table with some snapshots, which are all expired if nothing else keeps them."""
    clock = ManualClock(int(time.time() * 1_000))
    lake = opened(clock=clock)
    lake.create_namespace("db")
    table = lake.create_table("db.t", SCHEMA, properties={"polaris.expire-on-commit": "true", **properties})
    for id in range(appends):
        table.append(rows(id))
    assert len(table.metadata.snapshots) == appends
    clock.advance(6 * DAY)
    return lake, clock, table


def test_a_commit_that_adds_a_snapshot_drops_the_expired_ones(opened: Open) -> None:
    lake, _, table = made(opened)
    table.append(rows(6))
    assert ids(table) == list(range(7))
    assert [one.snapshot_id for one in table.metadata.snapshots] == [table.metadata.current_snapshot_id]
    assert there(table) > needed(table)
    [row] = expire(lake)
    assert (row["snapshots"], row["manifest_lists"]) == (0, 6)
    assert there(table) == needed(table.refresh())


@pytest.mark.parametrize("swept", [False, True])
def test_a_transaction_that_drops_expired_snapshots_leaves_their_files_to_the_next_expiry(
    opened: Open, *, swept: bool
) -> None:
    lake, clock, table = made(opened)
    with lake.transaction() as transaction:
        transaction.load_table("db.t").append(rows(6))
        transaction.savepoint("here")
        before = there(table)
        transaction.load_table("db.t").append(rows(7))
        transaction.rollback_to("here")
        undone = there(table) - before
        if swept:
            clock.advance(10)
            call(lake._opened, "sweep", retention="3d", grace="3d")
            lake.create_namespace("other")
    assert len(table.refresh().metadata.snapshots) == 1
    assert there(table) > needed(table)
    [row] = expire(lake)
    assert (row["snapshots"], row["manifest_lists"]) == (0, 6)
    assert there(table) == needed(table.refresh()) | undone
    assert call(lake._opened, "fsck") == []


def test_a_commit_by_a_clock_far_ahead_drops_no_snapshot_until_the_operator_confirms_the_clock(
    opened: Open,
) -> None:
    lake, clock, _ = made(opened)
    lake._opened.close()
    clock.set_wall(clock.now_ms() + 400 * DAY)
    lake = opened(clock=clock)
    table = lake.load_table("db.t")
    table.append(rows(6))
    table.append(rows(7))
    assert len(table.metadata.snapshots) == 8
    lake._opened.connection.store_clock.refuse_deleting(clock_is_right=True)
    lake._opened.close()
    clock.advance(6 * DAY)
    table = opened(clock=clock).load_table("db.t")
    table.append(rows(8))
    assert len(table.metadata.snapshots) == 1


def test_as_many_are_kept_as_the_table_says(opened: Open) -> None:
    _, _, table = made(opened, **{"history.expire.min-snapshots-to-keep": "3"})
    table.append(rows(6))
    assert len(table.metadata.snapshots) == 3
    assert sorted(table.scan(snapshot_id=table.metadata.snapshots[0].snapshot_id).to_arrow()["id"].to_pylist()) == [
        0, 1, 2, 3, 4
    ]  # fmt: skip


def test_what_branches_and_tags_need_stays(opened: Open) -> None:
    lake, _, table = made(opened)
    snapshots = [one.snapshot_id for one in table.metadata.snapshots]
    table.manage_snapshots().create_tag(snapshots[1], "tag").create_branch(
        snapshots[3], "side", min_snapshots_to_keep=2
    ).commit()
    table.append(rows(6))
    current = table.metadata.current_snapshot_id
    assert [one.snapshot_id for one in table.metadata.snapshots] == [*snapshots[1:4], current]
    assert expire(lake)[0]["snapshots"] == 0
    assert there(table) == needed(table.refresh())


def test_a_branch_with_a_longer_retention_keeps_more_history_than_main(opened: Open) -> None:
    lake, _, table = made(opened)
    third = table.metadata.snapshots[2].snapshot_id
    table.manage_snapshots().create_branch(third, "side", max_snapshot_age_ms=30 * DAY).commit()
    table.append(rows(6))
    assert len(table.metadata.snapshots) == 7  # whatever is older than a month only may go for sure
    assert expire(lake)[0]["snapshots"] == 3
    assert len(table.refresh().metadata.snapshots) == 4
    assert there(table) == needed(table)


@pytest.mark.parametrize(
    "properties",
    [
        {"polaris.expire-on-commit": "false"},
        {"gc.enabled": "false"},
        {"history.expire.max-snapshot-age-ms": str(7 * DAY)},
        {"history.expire.min-snapshots-to-keep": "99"},
    ],
)
def test_otherwise_a_commit_drops_nothing(opened: Open, properties: dict[str, str]) -> None:
    _, _, table = made(opened, **properties)
    table.append(rows(6))
    assert len(table.metadata.snapshots) == 7


def test_a_commit_that_adds_no_snapshot_drops_none(opened: Open) -> None:
    _, _, table = made(opened)
    with table.update_schema() as change:
        change.add_column("more", IntegerType())
    assert len(table.metadata.snapshots) == 6


def test_snapshots_from_which_main_was_rolled_back_expire(opened: Open) -> None:
    _, _, table = made(opened)
    table.manage_snapshots().rollback_to_snapshot(table.metadata.snapshots[2].snapshot_id).commit()
    table.append(rows(6))
    assert ids(table) == [0, 1, 2, 6]
    left = {one.snapshot_id for one in table.metadata.snapshots}
    assert table.metadata.current_snapshot_id in left
    assert len(left) < 7


def add_snapshot(lake: PolarisCatalog, id: int, parent: int | None, time_ms: int) -> None:
    """Add a snapshot that names no real files."""
    snapshot: dict[str, Any] = {
        "snapshot-id": id,
        "sequence-number": id,
        "timestamp-ms": time_ms,
        "manifest-list": f"file:///nowhere/{id}.avro",
        "summary": {"operation": "append"},
        "schema-id": 0,
    }
    if parent is not None:
        snapshot["parent-snapshot-id"] = parent
    updates = [
        {"action": "add-snapshot", "snapshot": snapshot},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": id},
    ]
    body = json.dumps({"requirements": [], "updates": updates})
    status, _, text = lake._opened.request("POST", "v1/namespaces/db/tables/t", {"snapshots": "refs"}, body)
    assert status == 200, text


@pytest.mark.parametrize("expiring", [False, True])
def test_what_a_commit_reads_does_not_grow_with_the_number_of_snapshots(
    opened: Open, monkeypatch: pytest.MonkeyPatch, expiring: bool
) -> None:
    lake, clock, _ = made(opened, appends=0)
    lake._opened.set_catalog_properties({"metadata-files": "never"})
    read: list[int] = []
    get, get_many = ObjectStore.get, ObjectStore.get_many

    def counted(store: ObjectStore, id: int, cls: Any) -> Any:
        read.extend([id] * (cls is Snapshot))
        return get(store, id, cls)

    def counted_many(store: ObjectStore, wanted: Any, cls: Any) -> Any:
        read.extend(wanted if cls is Snapshot else [])
        return get_many(store, wanted, cls)

    monkeypatch.setattr(ObjectStore, "get", counted)
    monkeypatch.setattr(ObjectStore, "get_many", counted_many)
    counts = []
    for id in range(1, 501):
        read.clear()
        # 400 snapshots are kept by their age; where some expire, each commit finds one more.
        time_ms = clock.now_ms()
        add_snapshot(lake, id, id - 1 or None, time_ms)
        clock.advance(5 * DAY / 400 if expiring else 1)
        counts.append(len(read))
    [table] = [lake.load_table("db.t")]
    assert len(table.metadata.snapshots) == (401 if expiring else 500)
    assert max(counts) <= 4
