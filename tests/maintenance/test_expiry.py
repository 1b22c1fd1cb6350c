"""Which snapshots, branches and tags expire, and which retention setting applies."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pyiceberg.types import IntegerType

from polaris_spark.catalog.tables.snapshot_expiry import RefFacts, Retention, SnapshotFacts, retention
from polaris_spark.clock import ManualClock
from polaris_spark.errors import BadRequestError, InputError
from polaris_spark.maintenance.deletion_records import DELETIONS, DeletedFiles, deletions_reference
from polaris_spark.maintenance.expiry.retention import ExpiryDecision, decide
from polaris_spark.pyiceberg import PolarisCatalog
from tests.maintenance.conftest import Open
from tests.maintenance.histories import SCHEMA, expire, make, needed, rows, there

DAY = 24 * 3_600_000
NOW = 1_000 * DAY
KEEP_NOTHING = Retention(NOW, 1, 2**63 - 1)


def chain(*days: float, parent: int | None = None, first: int = 1) -> list[SnapshotFacts]:
    """Return snapshots of these ages in days. Each is the child of the one before. Ids begin at `first`."""
    found = []
    for id, age in enumerate(days, first):
        found.append(SnapshotFacts(id, int(NOW - age * DAY), parent))
        parent = id
    return found


def branch(id: int, **settings: int) -> RefFacts:
    return RefFacts(id, "branch", **settings)


def tag(id: int, **settings: int) -> RefFacts:
    return RefFacts(id, "tag", **settings)


def test_of_a_branch_the_young_and_the_newest_are_kept() -> None:
    snapshots = chain(9, 7, 4, 2, 1)
    refs = {"main": branch(5)}
    by_age = decide(snapshots, refs, Retention(NOW - 5 * DAY, 1, DAY), NOW)
    assert by_age.snapshots == (1, 2)
    assert decide(snapshots, refs, Retention(NOW, 2, DAY), NOW).snapshots == (1, 2, 3)
    assert decide(snapshots, refs, Retention(NOW, 9, DAY), NOW) == ExpiryDecision()


def test_a_branch_can_have_its_own_retention() -> None:
    snapshots = chain(9, 7, 4, 2, 1)
    own = {"main": branch(5, min_snapshots_to_keep=3, max_snapshot_age_ms=1)}
    assert decide(snapshots, own, Retention(0, 1, DAY), NOW).snapshots == (1, 2)
    older = {"main": branch(5, max_snapshot_age_ms=8 * DAY)}
    assert decide(snapshots, older, KEEP_NOTHING, NOW).snapshots == (1,)


def test_the_first_ancestor_that_is_too_old_ends_a_branch_whatever_the_clocks_of_those_before_said() -> None:
    snapshots = chain(1, 9, 2)
    assert decide(snapshots, {"main": branch(3)}, Retention(NOW - 5 * DAY, 1, DAY), NOW).snapshots == (1, 2)


def test_old_branches_and_tags_go_but_never_main() -> None:
    snapshots = [*chain(9, 8), *chain(7, parent=1, first=3)]
    refs = {"main": branch(2), "side": branch(3), "tag": tag(1)}
    found = decide(snapshots, refs, Retention(NOW, 1, 5 * DAY), NOW)
    assert found == ExpiryDecision((1, 3), ("side", "tag"))
    own = {**refs, "side": branch(3, max_ref_age_ms=8 * DAY), "tag": tag(1, max_ref_age_ms=10 * DAY)}
    assert decide(snapshots, own, Retention(NOW, 1, 5 * DAY), NOW) == ExpiryDecision()


def test_a_tag_keeps_its_snapshot_and_no_other() -> None:
    found = decide(chain(9, 8, 7, 6), {"main": branch(4), "tag": tag(2)}, KEEP_NOTHING, NOW)
    assert found.snapshots == (1, 3)


def test_snapshots_outside_of_branches_are_kept_by_age_only() -> None:
    snapshots = [*chain(9, 8), *chain(7, 2, parent=1, first=3)]
    found = decide(snapshots, {"main": branch(2)}, Retention(NOW - 5 * DAY, 5, DAY), NOW)
    assert found.snapshots == (3,)


def test_a_branch_without_its_snapshot_is_removed() -> None:
    assert decide(chain(1), {"main": branch(1), "lost": branch(7)}, KEEP_NOTHING, NOW).refs == ("lost",)


def test_ancestors_in_a_circle_end_somewhere() -> None:
    circle = [SnapshotFacts(1, NOW, 2), SnapshotFacts(2, NOW, 1)]
    assert decide(circle, {"main": branch(2)}, Retention(0, 1, DAY), NOW) == ExpiryDecision()


def test_the_setting_at_the_nearest_level_applies() -> None:
    age, least = "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"
    levels: list[dict[str, str]] = [{least: "7"}, {age: "1000"}, {age: "2000", least: "3"}]
    assert retention(levels, NOW) == Retention(NOW - 1_000, 7, 2**63 - 1)
    assert retention([], NOW) == Retention(NOW - 5 * DAY, 1, 2**63 - 1)
    assert retention(levels, NOW, older_than=5, retain_last=2) == Retention(5, 2, 2**63 - 1)
    with pytest.raises(BadRequestError, match="'soon'; it must be a whole number"):
        retention([{age: "soon"}], NOW)


def clocked(opened: Open, **properties: Any) -> tuple[PolarisCatalog, ManualClock]:
    """A catalog and its clock. In the namespace `db`, snapshots expire after 20 days; the namespace `db.below` has no
    setting."""
    clock = ManualClock(int(time.time() * 1_000))
    lake = opened(clock=clock, **properties)
    lake.create_namespace("db", {"history.expire.max-snapshot-age-ms": str(20 * DAY)})
    lake.create_namespace("db.below")
    return lake, clock


def test_retention_comes_from_the_table_then_from_its_namespaces_then_from_the_catalog(
    opened: Open,
) -> None:
    lake, clock = clocked(opened, **{"history.expire.min-snapshots-to-keep": "3"})
    lake.create_namespace("other")
    tables = {
        name: make(lake, name, **properties)
        for name, properties in {
            "db.t": {},
            "db.below.t": {},
            "db.own": {"history.expire.max-snapshot-age-ms": "1000"},
            "other.t": {},
            "other.one": {"history.expire.min-snapshots-to-keep": "1"},
        }.items()
    }
    whole = len(tables["db.t"].metadata.snapshots)
    clock.advance(10 * DAY)
    expire(lake)
    left = {name: len(table.refresh().metadata.snapshots) for name, table in tables.items()}
    assert left == {"db.t": whole, "db.below.t": whole, "db.own": 3, "other.t": 3, "other.one": 1}
    clock.advance(20 * DAY)
    expire(lake, namespace="db.below")
    assert [len(tables[name].refresh().metadata.snapshots) for name in ("db.t", "db.below.t")] == [whole, 3]


def test_tables_with_disabled_garbage_collection_are_skipped_and_reported(lake: PolarisCatalog) -> None:
    lake.create_namespace("kept", {"gc.enabled": "false"})
    tables = [make(lake, "db.t", **{"gc.enabled": "false"}), make(lake, "kept.t")]
    before = [there(table) for table in tables]
    told = expire(lake, older_than="0 s")
    assert [(row["table"], row["note"]) for row in told] == [
        (name, "gc.enabled is false") for name in ("db.t", "kept.t")
    ]
    assert [there(table) for table in tables] == before


def test_expire_accepts_the_names_that_it_prints(lake: PolarisCatalog) -> None:
    names = {"db.`b.c`": ("db", "b.c"), "db.b.c": ("db", "b", "c")}
    lake.create_namespace(("db", "b"))
    for name in names.values():
        table = lake.create_table(name, SCHEMA)
        table.append(rows(1))
        table.overwrite(rows(2))
    found = [row["table"] for row in expire(lake, older_than="0 s", dry_run=True)]
    assert sorted(found) == sorted(names)
    for name in names:
        [row] = expire(lake, table=name, older_than="0 s")
        assert (row["table"], row["data_files"]) == (name, 1)
    head = lake._opened.catalog.references.read(deletions_reference(lake._opened.catalog.row))
    batches = [head.store.get(entry.pointer, DeletedFiles) for _, entry in head.index(DELETIONS).range()]
    assert {one.table for one in batches} == set(names)


def test_files_of_what_was_removed_wait_while_garbage_is_not_to_be_collected(opened: Open) -> None:
    lake, clock = clocked(opened)
    table = make(lake, "db.t", **{"polaris.expire-on-commit": "true"})
    clock.advance(30 * DAY)
    table.append(rows(300))
    table.transaction().set_properties({"gc.enabled": "false"}).commit_transaction()
    before = there(table)
    assert "files are left: gc.enabled is false" in expire(lake)[0]["note"]
    assert there(table) == before
    table.refresh().transaction().remove_properties("gc.enabled").commit_transaction()
    expire(lake)
    assert there(table) == needed(table.refresh()) < before


def test_schemas_and_specs_that_no_snapshot_needs_go_if_asked_for(lake: PolarisCatalog) -> None:
    table = make(lake, "db.t")
    with table.update_spec() as update:
        update.add_identity("text")
    with table.update_schema() as change:
        change.add_column("more", IntegerType())
    table.append(rows(300))
    [row] = expire(lake, older_than="0 s")
    assert row["schemas_and_specs"] == 0
    table.refresh()
    assert len(table.specs()) == 2
    [row] = expire(lake, older_than="0 s", clean_expired_metadata=True)
    assert row["schemas_and_specs"] == 1  # the old spec is that of older manifests
    assert list(table.refresh().schemas()) == [1]
    table.overwrite(rows(1))
    expire(lake, older_than="0 s", clean_expired_metadata=True)
    assert list(table.refresh().specs()) == [1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"retain_last": 0}, "retain_last is 0"),
        ({"max_files": 0}, "max_files is 0"),
        ({"older_than": "5"}, "older_than is '5'"),
        ({"table": "t"}, "write it like db.t"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    lake: PolarisCatalog, arguments: dict[str, Any], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        expire(lake, **arguments)
