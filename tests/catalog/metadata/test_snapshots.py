"""Snapshots, branches, tags, the snapshot log, row lineage and statistics."""

from __future__ import annotations

import pytest

from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.table_updates import apply_all
from polaris_spark.errors import BadRequestError, CommitFailedError
from tests.catalog.metadata.memory import MemoryObjects
from tests.catalog.metadata.tables import LOCATION, NOW, Catalog, Json, add, point, snapshot


def remove(*ids: int) -> Json:
    return {"action": "remove-snapshots", "snapshot-ids": list(ids)}


def history(catalog: Catalog) -> list[int]:
    return [entry["snapshot-id"] for entry in catalog.json()["snapshot-log"]]


def appended(*ids: int, version: int = 2) -> Catalog:
    catalog = Catalog().create(version=version)
    for id in ids:
        catalog.append(id)
    return catalog


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_append_moves_main_and_is_logged_at_the_snapshots_time(version: int) -> None:
    catalog = appended(11, version=version)
    found = catalog.json()
    assert (found["current-snapshot-id"], len(found["snapshots"])) == (11, 1)
    assert found["refs"] == {"main": {"snapshot-id": 11, "type": "branch"}}
    assert found["snapshot-log"] == [{"timestamp-ms": NOW + 1000, "snapshot-id": 11}]
    assert found.get("last-sequence-number", 0) == (0 if version == 1 else 1)


def test_snapshots_keep_their_order_and_their_unknown_fields() -> None:
    catalog = Catalog().create()
    for number, id in enumerate((-5, 2**62, 7, -(2**63)), start=1):
        catalog.append(id, later={"number": number})
    found = catalog.json()["snapshots"]
    assert [s["snapshot-id"] for s in found] == [-5, 2**62, 7, -(2**63)]
    assert [s["later"]["number"] for s in found] == [1, 2, 3, 4]


def test_the_summary_in_the_log_has_the_added_files_and_records() -> None:
    draft = Catalog().create().append(11)
    assert draft.summary() == {
        "snapshot-id": "11",
        "operation": "append",
        "added-data-files": "1",
        "added-records": "10",
    }


def test_a_snapshot_id_is_used_once() -> None:
    with pytest.raises(BadRequestError, match="Snapshot already exists for id: 11"):
        appended(11).commit(add(snapshot(11, 2, parent=11)))


def test_a_snapshot_made_on_an_older_state_is_a_failed_commit() -> None:
    message = "Validation failed, please retry: Cannot add snapshot with sequence number 1 older than last"
    with pytest.raises(CommitFailedError, match=message):
        appended(11).commit(add(snapshot(12, 1, parent=11)))


def test_a_snapshot_without_parent_may_have_the_last_sequence_number_again() -> None:
    catalog = appended(11)
    catalog.commit(add(snapshot(12, 1)))
    assert catalog.json()["last-sequence-number"] == 1


def test_a_snapshot_without_parent_cannot_turn_the_sequence_number_back() -> None:
    with pytest.raises(BadRequestError, match="sequence number 2 greater than last sequence number 1"):
        appended(11, 12).commit(add(snapshot(13, 1)))


