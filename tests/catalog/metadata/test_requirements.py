"""Requirements of commits, with Iceberg's messages."""

from __future__ import annotations

import pytest

from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.requirements import check_all
from polaris_spark.errors import BadRequestError, CommitFailedError
from tests.catalog.metadata.memory import MemoryObjects
from tests.catalog.metadata.tables import NOW, UUID, Catalog, Json, point

HOLDS: list[Json] = [
    {"type": "assert-table-uuid", "uuid": UUID.upper()},
    {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 11},
    {"type": "assert-ref-snapshot-id", "ref": "none", "snapshot-id": None},
    {"type": "assert-ref-snapshot-id", "ref": "none"},
    {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 4},
    {"type": "assert-current-schema-id", "current-schema-id": 0},
    {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 1000},
    {"type": "assert-default-spec-id", "default-spec-id": 0},
    {"type": "ASSERT-default-sort-order-id", "default-sort-order-id": 1},
]

FAILS: list[tuple[Json, str]] = [
    ({"type": "assert-create"}, "table already exists"),
    (
        {"type": "assert-table-uuid", "uuid": "ab"},
        f"UUID does not match: expected {UUID} != ab",
    ),
    (
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 12},
        "branch main has changed: expected id 12 != 11",
    ),
    (
        {"type": "assert-ref-snapshot-id", "ref": "v1", "snapshot-id": 12},
        "tag v1 has changed: expected id 12 != 11",
    ),
    (
        {"type": "assert-ref-snapshot-id", "ref": "v1", "snapshot-id": None},
        "tag v1 was created concurrently",
    ),
    (
        {"type": "assert-ref-snapshot-id", "ref": "none", "snapshot-id": 12},
        "branch or tag none is missing, expected 12",
    ),
    (
        {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 5},
        "last assigned field id changed: expected id 5 != 4",
    ),
    (
        {"type": "assert-current-schema-id", "current-schema-id": 1},
        "current schema changed: expected id 1 != 0",
    ),
    (
        {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 1},
        "last assigned partition id changed: expected id 1 != 1000",
    ),
    (
        {"type": "assert-default-spec-id", "default-spec-id": 1},
        "default partition spec changed: expected id 1 != 0",
    ),
    (
        {"type": "assert-default-sort-order-id", "default-sort-order-id": 0},
        "default sort order changed: expected id 0 != 1",
    ),
]


def draft() -> TableDraft:
    catalog = Catalog().create()
    catalog.append(11)
    catalog.commit(point("v1", 11, "tag"))
    return catalog.draft()


def test_requirements_that_hold_pass() -> None:
    check_all(draft(), HOLDS)


@pytest.mark.parametrize(("requirement", "message"), FAILS)
def test_the_error_of_a_failed_requirement_contains_the_found_value(requirement: Json, message: str) -> None:
    with pytest.raises(CommitFailedError) as error:
        check_all(draft(), [requirement])
    assert str(error.value) == f"Requirement failed: {message}"


def test_assert_create_requires_only_that_the_table_does_not_exist() -> None:
    new = TableDraft(None, MemoryObjects(), now_ms=NOW)
    check_all(new, [{"type": "assert-create"}])
    with pytest.raises(BadRequestError, match=r"Invalid create requirements: .'assert-table-uuid'."):
        check_all(new, [{"type": "assert-create"}, HOLDS[0]])


@pytest.mark.parametrize(
    ("requirement", "message"),
    [
        ({}, "Missing field: type"),
        ({"type": "assert-luck"}, "Unknown update requirement: assert-luck"),
        ({"type": "assert-view-uuid", "uuid": UUID}, "Cannot validate assert-view-uuid against a table"),
        ({"type": "assert-table-uuid"}, "missing string: uuid"),
        ({"type": "assert-ref-snapshot-id"}, "missing string: ref"),
        ({"type": "assert-current-schema-id", "current-schema-id": "0"}, "Cannot parse to an integer"),
    ],
)
def test_a_malformed_requirement_is_refused(requirement: Json, message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        check_all(draft(), [requirement])
