"""The metadata updates of tables in the REST specification, and the rules by which they change a draft.

The rules are the same as in Iceberg's `TableMetadata.Builder`; the tests are modules of `tests/catalog/metadata/`.
Sequences of updates are compared with Iceberg's Java classes in `tests/differential/`; its exemptions list the
differences.

| update | rule | test |
| --- | --- | --- |
| assign-uuid | replaces the uuid if it differs | test_table_updates |
| upgrade-format-version | not to an older version; up to 4; the same version changes nothing | test_table_updates |
| add-schema | an equal existing schema is reused; a new schema gets the highest id + 1 | test_schemas |
| | last-column-id only grows; types and defaults must exist in the format version | test_schemas |
| | a default must fit its column's type; types and defaults are stored in normalized form | test_defaults |
| set-current-schema | -1 means the schema added last; the schema must exist | test_schemas |
| | partition names must not be names of other columns; default spec and order must fit the schema | test_schemas |
| | in every spec, also in old specs, the transform must accept the type of its source column | test_partitioning |
| remove-schemas | not the current schema | test_schemas |
| add-spec | must fit the current schema | test_partitioning |
| | an equal existing spec is reused; a new spec gets the highest id + 1 | test_partitioning |
| | version 1 needs sequential field ids; missing field ids are assigned | test_partitioning |
| set-default-spec | -1 means the spec added last; it must exist after all updates | test_partitioning |
| remove-partition-specs | not the default spec | test_partitioning |
| add-sort-order | must fit the current schema; an equal existing order is reused | test_partitioning |
| | the id of the unsorted order is 0; another new order gets the highest id + 1 | test_partitioning |
| set-default-sort-order | -1 means the order added last; it must exist after all updates | test_partitioning |
| add-snapshot | the id must be new; the sequence number must grow, unless the snapshot has no parent | test_snapshots |
| | after all updates, no sequence number may be above the table's last sequence number | test_snapshots |
| | a summary has an operation (default overwrite) or is left out | test_snapshots |
| | a snapshot without a manifest list (with `manifests` instead) is stored without row ids | test_snapshots |
| | version 3: first-row-id must not be below next-row-id, which grows by added-rows | test_snapshots |
| set-snapshot-ref | the snapshot must exist; main must be a branch; an equal ref changes nothing | test_snapshots |
| | main sets the current snapshot and logs it, with the snapshot's time if it is new, otherwise now | test_snapshots |
| remove-snapshot-ref | without main, there is no current snapshot; an unknown ref changes nothing | test_snapshots |
| remove-snapshots | also removes their statistics, refs and log entries, and all earlier log entries | test_snapshots |
| set-statistics, set-partition-statistics | replaces all statistics of the snapshot | test_snapshots |
| remove-statistics, remove-partition-statistics | an unknown snapshot changes nothing | test_snapshots |
| set-location | trailing slashes are removed; the same location changes nothing | test_table_updates |
| set-properties | `format-version` upgrades the table; other reserved names are not stored | test_table_updates |
| | a property that this package reads as a boolean must be true or false | test_table_updates |
| remove-properties | unknown properties are ignored | test_table_updates |
| add-encryption-key | a known id changes nothing | test_table_updates |
| remove-encryption-key | an unknown id changes nothing | test_table_updates |

Four rules differ from Iceberg's Java code, because that code fails by accident or writes inconsistent metadata:

- `remove-snapshots` ignores unknown ids, even if there are more ids than the table has snapshots (Java then fails);
- partition fields without ids get the next free ids (Java starts at 1000 again);
- a part that a request removed cannot be used by later updates of that request (Java can still make it current);
- locations that differ only in trailing slashes are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polaris_spark.catalog.metadata import table_pieces as pieces
from polaris_spark.catalog.metadata import table_snapshots as snapshots
from polaris_spark.catalog.metadata.bounds import require_within
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.rows import SUPPORTED_FORMAT_VERSION
from polaris_spark.catalog.metadata.texts import (
    Json,
    as_object,
    encode,
    get_int,
    get_object,
    get_text,
    get_text_map,
    get_texts,
    invalid,
    parse_int,
)
from polaris_spark.catalog.metadata.view_draft import ViewDraft
from polaris_spark.errors import BadRequestError, InputError
from polaris_spark.property_values import flag

FORMAT_VERSION = "format-version"

RESERVED_PROPERTIES = frozenset(
    {
        FORMAT_VERSION,
        "uuid",
        "snapshot-count",
        "current-snapshot-id",
        "current-snapshot-summary",
        "current-snapshot-timestamp-ms",
        "current-schema",
        "default-partition-spec",
        "default-sort-order",
    }
)
"""Names of properties that control requests and are never stored (Iceberg's `TableProperties.RESERVED_PROPERTIES`)."""


BOOLEAN_PROPERTIES = frozenset({"gc.enabled", "polaris.append-rebase", "polaris.schema-merge"})
"""Names of table properties whose value must be `true` or `false`."""


def apply_all(draft: TableDraft, updates: Sequence[Json]) -> None:
    """Apply updates of the REST specification to the draft of a table, in order.

    A new table starts with the format version of the first `upgrade-format-version` among the updates.

    Raises:
        BadRequestError: an update is unknown, malformed or not possible.
        CommitFailedError: a new snapshot is based on an older state of the table; the client must retry.
    """
    if draft.base is None and not draft.changes:
        for update in updates:
            if as_object(update, "metadata update").get("action") == "upgrade-format-version":
                version = get_int(update, FORMAT_VERSION)
                _check_supported(version)
                draft.format_version = version
                break
    for update in updates:
        draft.check_time()
        action = as_object(update, "metadata update").get("action")
        apply_one = _UPDATES.get(action.lower()) if isinstance(action, str) else None
        if apply_one is None:
            raise _unknown(action)
        apply_one(draft, update)


def set_properties(draft: TableDraft, update: Json) -> None:
    """Apply the update `set-properties` to a draft."""
    changed = get_text_map(update, newer_name(update, "updates", "updated"))
    if not RESERVED_PROPERTIES.isdisjoint(changed):
        if FORMAT_VERSION in changed:
            upgrade_format_version(draft, {FORMAT_VERSION: parse_version(changed[FORMAT_VERSION])})
        changed = {name: value for name, value in changed.items() if name not in RESERVED_PROPERTIES}
    require_booleans(changed)
    if changed:
        draft.own_properties().update(changed)
        draft.record("set-properties", tuple(changed))


def require_booleans(properties: Mapping[str, str]) -> None:
    """Refuse a property in `BOOLEAN_PROPERTIES` whose value is neither `true` nor `false`.

    Raises:
        BadRequestError: a property is refused; the message names it and its value.
    """
    for name in BOOLEAN_PROPERTIES & properties.keys():
        try:
            flag(name, properties[name])
        except InputError as error:
            raise invalid(str(error)) from error


def remove_properties(draft: TableDraft | ViewDraft, update: Json) -> None:
    """Apply the update `remove-properties` to the draft of a table or view."""
    removed = get_texts(update, newer_name(update, "removals", "removed"))
    if removed:
        properties = draft.own_properties()
        for name in removed:
            properties.pop(name, None)
        draft.record("remove-properties", tuple(removed))


def upgrade_format_version(draft: TableDraft, update: Json) -> None:
    """Apply the update `upgrade-format-version` to a draft."""
    version = get_int(update, FORMAT_VERSION)
    _check_supported(version)
    if draft.base is None and not draft.changes_content:
        draft.format_version = version
    if version < draft.format_version:
        raise invalid(f"Cannot downgrade v{draft.format_version} table to v{version}")
    if version > draft.format_version:
        draft.format_version = version
        draft.record("upgrade-format-version", version)


def newer_name(update: Json, newer: str, older: str) -> str:
    """Return the name that an update uses for a field that the specification renamed.

    This is `older` if the update has a field `older` and no field `newer`, otherwise `newer`.
    """
    return older if older in update and newer not in update else newer


def parse_version(text: str) -> int:
    """Return the value of the property `format-version` as a number.

    Raises:
        BadRequestError: the text is not a 32-bit integer.
    """
    version = parse_int(text)
    if version is None:
        raise invalid(f"Cannot parse property {FORMAT_VERSION} to an integer: {text[:200]}")
    return version


def strip_trailing_slash(location: str) -> str:
    """Return a location without slashes at its end, except the two slashes of a location such as `s3://`.

    Raises:
        BadRequestError: the location is empty.
    """
    if not location:
        raise invalid("path must not be null or empty")
    stripped = location.rstrip("/")
    is_scheme = stripped.endswith(":") and len(location) - len(stripped) >= len("//")
    return f"{stripped}//" if is_scheme else stripped


def _check_supported(version: int) -> None:
    if not 1 <= version <= SUPPORTED_FORMAT_VERSION:
        raise invalid(
            f"Cannot upgrade table to unsupported format version: v{version} "
            f"(supported: v{SUPPORTED_FORMAT_VERSION})"
        )


def _assign_uuid(draft: TableDraft, update: Json) -> None:
    uuid = get_text(update, "uuid")
    if uuid != draft.uuid:
        draft.uuid = uuid
        draft.record("assign-uuid", uuid)


def _set_location(draft: TableDraft, update: Json) -> None:
    location = strip_trailing_slash(get_text(update, "location"))
    if location != draft.location:
        draft.location = location
        draft.record("set-location", location)


def _add_encryption_key(draft: TableDraft, update: Json) -> None:
    key = get_object(update, "encryption-key")
    id = get_text(key, "key-id")
    get_text(key, "encrypted-key-metadata")
    keys = draft.own_encryption_keys()
    if id not in keys:
        require_within("encryption keys of a table", len(keys) + 1)
        keys[id] = [encode(key)]
        draft.record("add-encryption-key", id)


def _remove_encryption_key(draft: TableDraft, update: Json) -> None:
    id = get_text(update, "key-id")
    if draft.own_encryption_keys().pop(id, None) is not None:
        draft.record("remove-encryption-key", id)


def _unknown(action: Any) -> BadRequestError:
    if action is None:
        return invalid("Cannot parse metadata update. Missing field: action")
    if action in ("add-view-version", "set-current-view-version"):
        return BadRequestError(
            f"Cannot apply update {action} to a table", type="UnsupportedOperationException"
        )
    return BadRequestError(f"Unknown metadata update: {action}", type="UnsupportedOperationException")


_UPDATES: dict[str, Callable[[TableDraft, Json], None]] = {
    "assign-uuid": _assign_uuid,
    "upgrade-format-version": upgrade_format_version,
    "add-schema": pieces.add_schema,
    "set-current-schema": pieces.set_current_schema,
    "remove-schemas": pieces.remove_schemas,
    "add-spec": pieces.add_spec,
    "set-default-spec": pieces.set_default_spec,
    "remove-partition-specs": pieces.remove_specs,
    "add-sort-order": pieces.add_sort_order,
    "set-default-sort-order": pieces.set_default_sort_order,
    "add-snapshot": snapshots.add_snapshot,
    "set-snapshot-ref": snapshots.set_snapshot_ref,
    "remove-snapshot-ref": snapshots.remove_snapshot_ref,
    "remove-snapshots": snapshots.remove_snapshots,
    "set-statistics": snapshots.set_statistics,
    "remove-statistics": snapshots.remove_statistics,
    "set-partition-statistics": snapshots.set_partition_statistics,
    "remove-partition-statistics": snapshots.remove_partition_statistics,
    "set-location": _set_location,
    "set-properties": set_properties,
    "remove-properties": remove_properties,
    "add-encryption-key": _add_encryption_key,
    "remove-encryption-key": _remove_encryption_key,
}