def test_a_version_1_table_has_no_sequence_numbers() -> None:
    with pytest.raises(BadRequestError, match="Sequence number must be 0 in v1: 3"):
        Catalog().create(version=1).commit(add(snapshot(11, 3)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"snapshot-id": None}, "Cannot parse to a long value: snapshot-id"),
        ({"timestamp-ms": "now"}, "timestamp-ms"),
        ({"summary": {"a": 1}}, "Cannot parse to a string value: a"),
        ({"manifest-list": 4}, "manifest-list"),
        ({"first-row-id": -1, "added-rows": 1}, "first-row-id .cannot be negative.: -1"),
        ({"first-row-id": 1, "added-rows": -1}, "added-rows .cannot be negative.: -1"),
        ({"first-row-id": 1}, "required when first-row-id is set"),
        ({"snapshot-id": 2**63}, "Cannot parse to a long value"),
    ],
)
def test_a_malformed_snapshot_is_refused(change: Json, message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        Catalog().create().commit(add({**snapshot(11, 1), **change}))


def test_version_1_snapshots_may_list_their_manifests() -> None:
    value = {key: item for key, item in snapshot(11, 0).items() if key != "manifest-list"}
    catalog = Catalog().create(version=1)
    catalog.commit(add({**value, "manifests": ["s3://a"]}))
    assert catalog.json()["snapshots"][0]["manifests"] == ["s3://a"]
    with pytest.raises(BadRequestError, match="missing list: manifests"):
        catalog.commit(add(value))


def test_version_3_rows_are_numbered_through() -> None:
    catalog = appended(11, 12, version=3)
    assert catalog.json()["next-row-id"] == 20
    assert [s["first-row-id"] for s in catalog.json()["snapshots"]] == [0, 10]


def test_a_version_3_snapshot_needs_a_first_row_id_not_behind_the_table() -> None:
    catalog = appended(11, version=3)
    with pytest.raises(CommitFailedError, match=r"please retry.*first-row-id is null"):
        catalog.commit(add(snapshot(12, 2, parent=11)))
    with pytest.raises(CommitFailedError, match="first-row-id is behind table next-row-id: 3 < 10"):
        catalog.commit(add(snapshot(12, 2, parent=11, **{"first-row-id": 3, "added-rows": 1})))


def test_an_upgraded_table_numbers_its_rows_from_0() -> None:
    catalog = appended(11)
    catalog.commit({"action": "upgrade-format-version", "format-version": 3})
    catalog.append(12)
    assert (catalog.json()["snapshots"][1]["first-row-id"], catalog.json()["next-row-id"]) == (0, 10)


def test_branches_and_tags_keep_their_retention() -> None:
    catalog = appended(11)
    branch = {"min-snapshots-to-keep": 2, "max-snapshot-age-ms": 3, "max-ref-age-ms": 4}
    catalog.commit(point("audit", 11, **branch), point("v1", 11, "TAG", **{"max-ref-age-ms": 5}))
    refs = catalog.json()["refs"]
    assert refs["audit"] == {"snapshot-id": 11, "type": "branch", **branch}
    assert refs["v1"] == {"snapshot-id": 11, "type": "tag", "max-ref-age-ms": 5}


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (point("x", 99), "Cannot set x to unknown snapshot: 99"),
        (point("main", 11, "tag"), "Cannot set main to a tag, it must be a branch"),
        (point("x", 11, "twig"), "Invalid snapshot ref type: twig"),
        (
            point("x", 11, "tag", **{"min-snapshots-to-keep": 1}),
            "Tags do not support setting minSnapshotsToKeep",
        ),
        (point("x", 11, "tag", **{"max-snapshot-age-ms": 1}), "Tags do not support setting maxSnapshotAgeMs"),
        (point("x", 11, **{"max-ref-age-ms": 0}), "must be greater than 0"),
    ],
)
def test_a_ref_that_cannot_be_is_refused(update: Json, message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        appended(11).commit(update)


def test_an_equal_ref_changes_nothing() -> None:
    assert not appended(11).commit(point("main", 11)).changed


def test_changing_mains_retention_logs_it_again_as_iceberg_does() -> None:
    catalog = appended(11)
    catalog.commit(point("main", 11, **{"max-ref-age-ms": 9}))
    assert history(catalog) == [11, 11]


def test_a_rollback_is_logged_at_the_time_of_the_change() -> None:
    catalog = appended(11, 12)
    catalog.commit(point("main", 11))
    assert history(catalog) == [11, 12, 11]
    assert (
        catalog.json()["snapshot-log"][-1]["timestamp-ms"] == catalog.json()["last-updated-ms"] == catalog.now
    )


def test_a_removed_main_leaves_no_current_snapshot() -> None:
    for version, none in ((2, -1), (3, None)):
        catalog = appended(11, version=version)
        catalog.commit({"action": "remove-snapshot-ref", "ref-name": "main"})
        assert (catalog.json()["current-snapshot-id"], catalog.json()["refs"]) == (none, {})


def test_snapshots_that_one_request_replaces_leave_no_history() -> None:
    catalog = appended(11)
    second, third = snapshot(12, 2, parent=11), snapshot(13, 3, parent=12)
    catalog.commit(add(second), point("main", 12), add(third), point("main", 13))
    assert (history(catalog), catalog.json()["current-snapshot-id"]) == ([11, 13], 13)


def test_a_snapshot_that_one_request_makes_current_and_removes_ends_the_history() -> None:
    catalog = appended(11)
    catalog.commit(add(snapshot(12, 2, parent=11)), point("main", 12), remove(12))
    assert (history(catalog), catalog.json()["current-snapshot-id"]) == ([], -1)


def test_a_staged_snapshot_is_not_in_the_history() -> None:
    catalog = appended(11)
    catalog.commit(add(snapshot(12, 2, parent=11)), point("audit", 12))
    assert (history(catalog), catalog.json()["current-snapshot-id"]) == ([11], 11)


def test_removed_snapshots_take_the_history_up_to_them_along() -> None:
    catalog = appended(11, 12, 13, 14)
    catalog.commit(remove(12, 99))
    assert history(catalog) == [13, 14]
    assert [s["snapshot-id"] for s in catalog.json()["snapshots"]] == [11, 13, 14]


def test_a_snapshot_that_was_never_current_is_removed_without_a_gap_in_history() -> None:
    catalog = appended(11)
    catalog.commit(add(snapshot(12, 2, parent=11)))
    catalog.append(13)
    catalog.commit(remove(12))
    assert history(catalog) == [11, 13]


def test_removed_snapshots_take_their_refs_and_statistics_along() -> None:
    catalog = appended(11, 12)
    catalog.commit(point("old", 11, "tag"), statistics(11), statistics(12), partition_statistics(11))
    catalog.commit(remove(11))
    found = catalog.json()
    assert set(found["refs"]) == {"main"}
    assert [s["snapshot-id"] for s in found["statistics"]] == [12]
    assert found["partition-statistics"] == []


def test_a_removed_current_snapshot_takes_main_along() -> None:
    catalog = appended(11, 12)
    catalog.commit(remove(12))
    assert (catalog.json()["current-snapshot-id"], history(catalog)) == (-1, [])


def test_a_rollback_and_the_removal_of_what_it_left_keep_the_history_whole() -> None:
    catalog = appended(11, 12, 13)
    catalog.commit(point("main", 12), remove(13))
    assert history(catalog) == [12]


def test_a_snapshot_far_older_than_the_history_is_refused() -> None:
    with pytest.raises(BadRequestError, match="expected sorted snapshot log entries"):
        appended(11).append(12, **{"timestamp-ms": NOW - 3_600_000})


def test_a_snapshot_far_ahead_of_the_clock_is_refused() -> None:
    with pytest.raises(BadRequestError, match="Invalid update timestamp"):
        appended(11).append(12, **{"timestamp-ms": NOW + 3_600_000})


def test_a_snapshot_needs_a_schema_a_spec_and_an_order() -> None:
    draft = TableDraft(None, MemoryObjects(), now_ms=NOW)
    with pytest.raises(BadRequestError, match="before a schema is added"):
        apply_all(draft, [add(snapshot(11, 1))])


def statistics(id: int, size: int = 10) -> Json:
    file = {
        "snapshot-id": id,
        "statistics-path": f"{LOCATION}/metadata/{id}.puffin",
        "file-size-in-bytes": size,
        "file-footer-size-in-bytes": 4,
        "blob-metadata": [],
    }
    return {"action": "set-statistics", "snapshot-id": id, "statistics": file}


def partition_statistics(id: int, size: int = 10) -> Json:
    file = {"snapshot-id": id, "statistics-path": f"{LOCATION}/{id}.parquet", "file-size-in-bytes": size}
    return {"action": "set-partition-statistics", "partition-statistics": file}


def test_statistics_are_set_replaced_and_removed() -> None:
    catalog = appended(11, 12)
    catalog.commit(statistics(11), statistics(12), partition_statistics(12))
    catalog.commit(statistics(11, 20), partition_statistics(12, 30))
    found = catalog.json()
    assert {s["snapshot-id"]: s["file-size-in-bytes"] for s in found["statistics"]} == {11: 20, 12: 10}
    assert [s["file-size-in-bytes"] for s in found["partition-statistics"]] == [30]
    catalog.commit(
        {"action": "remove-statistics", "snapshot-id": 11},
        {"action": "remove-partition-statistics", "snapshot-id": 12},
    )
    assert [s["snapshot-id"] for s in catalog.json()["statistics"]] == [12]
    assert catalog.json()["partition-statistics"] == []


@pytest.mark.parametrize("update", [statistics(11), partition_statistics(11)])
def test_malformed_statistics_are_refused(update: Json) -> None:
    body = next(value for value in update.values() if isinstance(value, dict))
    for name in body:
        broken = {key: value for key, value in body.items() if key != name}
        changed = {key: broken if isinstance(value, dict) else value for key, value in update.items()}
        with pytest.raises(BadRequestError, match=name):
            appended(11).commit(changed)


def test_snapshots_of_refs_are_all_that_a_lean_load_shows() -> None:
    catalog = appended(11, 12, 13)
    catalog.commit(point("old", 11, "tag"), point("same", 13))
    lean, full = catalog.json("refs"), catalog.json("all")
    assert [s["snapshot-id"] for s in lean["snapshots"]] == [11, 13]
    assert {**lean, "snapshots": full["snapshots"]} == full


def test_the_last_sequence_number_cannot_fall_behind_a_snapshot_of_the_same_request() -> None:
    with pytest.raises(BadRequestError, match="greater than last sequence number"):
        Catalog().create().commit(add(snapshot(11, 2)), add(snapshot(12, 1)))


def test_a_snapshot_is_written_with_an_operation_or_without_a_summary() -> None:
    catalog = Catalog().create()
    catalog.commit(add(snapshot(11, 1, summary={"added-records": "1"})), add(snapshot(12, 2, summary={})))
    first, second = catalog.json()["snapshots"]
    assert first["summary"] == {"operation": "overwrite", "added-records": "1"}
    assert "summary" not in second


def test_embedded_manifests_leave_no_room_for_row_ids() -> None:
    value = snapshot(11, 1, manifests=["a.avro"], **{"first-row-id": 0, "added-rows": 5, "key-id": "k"})
    del value["manifest-list"]
    catalog = Catalog().create(version=2)
    catalog.commit(add(value))
    assert not {"first-row-id", "added-rows", "key-id"} & catalog.json()["snapshots"][0].keys()
    with pytest.raises(CommitFailedError, match=r"please retry.*first-row-id is null"):
        Catalog().create(version=3).commit(add(value))


@pytest.mark.parametrize(
    "name", ["", "a\nb", "\t", "\0", "\x1b[31m", "\x85", "\u2028", "\u202e", "\ud800"], ids=ascii
)
@pytest.mark.parametrize("type", ["branch", "tag"])
def test_an_unprintable_name_is_refused_for_a_new_branch_or_tag(name: str, type: str) -> None:
    catalog = Catalog().create()
    catalog.append(11)
    with pytest.raises(BadRequestError, match="Cannot create branch or tag"):
        catalog.commit(point(name, 11, type))
    assert list(catalog.json()["refs"]) == ["main"]


def test_a_branch_with_a_name_that_an_earlier_release_accepted_can_be_moved_and_removed() -> None:
    catalog = Catalog().create()
    catalog.append(11)
    metadata = catalog.json()
    metadata["refs"]["a\nb"] = {"snapshot-id": 11, "type": "branch"}
    old = Catalog().register(metadata)
    old.append(12)
    old.commit(point("a\nb", 12))
    assert old.json()["refs"]["a\nb"]["snapshot-id"] == 12
    old.commit({"action": "remove-snapshot-ref", "ref-name": "a\nb"})
    assert list(old.json()["refs"]) == ["main"]


@pytest.mark.parametrize(
    "name", ["a/b", "..", "%0A", "a b", "`", "表", "🧊", "x" * 1_000], ids=lambda name: ascii(name)[:9]
)
def test_a_branch_may_have_any_printable_name(name: str) -> None:
    catalog = Catalog().create()
    catalog.append(11)
    catalog.commit(point(name, 11))
    assert catalog.json()["refs"][name]["snapshot-id"] == 11
