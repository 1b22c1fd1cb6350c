"""Updates of a table's plain fields, and rules that apply to all updates."""

from __future__ import annotations

import pytest

from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.table_updates import apply_all
from polaris_spark.errors import BadRequestError
from tests.catalog.metadata.memory import MemoryObjects
from tests.catalog.metadata.tables import LOCATION, NOW, ORDER, SCHEMA, SPEC, UUID, Catalog, Json


def properties(**values: str) -> Json:
    return {
        "action": "set-properties",
        "updates": {name.replace("_", "-"): value for name, value in values.items()},
    }


def test_properties_are_set_and_removed() -> None:
    catalog = Catalog().create(properties={"a": "1", "b": "2"})
    catalog.commit(properties(a="3"), {"action": "remove-properties", "removals": ["b", "unknown"]})
    assert catalog.json()["properties"] == {"a": "3", "write.parquet.compression-codec": "zstd"}


@pytest.mark.parametrize("name", ["gc.enabled", "polaris.append-rebase", "polaris.schema-merge"])
def test_a_boolean_property_must_be_true_or_false(name: str) -> None:
    message = f"the property '{name}' is 'maybe'; it must be true or false"
    with pytest.raises(BadRequestError, match=message):
        Catalog().create(properties={name: "maybe"})
    catalog = Catalog().create(properties={name: "TRUE"})
    with pytest.raises(BadRequestError, match=message):
        catalog.commit({"action": "set-properties", "updates": {name: "maybe"}})
    assert catalog.json()["properties"][name] == "TRUE"


def test_older_names_of_property_updates_are_understood() -> None:
    catalog = Catalog().create(properties={"b": "2"})
    catalog.commit(
        {"action": "set-properties", "updated": {"a": "1"}}, {"action": "remove-properties", "removed": ["b"]}
    )
    assert catalog.json()["properties"] == {"a": "1", "write.parquet.compression-codec": "zstd"}


def test_the_property_format_version_upgrades_and_reserved_names_are_not_stored() -> None:
    catalog = Catalog().create(version=1)
    draft = catalog.commit(properties(format_version="2", uuid="x", snapshot_count="9", mine="1"))
    assert catalog.table.format_version == 2
    assert catalog.table.properties == {"write.parquet.compression-codec": "zstd", "mine": "1"}
    assert draft.summary() == {
        "updates": "upgrade-format-version,set-properties",
        "set mine": "1",
        "format-version": "2",
    }


def test_a_property_commit_reads_nothing_and_writes_the_table_only() -> None:
    catalog = Catalog().create()
    catalog.append(1)
    table, read = catalog.table, catalog.objects.read
    draft = TableDraft(table, catalog.objects, now_ms=NOW + 9)
    apply_all(draft, [properties(a="1")])
    _, rows = draft.freeze(catalog.objects.new_id, metadata_location="x")
    assert (catalog.objects.read, rows) == (read, [])


def test_empty_updates_change_nothing() -> None:
    catalog = Catalog().create()
    draft = catalog.draft()
    apply_all(
        draft,
        [
            {"action": "set-properties", "updates": {}},
            {"action": "remove-properties", "removals": []},
            {"action": "set-location", "location": LOCATION + "/"},
            {"action": "assign-uuid", "uuid": UUID},
            {"action": "upgrade-format-version", "format-version": 2},
            {"action": "remove-snapshots", "snapshot-ids": [5]},
            {"action": "remove-snapshot-ref", "ref-name": "none"},
            {"action": "remove-statistics", "snapshot-id": 5},
            {"action": "remove-partition-statistics", "snapshot-id": 5},
            {"action": "remove-encryption-key", "key-id": "none"},
            {"action": "set-current-schema", "schema-id": 0},
            {"action": "set-default-spec", "spec-id": 0},
            {"action": "set-default-sort-order", "sort-order-id": 1},
        ],
    )
    assert not draft.changed
    assert draft.freeze(catalog.objects.new_id, metadata_location="other") == (catalog.table, [])


def test_the_location_is_set_without_trailing_slashes() -> None:
    catalog = Catalog().create()
    catalog.commit({"action": "set-location", "location": "s3://elsewhere/t//"})
    assert catalog.json()["location"] == "s3://elsewhere/t"


def test_the_uuid_is_replaced() -> None:
    catalog = Catalog().create()
    catalog.commit({"action": "assign-uuid", "uuid": "00000000-0000-0000-0000-000000000001"})
    assert catalog.json()["table-uuid"] == "00000000-0000-0000-0000-000000000001"


def test_the_format_version_goes_up_but_not_down() -> None:
    catalog = Catalog().create(version=1)
    catalog.commit({"action": "upgrade-format-version", "format-version": 3})
    assert (catalog.json()["format-version"], catalog.json()["next-row-id"]) == (3, 0)
    with pytest.raises(BadRequestError, match="Cannot downgrade v3 table to v2"):
        catalog.commit({"action": "upgrade-format-version", "format-version": 2})
    with pytest.raises(BadRequestError, match="unsupported format version: v5"):
        catalog.commit({"action": "upgrade-format-version", "format-version": 5})


