"""Metadata of materialized views. A materialized view is a view with a storage table, which holds the result of its
query.

The storage table of `db.v` is the table `db.v.storage`. No namespace lists it, because `db.v` is not a namespace. A
view is materialized if it has the property `materialized_view_metadata`. Both the view and the storage table have this
property; its values are the JSON documents of the draft specification of materialized views, design 1 (issue 6420 of
Apache Iceberg).

A refresh commits a snapshot of the storage table. The snapshot's summary has a record of the refresh
(`refresh_records`). Whenever the storage table changes, the documents of the view and of the storage table are computed
again from the snapshots. So they are correct after rollbacks, compactions and expiry of snapshots.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Final

from polaris_spark.catalog.entities.entities import NameEntry, TableName, find, namespace_key, table_key
from polaris_spark.catalog.metadata.rows import MATERIALIZED, View
from polaris_spark.catalog.metadata.texts import Json, decode, encode, get_text
from polaris_spark.catalog.metadata.view_draft import ViewDraft
from polaris_spark.catalog.rows import VIEW
from polaris_spark.commits.state import State
from polaris_spark.errors import AlreadyExistsError, BadRequestError, InputError
from polaris_spark.property_values import duration_ms, flag

METADATA: Final = MATERIALIZED
"""Property of views and storage tables that contains the JSON document of the draft specification."""
STORAGE: Final = "storage"
"""Last part of the name of a storage table."""
STORAGE_TABLE: Final = "storage-table"
"""Field of a view version: the identifier of the storage table. It is a field of the newer draft of the specification
of materialized views (pull request 11041 of Apache Iceberg)."""
STORAGE_LOCATION: Final = "storage-table-location"
ALLOW_STALE: Final = "allow-stale-data"
STRATEGY: Final = "refresh-strategy"
STRATEGIES: Final = ("full", "incremental")
_DEFAULTS: Final = {ALLOW_STALE: "false", STRATEGY: "full"}
"""Default values of the properties that set fields of the view's document."""
MAX_STALENESS: Final = "max-staleness"
"""View property: the maximum time, such as `1 hour`, for which stale data is returned after its refresh if
`allow-stale-data` is true. Without it, stale data is returned however old it is."""
INCREMENTAL_LIMIT: Final = "incremental-limit"
"""View property: the maximum number of bytes that an incremental refresh may read, as a fraction of the bytes that a
full refresh reads, such as `0.5` (the default). If the change is larger, the refresh is full."""
REFRESH_RETENTION: Final = "refresh-retention"
"""View property: how long, such as `7 d` (the default), after the last refresh of a view with the strategy
`incremental` the procedure `expire` keeps the snapshots that this refresh read."""
HIDDEN: Final = "polaris_state_"
"""Beginning of the names of the storage table's columns that the view does not show. Incremental refreshes use them."""
STATE: Final = "state-columns"
"""Field of a refresh record, beyond the draft specification: the hidden columns of the storage table (`name`, `id`, and
what the column `holds`)."""
SESSION: Final = "session"
"""Field of a refresh record, beyond the draft specification: the settings of the Spark session on which results of
queries depend, such as the time zone."""
TIME_TRAVEL: Final = "time-travel"
"""View property: whether the storage table's document lists the refreshes of all its snapshots, not only the current
refresh."""
STORAGE_PROPERTIES: Final = (
    "write.",
    "read.",
    "commit.",
    "history.",
    "gc.",
    "polaris.",
    "format-version",
)
"""Beginnings of the names of properties that are set on the storage table, not on the view."""


def storage_name(view: TableName) -> TableName:
    """Return the name of the storage table of a materialized view."""
    return TableName((*view.namespace, view.name), STORAGE)


def is_materialized(view: View) -> bool:
    """Whether a view is materialized."""
    return METADATA in view.properties


def view_of(state: State, table: TableName) -> tuple[TableName, NameEntry, View] | None:
    """Return the materialized view to which a storage table belongs; None if the table is not a storage table."""
    if table.name != STORAGE or len(table.namespace) < 2:
        return None
    name = TableName(table.namespace[:-1], table.namespace[-1])
    found = find(state, table_key(name, VIEW))
    if found is None:
        return None
    view = state.get(found.content, View)
    return (name, found, view) if is_materialized(view) else None


