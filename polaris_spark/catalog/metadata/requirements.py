"""Requirements of commits: conditions that must hold for a table or view before a request's updates are applied.

Rules and messages are the same as in Iceberg's `UpdateRequirement`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.texts import (
    Json,
    as_object,
    decode,
    find_long,
    get_int,
    get_text,
    invalid,
)
from polaris_spark.errors import BadRequestError, CommitFailedError


def check(draft: TableDraft, requirement: Json) -> None:
    """Check one requirement of a commit against the draft of a table. Call this before the updates are applied.

    Raises:
        CommitFailedError: the requirement does not hold.
        BadRequestError: the requirement is unknown, malformed, or not a requirement for tables.
    """
    type = as_object(requirement, "update requirement").get("type")
    check_one = _REQUIREMENTS.get(type.lower()) if isinstance(type, str) else None
    if check_one is None:
        raise _unknown(type)
    check_one(draft, requirement)


def check_all(draft: TableDraft, requirements: Sequence[Json]) -> None:
    """Check all requirements of a commit against the draft of a table. Call this before the updates are applied.

    Raises:
        CommitFailedError: a requirement does not hold.
        BadRequestError: a requirement is unknown, malformed, or not a requirement for tables; or `assert-create` is
            combined with other requirements.
    """
    if is_create(requirements):
        others = [r for r in requirements if r.get("type") != "assert-create"]
        if others:
            raise invalid(f"Invalid create requirements: {[r.get('type') for r in others]}")
    for requirement in requirements:
        draft.check_time()
        check(draft, requirement)


def is_create(requirements: Sequence[Json]) -> bool:
    """Return whether a commit with these requirements creates a table: whether `assert-create` is one of them."""
    found = False
    for requirement in requirements:
        found |= as_object(requirement, "update requirement").get("type") == "assert-create"
    return found


def failed(message: str) -> CommitFailedError:
    """Return the error to raise for a requirement that does not hold."""
    return CommitFailedError(f"Requirement failed: {message}")


def same_uuid(one: str, other: str) -> bool:
    """Return whether two UUIDs are the same, ignoring case."""
    return one.lower() == other.lower()


def _assert_create(draft: TableDraft, _: Json) -> None:
    if draft.base is not None:
        raise failed("table already exists")


def _assert_uuid(draft: TableDraft, requirement: Json) -> None:
    uuid = get_text(requirement, "uuid")
    if not same_uuid(uuid, draft.uuid):
        raise failed(f"UUID does not match: expected {draft.uuid} != {uuid}")


def _assert_ref(draft: TableDraft, requirement: Json) -> None:
    name, id = get_text(requirement, "ref"), find_long(requirement, "snapshot-id")
    ref = draft.refs.get(name)
    if ref is None:
        if id is not None:
            raise failed(f"branch or tag {name} is missing, expected {id}")
    elif id != ref.snapshot_id:
        type = decode(ref.text)["type"].lower()
        if id is None:
            raise failed(f"{type} {name} was created concurrently")
        raise failed(f"{type} {name} has changed: expected id {id} != {ref.snapshot_id}")


def _assert_number(field: str, attribute: str, what: str) -> Callable[[TableDraft, Json], None]:
    def check_number(draft: TableDraft, requirement: Json) -> None:
        expected, found = get_int(requirement, field), getattr(draft, attribute)
        if draft.base is not None and expected != found:
            raise failed(f"{what} changed: expected id {expected} != {found}")

    return check_number


def _unknown(type: Any) -> BadRequestError:
    if type is None:
        return invalid("Cannot parse update requirement. Missing field: type")
    if type == "assert-view-uuid":
        return BadRequestError(f"Cannot validate {type} against a table", type="ValidationException")
    return BadRequestError(f"Unknown update requirement: {type}", type="UnsupportedOperationException")


_REQUIREMENTS: dict[str, Callable[[TableDraft, Json], None]] = {
    "assert-create": _assert_create,
    "assert-table-uuid": _assert_uuid,
    "assert-ref-snapshot-id": _assert_ref,
    "assert-last-assigned-field-id": _assert_number(
        "last-assigned-field-id", "last_column_id", "last assigned field id"
    ),
    "assert-current-schema-id": _assert_number("current-schema-id", "current_schema_id", "current schema"),
    "assert-last-assigned-partition-id": _assert_number(
        "last-assigned-partition-id", "last_partition_id", "last assigned partition id"
    ),
    "assert-default-spec-id": _assert_number("default-spec-id", "default_spec_id", "default partition spec"),
    "assert-default-sort-order-id": _assert_number(
        "default-sort-order-id", "default_sort_order_id", "default sort order"
    ),
}