def test_encryption_keys_are_added_once_and_removed() -> None:
    catalog = Catalog().create(version=3)
    first = {"key-id": "a", "encrypted-key-metadata": "AAAA", "encrypted-by-id": "b", "later": 1}
    catalog.commit(
        {"action": "add-encryption-key", "encryption-key": first},
        {"action": "add-encryption-key", "encryption-key": {**first, "encrypted-key-metadata": "BBBB"}},
        {"action": "add-encryption-key", "encryption-key": {"key-id": "b", "encrypted-key-metadata": "CCCC"}},
    )
    assert [key["key-id"] for key in catalog.json()["encryption-keys"]] == ["a", "b"]
    assert catalog.json()["encryption-keys"][0] == first
    catalog.commit({"action": "remove-encryption-key", "key-id": "a"})
    assert [key["key-id"] for key in catalog.json()["encryption-keys"]] == ["b"]
    catalog.commit({"action": "remove-encryption-key", "key-id": "b"})
    assert "encryption-keys" not in catalog.json()


def test_a_table_is_built_from_nothing_by_the_updates_of_a_create_transaction() -> None:
    catalog = Catalog()
    draft = TableDraft(None, catalog.objects, now_ms=NOW)
    apply_all(draft, creating(1))
    catalog.store(draft)
    found = catalog.json()
    assert (found["format-version"], found["table-uuid"], found["location"]) == (1, UUID, LOCATION)
    assert (found["current-schema-id"], found["default-spec-id"], found["default-sort-order-id"]) == (0, 0, 1)
    assert (found["last-column-id"], found["last-partition-id"]) == (4, 1000)
    assert draft.summary()["updates"].startswith("create,assign-uuid,")


def test_an_unpartitioned_unsorted_table_is_built_from_nothing() -> None:
    catalog = Catalog()
    draft = TableDraft(None, catalog.objects, now_ms=NOW)
    updates = creating(2)
    updates[4] = {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}}
    updates[6] = {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}}
    apply_all(draft, updates)
    catalog.store(draft)
    found = catalog.json()
    assert found["last-partition-id"] == 999
    assert found["partition-specs"] == [{"spec-id": 0, "fields": []}]
    assert found["sort-orders"] == [{"order-id": 0, "fields": []}]


def creating(version: int) -> list[Json]:
    """Return the updates that Iceberg's REST client sends to commit a create transaction."""
    return [
        {"action": "assign-uuid", "uuid": UUID},
        {"action": "upgrade-format-version", "format-version": version},
        {"action": "add-schema", "schema": SCHEMA, "last-column-id": 4},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": SPEC},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": ORDER},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": LOCATION},
        {"action": "set-properties", "updates": {"owner": "me"}},
    ]


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("assign-uuid", "UUID is required"),
        ("set-location", "location is required"),
        ("add-spec", "no spec has been added"),
        ("add-schema", "no schema has been added"),
    ],
)
def test_an_incomplete_creation_is_refused(missing: str, message: str) -> None:
    draft = TableDraft(None, MemoryObjects(), now_ms=NOW)
    updates = [update for update in creating(2) if update["action"] != missing]

    def build() -> None:
        apply_all(draft, updates)
        draft.freeze(lambda: 1, metadata_location="x")

    with pytest.raises(BadRequestError, match=message):
        build()


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({}, "Missing field: action"),
        ({"action": "make-coffee"}, "Unknown metadata update: make-coffee"),
        ({"action": 7}, "Unknown metadata update: 7"),
        (
            {"action": "add-view-version", "view-version": {}},
            "Cannot apply update add-view-version to a table",
        ),
        ({"action": "set-location"}, "missing string: location"),
        ({"action": "set-location", "location": 7}, "Cannot parse to a string value: location: 7"),
        ({"action": "set-location", "location": ""}, "path must not be null or empty"),
        ({"action": "set-properties"}, "missing map: updates"),
        ({"action": "set-properties", "updates": {"a": 1}}, "Cannot parse to a string value: a: 1"),
        ({"action": "set-properties", "updates": []}, "string map from non-object"),
        ({"action": "set-properties", "updates": {"format-version": "two"}}, "to an integer: two"),
        ({"action": "remove-properties", "removals": [1]}, "from non-string value"),
        ({"action": "upgrade-format-version", "format-version": True}, "Cannot parse to an integer"),
        ({"action": "upgrade-format-version", "format-version": 2**31}, "Cannot parse to an integer"),
        ({"action": "add-encryption-key"}, "encryption-key"),
        ({"action": "add-schema", "schema": []}, "Cannot parse schema from non-object"),
    ],
)
def test_a_malformed_update_is_refused(update: Json, message: str) -> None:
    catalog = Catalog().create()
    with pytest.raises(BadRequestError, match=message):
        catalog.commit(update)


def test_actions_are_read_regardless_of_case() -> None:
    catalog = Catalog().create()
    catalog.commit({"action": "SET-PROPERTIES", "updates": {"a": "1"}})
    assert catalog.table.properties["a"] == "1"


def test_times_never_go_back_even_if_the_clock_does() -> None:
    catalog = Catalog().create()
    catalog.now = NOW - 3_600_000
    catalog.commit(properties(a="1"))
    assert catalog.json()["last-updated-ms"] == NOW