def refuse_storage(state: State, table: TableName, action: str) -> None:
    """Check that a table is not a storage table.

    Args:
        action: the action that the caller wants to take, as a past participle, such as `dropped`.
    Raises:
        BadRequestError: the table is the storage table of a materialized view.
    """
    owner = view_of(state, table)
    if owner is not None:
        raise BadRequestError(
            f"{table} is the storage table of materialized view {owner[0]} and cannot be {action} by itself; use "
            "the statements for the materialized view"
        )


def require_no_namespace(state: State, view: TableName) -> None:
    """Check that no namespace has the name of a new materialized view. A table in such a namespace could have the name
    of the storage table.

    Raises:
        AlreadyExistsError: such a namespace exists.
    """
    if find(state, namespace_key((*view.namespace, view.name))) is not None:
        raise AlreadyExistsError(f"Namespace already exists: {view}; a materialized view needs this name")


def require_no_view(state: State, namespace: tuple[str, ...]) -> None:
    """Check that no materialized view has the name of a new namespace.

    Raises:
        AlreadyExistsError: such a materialized view exists.
    """
    if len(namespace) > 1 and view_of(state, TableName(namespace, STORAGE)) is not None:
        raise AlreadyExistsError(f"Materialized view already exists: {'.'.join(namespace)}")


def document_of(properties: Mapping[str, str]) -> Json:
    """Return the document in the property `materialized_view_metadata` of a view or storage table; an empty document if
    the property is missing.

    Raises:
        BadRequestError: the property is not a JSON object.
    """
    text = properties.get(METADATA)
    if text is None:
        return {}
    try:
        return decode(text.encode())
    except (BadRequestError, RecursionError) as error:
        raise BadRequestError(f"property {METADATA} is not a JSON object: {error}") from error


def storage_location(properties: Mapping[str, str]) -> str:
    """Return the location of the metadata file of the storage table, given the properties of a view; an empty string if
    the view is not materialized.

    Raises:
        BadRequestError: the document of the view is malformed.
    """
    document = document_of(properties)
    return get_text(document, STORAGE_LOCATION) if METADATA in properties else ""


def set_document(
    properties: MutableMapping[str, str], storage_location: str, before: Mapping[str, str] | None = None
) -> None:
    """Set the document in the properties of a materialized view.

    The properties `allow-stale-data` and `refresh-strategy`, by which users set fields of the document, are moved into
    it. Unknown fields of the document are kept.

    Args:
        properties: the properties of the view; changed.
        storage_location: location of the storage table's metadata file.
        before: the properties before the change; None for a new view.
    Raises:
        BadRequestError: a value is not allowed, or the change removes the document.
    """
    if before is not None and METADATA not in properties:
        raise BadRequestError(f"property {METADATA} cannot be removed; drop the materialized view instead")
    document = document_of(properties)
    if ALLOW_STALE in properties:
        document[ALLOW_STALE] = _checked(flag, ALLOW_STALE, properties.pop(ALLOW_STALE))
    if STRATEGY in properties:
        document[STRATEGY] = properties.pop(STRATEGY).strip().lower()
    if not isinstance(document.get(ALLOW_STALE, False), bool):
        raise BadRequestError(f"{ALLOW_STALE} is {document[ALLOW_STALE]!r}; it must be true or false")
    if document.get(STRATEGY, "full") not in STRATEGIES:
        raise BadRequestError(f"{STRATEGY} is {document[STRATEGY]!r}; it must be 'full' or 'incremental'")
    if MAX_STALENESS in properties:
        _checked(duration_ms, MAX_STALENESS, properties[MAX_STALENESS])
    if TIME_TRAVEL in properties:
        _checked(flag, TIME_TRAVEL, properties[TIME_TRAVEL])
    if REFRESH_RETENTION in properties:
        _checked(duration_ms, REFRESH_RETENTION, properties[REFRESH_RETENTION])
    if INCREMENTAL_LIMIT in properties:
        _checked(_limit, INCREMENTAL_LIMIT, properties[INCREMENTAL_LIMIT])
    document[STORAGE_LOCATION] = storage_location
    properties[METADATA] = encode(document).decode()


