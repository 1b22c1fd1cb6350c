"""Metadata as JSON: it is complete, other programs can read it, and it survives export and import."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyiceberg.table.metadata import TableMetadataUtil

from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.renderer import render
from polaris_spark.catalog.metadata.table_parser import parse_table
from polaris_spark.catalog.metadata.table_updates import apply_all
from polaris_spark.errors import BadRequestError
from tests.catalog.metadata.memory import MemoryObjects
from tests.catalog.metadata.tables import (
    LOCATION,
    NOW,
    ORDER,
    SCHEMA,
    SPEC,
    UUID,
    Catalog,
    Json,
    add,
    field,
    point,
    schema,
    snapshot,
)

SIZES = {"file-size-in-bytes": 9, "file-footer-size-in-bytes": 4, "blob-metadata": []}
"""What every statistics file has."""


def imported(version: int) -> Json:
    """A metadata file with unknown fields at every place that can have one."""
    ref = {"snapshot-id": 11, "type": "branch", "later": 1}
    value: Json = {
        "format-version": version,
        "table-uuid": UUID,
        "location": LOCATION,
        "last-updated-ms": NOW + 9000,
        "last-column-id": 4,
        "current-schema-id": 3,
        "schemas": [
            {**SCHEMA, "schema-id": 3, "later": "a\u00e9\u2028"},
            schema(field(9, "old"), **{"schema-id": 1}),
        ],
        "default-spec-id": 2,
        "partition-specs": [{**SPEC, "spec-id": 2, "later": [1.5, None, True]}, {"spec-id": 5, "fields": []}],
        "last-partition-id": 1003,
        "default-sort-order-id": 1,
        "sort-orders": [{**ORDER, "later": {}}, {"order-id": 0, "fields": []}],
        "properties": {"a": "1", 'quo"ted': "\\\n"},
        "current-snapshot-id": 11,
        "refs": {"main": ref, 'v"1': {**ref, "type": "tag", "max-ref-age-ms": 5}},
        "snapshots": [
            snapshot(12, 0, later=10**30),
            snapshot(11, 0, **{"key-id": "k", "summary": {"operation": "append", "x": "\u00e4"}}),
        ],
        "statistics": [
            {"snapshot-id": 11, "statistics-path": "p", **SIZES, "later": 1},
            {"snapshot-id": 11, "statistics-path": "q", **SIZES},
            {"snapshot-id": 12, "statistics-path": "r", **SIZES},
        ],
        "partition-statistics": [{"snapshot-id": 12, "statistics-path": "s", "file-size-in-bytes": 1}],
        "snapshot-log": [
            {"timestamp-ms": NOW, "snapshot-id": 99},
            {"timestamp-ms": NOW + 1, "snapshot-id": 12},
            {"timestamp-ms": NOW + 2, "snapshot-id": 11, "later": 1},
        ],
        "metadata-log": [{"timestamp-ms": NOW + n, "metadata-file": f"m{n}", "later": n} for n in range(20)],
        "later": {"deep": [1, {"er": "x"}]},
    }
    if version == 1:
        value |= {"schema": value["schemas"][0], "partition-spec": SPEC["fields"]}
    else:
        value["last-sequence-number"] = 4
    if version >= 3:
        value |= {
            "next-row-id": 77,
            "encryption-keys": [{"key-id": "k", "encrypted-key-metadata": "AA==", "x": 1}],
        }
    return value


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("indent", [None, 2])
def test_what_is_imported_is_exported_field_by_field(version: int, indent: int | None) -> None:
    metadata = imported(version)
    assert Catalog().register(json.dumps(metadata, indent=indent)).json() == metadata


def test_order_survives_import_and_export() -> None:
    text = json.dumps(imported(3))
    assert list(Catalog().register(text).json()["refs"]) == ["main", 'v"1']
    assert [s["snapshot-id"] for s in Catalog().register(text).json()["snapshots"]] == [12, 11]
    assert [s["statistics-path"] for s in Catalog().register(text).json()["statistics"]] == ["p", "q", "r"]


def test_a_commit_after_an_import_keeps_what_it_does_not_touch() -> None:
    metadata = imported(3)
    catalog = Catalog().register(metadata)
    before = catalog.table
    catalog.commit({"action": "set-properties", "updates": {"b": "2"}})
    log = [*metadata["metadata-log"], {"timestamp-ms": NOW + 9000, "metadata-file": before.metadata_location}]
    properties = {**metadata["properties"], "b": "2"}
    assert catalog.json() == {**metadata, "metadata-log": log, "properties": properties}


def test_updates_can_follow_an_import_at_once() -> None:
    catalog = Catalog()
    draft = parse_table(json.dumps(imported(2)), now_ms=NOW + 20_000)
    apply_all(draft, [{"action": "remove-snapshots", "snapshot-ids": [12]}])
    catalog.store(draft)
    found = catalog.json()
    assert (found["last-updated-ms"], [e["snapshot-id"] for e in found["snapshot-log"]]) == (
        NOW + 20_000,
        [11],
    )
    assert (
        draft.summary()["updates"]
        == "register,remove-statistics,remove-partition-statistics,remove-snapshots"
    )


def test_gaps_of_an_imported_history_go_when_snapshots_are_removed() -> None:
    catalog = Catalog().register(imported(2))
    catalog.commit(add(snapshot(13, 5)), {"action": "remove-snapshots", "snapshot-ids": [13]})
    assert [entry["snapshot-id"] for entry in catalog.json()["snapshot-log"]] == [12, 11]
    assert not catalog.table.snapshot_log_gaps


def test_gaps_of_an_imported_history_go_when_snapshots_are_replaced_in_one_request() -> None:
    catalog = Catalog().register(imported(2))
    catalog.commit(
        add(snapshot(13, 5, **{"timestamp-ms": NOW + 9000})),
        point("main", 13),
        add(snapshot(14, 6, **{"timestamp-ms": NOW + 9000})),
        point("main", 14),
    )
    assert [entry["snapshot-id"] for entry in catalog.json()["snapshot-log"]] == [12, 11, 14]


def test_all_statistics_of_a_snapshot_are_replaced_by_a_new_one() -> None:
    catalog = Catalog().register(imported(2))
    new = {
        "snapshot-id": 11,
        "statistics-path": "n",
        "file-size-in-bytes": 1,
        "file-footer-size-in-bytes": 1,
        "blob-metadata": [],
    }
    catalog.commit({"action": "set-statistics", "statistics": new})
    assert [s["statistics-path"] for s in catalog.json()["statistics"]] == ["r", "n"]
    catalog.commit({"action": "remove-statistics", "snapshot-id": 11})
    assert [s["statistics-path"] for s in catalog.json()["statistics"]] == ["r"]


def test_an_old_version_1_file_is_completed() -> None:
    old = {key: value for key, value in SCHEMA.items() if key not in ("schema-id", "identifier-field-ids")}
    spec = [{key: value for key, value in SPEC["fields"][0].items() if key != "field-id"}]
    metadata = {
        "format-version": 1,
        "location": LOCATION,
        "last-updated-ms": NOW,
        "last-column-id": 4,
        "schema": old,
        "partition-spec": spec,
        "current-snapshot-id": 11,
        "snapshots": [snapshot(11, 0)],
    }
    found = Catalog().register(metadata).json()
    assert found["schema"] == found["schemas"][0] == {**old, "schema-id": 0}
    assert found["partition-spec"] == SPEC["fields"]
    assert found["partition-specs"] == [{"spec-id": 0, "fields": SPEC["fields"]}]
    assert found["refs"] == {"main": {"snapshot-id": 11, "type": "branch"}}
    assert (found["last-partition-id"], found["sort-orders"]) == (1000, [{"order-id": 0, "fields": []}])
    assert "table-uuid" not in found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format-version": 9}, "Cannot read unsupported version 9"),
        ({"current-schema-id": 8}, "Cannot find schema with current-schema-id=8"),
        ({"schemas": {}}, "Cannot parse schemas from non-array"),
        ({"schemas": [SCHEMA, SCHEMA], "current-schema-id": 0}, "Multiple entries with same key: 0"),
        ({"last-sequence-number": -1}, "greater than last sequence number"),
        ({"snapshots": [snapshot(11, 0), snapshot(11, 0)]}, "Multiple entries with same key: 11"),
        ({"snapshots": [snapshot(11, 9)]}, "Invalid snapshot with sequence number 9"),
        ({"snapshots": []}, "Snapshot for reference main does not exist"),
        ({"current-snapshot-id": 12}, "does not match main branch"),
        ({"current-snapshot-id": None}, "Current snapshot is not set, but main branch exists"),
        ({"refs": {}, "current-snapshot-id": 5}, "Cannot find current version"),
        ({"snapshot-log": [{"timestamp-ms": NOW, "snapshot-id": "x"}]}, "Cannot parse snapshot-log"),
        (
            {
                "snapshot-log": [
                    {"timestamp-ms": NOW, "snapshot-id": 1},
                    {"timestamp-ms": 0, "snapshot-id": 1},
                ]
            },
            "Expected sorted",
        ),
        ({"metadata-log": [{"timestamp-ms": NOW * 2, "metadata-file": "x"}]}, "latest metadata log entry"),
        ({"default-spec-id": 8}, "unknown spec: 8"),
        ({"default-sort-order-id": 8}, "unknown sort order: 8"),
        ({"properties": {"a": 1}}, "Cannot parse to a string value"),
        ({"location": None}, "location is required"),
        ({"table-uuid": None}, "UUID is required"),
    ],
)
def test_metadata_that_no_client_could_load_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        Catalog().register({**imported(2), **change})


@pytest.mark.parametrize(
    "name",
    ["format-version", "schemas", "partition-specs", "sort-orders", "last-partition-id", "last-updated-ms"],
)
def test_metadata_without_a_required_field_is_refused(name: str) -> None:
    metadata = imported(2)
    del metadata[name]
    with pytest.raises(BadRequestError, match=name):
        Catalog().register(metadata)


@pytest.mark.parametrize("text", ["", "[]", '{"a":', "\x00"])
def test_a_value_that_is_not_metadata_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError):
        parse_table(text, now_ms=NOW)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_pyiceberg_reads_what_is_rendered(version: int) -> None:
    catalog = Catalog().create(version=version, properties={"owner": "me"})
    for id in (11, 12):
        catalog.append(id)
    catalog.commit(point("v1", 11, "tag"))
    for which in ("all", "refs"):
        found = TableMetadataUtil.parse_raw(catalog.text(which).decode())
        assert found.format_version == version
        assert found.schema().find_field("at").doc == "when"
        assert found.spec().fields[0].name == "at_day"
        assert [s.snapshot_id for s in found.snapshots] == [11, 12]
        assert found.current_snapshot_id == 12
        assert found.refs["v1"].snapshot_id == 11


@pytest.mark.parametrize("version", [1, 2, 3])
def test_pyiceberg_reads_an_empty_table(version: int) -> None:
    found = TableMetadataUtil.parse_raw(Catalog().create(version=version).text().decode())
    assert (found.current_snapshot_id, found.refs, found.snapshots) == (None, {}, [])


def test_a_version_4_table_needs_no_location() -> None:
    catalog = Catalog().create(version=3)
    metadata = {**catalog.json(), "format-version": 4}
    del metadata["location"]
    assert Catalog().register(metadata).json() == metadata
    with pytest.raises(BadRequestError, match=r"set the property write\.metadata\.path"):
        Catalog().register(metadata).commit({"action": "set-properties", "updates": {"a": "1"}})
    with pytest.raises(BadRequestError, match="must be absolute: relative/t"):
        Catalog().register({**metadata, "location": "relative/t"})


def test_a_table_row_survives_its_encoding() -> None:
    catalog = Catalog().register(imported(3))
    table = catalog.table
    assert render(table, catalog.objects, snapshots="all") == catalog.text()
    assert isinstance(catalog.objects, MemoryObjects)
    assert TableDraft(table, catalog.objects, now_ms=1).uuid == UUID
