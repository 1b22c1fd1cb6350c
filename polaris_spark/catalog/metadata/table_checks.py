"""Checks of a table after all updates of a request are applied (Iceberg's `TableMetadata` constructor)."""

from __future__ import annotations

import re

from polaris_spark.catalog.metadata.rows import OPTIONAL_LOCATION_VERSION, SUPPORTED_FORMAT_VERSION
from polaris_spark.catalog.metadata.table_values import TableValues
from polaris_spark.catalog.metadata.texts import check_long, invalid, refused
from polaris_spark.catalog.metadata.transforms import check_readable, check_sort_order, check_spec

_CURRENT = frozenset({"set-current-schema", "set-default-spec", "set-default-sort-order"})
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def check_final(draft: TableValues) -> None:
    """Check the values of a draft after its last update. Parts that the updates did not change are not checked again.

    Raises:
        BadRequestError: the result would not be valid metadata.
    """
    _check_plain(draft)
    if draft.base is None or (
        draft.changes_content and any(action in _CURRENT for action, _ in draft.changes)
    ):
        _check_pieces(draft)
    if draft.last_sequence_number < draft.highest_sequence_number:
        _check_sequence_numbers(draft)


def _check_plain(draft: TableValues) -> None:
    version = draft.format_version
    if version > SUPPORTED_FORMAT_VERSION or version < 1:
        raise invalid(f"Unsupported format version: v{version} (supported: v{SUPPORTED_FORMAT_VERSION})")
    if not draft.uuid and version > 1:
        raise invalid(f"UUID is required in format v{version}")
    if not draft.location and version < OPTIONAL_LOCATION_VERSION:
        raise invalid(f"Table location is required in format v{version}")
    if version >= OPTIONAL_LOCATION_VERSION and draft.location and not _SCHEME.match(draft.location):
        raise invalid(f"Invalid table location in format v{version}, must be absolute: {draft.location}")
    check_long(draft.last_sequence_number, "last-sequence-number")
    check_long(draft.next_row_id, "next-row-id")
    if version == 1 and draft.last_sequence_number:
        raise invalid(f"Sequence number must be 0 in v1: {draft.last_sequence_number}")


def _check_pieces(draft: TableValues) -> None:
    schema = draft.current_schema()
    if not len(draft.specs) or not len(draft.sort_orders):
        what = "Sort orders" if len(draft.specs) else "Partition specs"
        raise invalid(f"{what} cannot be null or empty")
    spec, order = draft.specs.get(draft.default_spec_id), draft.sort_orders.get(draft.default_sort_order_id)
    if spec is None:
        raise invalid(f"Cannot set default partition spec to unknown spec: {draft.default_spec_id}")
    if order is None:
        raise invalid(f"Cannot set default sort order to unknown sort order: {draft.default_sort_order_id}")
    check_spec(spec, schema)
    check_sort_order(order, schema)
    for _, other in draft.specs.all():
        check_readable(other, schema)


def _check_sequence_numbers(draft: TableValues) -> None:
    for snapshot in draft.snapshots.values():
        number = snapshot.get("sequence-number", 0)
        if number > draft.last_sequence_number:
            raise refused(
                f"Invalid snapshot with sequence number {number} greater than last sequence number "
                f"{draft.last_sequence_number}"
            )