def _checked(parse: Any, name: str, text: str) -> Any:
    try:
        return parse(name, text)
    except InputError as error:
        raise BadRequestError(str(error)) from error


def _limit(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise InputError(f"{name} is {text!r}; it must be a number that is not negative, such as 0.5")
    return value


def incremental_limit(view: View) -> float:
    """Return the maximum number of bytes that an incremental refresh may read, as a fraction of the bytes of a full
    refresh."""
    return float(view.properties.get(INCREMENTAL_LIMIT, "0.5"))


def refresh_retention_ms(view: View) -> int:
    """Return how long `expire` keeps the snapshots that the last refresh of a view read, in milliseconds."""
    return duration_ms(REFRESH_RETENTION, view.properties.get(REFRESH_RETENTION, "7 d"))


def has_time_travel(view: View) -> bool:
    """Whether the storage table's document lists all refreshes whose rows still exist."""
    return view.properties.get(TIME_TRAVEL, "false").strip().lower() == "true"


def allows_stale(view: View) -> bool:
    """Whether a materialized view returns stale data (field `allow-stale-data`, by default false)."""
    return document_of(view.properties).get(ALLOW_STALE, False) is True


def strategy_of(view: View) -> str:
    """Return the refresh strategy of a materialized view: `full` or `incremental`."""
    return str(document_of(view.properties).get(STRATEGY, "full"))


def split_updates(updates: Sequence[Json]) -> tuple[list[Json], list[Json]]:
    """Divide metadata updates into those of a materialized view and those of its storage table, and return both lists.
    Updates of properties whose names begin with `STORAGE_PROPERTIES` are for the storage table. If an update removes a
    property that sets a field of the document, an update that sets the default of the field is added.

    Args:
        updates: metadata updates that a client sent for the view, as in the REST protocol.
    """
    of_view: list[Json] = []
    of_storage: list[Json] = []
    for update in updates:
        action, given = update.get("action"), update.get("updates")
        if action == "set-properties" and isinstance(given, Mapping):
            properties = {k: v for k, v in given.items() if k.startswith(STORAGE_PROPERTIES)}
            of_storage += storage_updates(properties)
            rest = {k: v for k, v in given.items() if k not in properties}
            of_view += [{**update, "updates": rest}] if rest or not properties else []
        elif action == "remove-properties" and isinstance(update.get("removals"), list):
            names = [one for one in update["removals"] if str(one).startswith(STORAGE_PROPERTIES)]
            of_storage += [{**update, "removals": names}] if names else []
            of_view.append({**update, "removals": [one for one in update["removals"] if one not in names]})
            default = {one: text for one, text in _DEFAULTS.items() if one in update["removals"]}
            of_view += [{"action": "set-properties", "updates": default}] if default else []
        else:
            of_view.append(update)
    return of_view, of_storage


def storage_updates(properties: Mapping[str, str]) -> list[Json]:
    """Return metadata updates that set properties of a storage table."""
    others = {name: text for name, text in properties.items() if name != "format-version"}
    found: list[Json] = [{"action": "set-properties", "updates": others}] if others else []
    version = properties.get("format-version")
    if version is None:
        return found
    if not version.isdecimal():
        raise BadRequestError(f"format-version is {version!r}; it must be a number such as 2")
    return [{"action": "upgrade-format-version", "format-version": int(version)}, *found]


def make_ordinary(draft: ViewDraft) -> None:
    """Turn a materialized view into an ordinary view: remove the document, and the identifiers of the storage table."""
    del draft.own_properties()[METADATA]
    draft.versions.replace(lambda version: {k: v for k, v in version.items() if k != STORAGE_TABLE})


def with_storage_table(version: Json, view: TableName) -> Json:
    """Return a view version with the identifier of the storage table (`STORAGE_TABLE`)."""
    name = storage_name(view)
    return {**version, STORAGE_TABLE: {"namespace": list(name.namespace), "name": name.name}}
