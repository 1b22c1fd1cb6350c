"""Creation of views, and the metadata updates of views in the REST specification.

The rules are the same as in Iceberg's `ViewMetadata.Builder`; the tests are in `tests/catalog/metadata/test_views.py`.

| update | rule | test |
| --- | --- | --- |
| assign-uuid | a uuid that is set cannot be changed | test_views |
| upgrade-format-version | not to an older version; 1 is the only version | test_views |
| add-schema | an equal existing schema is reused; a new schema gets the highest id + 1 | test_views |
| add-view-version | an equal existing version is reused | test_views |
| | a new version gets the sent id, or the highest id + 1 if that is larger | test_views |
| | schema -1 means the schema added last; queries must be SQL, at most one for each dialect | test_views |
| set-current-view-version | -1 means the version added last; the version must exist | test_views |
| | the change is logged, with the time of the version if it is new, otherwise the current time | test_views |
| set-location | the same location changes nothing; trailing slashes are kept | test_views |
| set-properties | all names and values are allowed | test_views |
| remove-properties | unknown names are ignored | test_views |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polaris_spark.catalog.metadata.bounds import require_within
from polaris_spark.catalog.metadata.pieces import form_digest
from polaris_spark.catalog.metadata.requirements import failed, same_uuid
from polaris_spark.catalog.metadata.rows import NO_OBJECTS, VIEW_FORMAT_VERSION
from polaris_spark.catalog.metadata.schemas import (
    SchemaIndex,
    check_new_types,
    normal_form,
    normal_schema,
)
from polaris_spark.catalog.metadata.table_pieces import LAST_ADDED, last_added
from polaris_spark.catalog.metadata.table_updates import newer_name, remove_properties, strip_trailing_slash
from polaris_spark.catalog.metadata.texts import (
    Json,
    as_object,
    find_text,
    get_int,
    get_long,
    get_object,
    get_objects,
    get_text,
    get_text_map,
    get_texts,
    invalid,
    refused,
)
from polaris_spark.catalog.metadata.view_draft import ViewDraft
from polaris_spark.clock import CheckTime, unlimited
from polaris_spark.errors import BadRequestError


def check_view(draft: ViewDraft, requirement: Json) -> None:
    """Check one requirement of a commit against the draft of a view. Call this before the updates are applied.

    Raises:
        CommitFailedError: the requirement does not hold.
        BadRequestError: the requirement is unknown, malformed, or not a requirement for views.
    """
    type = as_object(requirement, "update requirement").get("type")
    if type != "assert-view-uuid":
        known = isinstance(type, str) and type.startswith("assert-")
        problem = f"Cannot validate {type} against a view" if known else f"Unknown update requirement: {type}"
        raise BadRequestError(problem, type="ValidationException")
    uuid = get_text(requirement, "uuid")
    if not same_uuid(uuid, draft.uuid):
        raise failed(f"view UUID does not match: expected {draft.uuid} != {uuid}")


def apply_view_updates(draft: ViewDraft, updates: Sequence[Json]) -> None:
    """Apply updates of the REST specification to the draft of a view, in order.

    Raises:
        BadRequestError: an update is unknown, malformed, not possible, or not an update for views.
    """
    for update in updates:
        draft.check_time()
        action = as_object(update, "metadata update").get("action")
        apply_one = _UPDATES.get(action.lower()) if isinstance(action, str) else None
        if action is None:
            raise invalid("Cannot parse metadata update. Missing field: action")
        if apply_one is None:
            raise BadRequestError(
                f"Cannot apply update {action} to a view", type="UnsupportedOperationException"
            )
        apply_one(draft, update)


def create_view(
    request: Json, *, uuid: str, location: str, now_ms: int, check_time: CheckTime = unlimited
) -> ViewDraft:
    """Return the draft of a new view.

    Args:
        request: `schema`, `view-version` and optionally `properties` (the REST specification's CreateViewRequest).
        uuid: UUID of the view.
        location: location of the view. This function ignores the location in the request, which the caller handles.
        now_ms: the current time, milliseconds since 1970 UTC.
        check_time: called at each step; raises an error to abort work that takes too long.
    Raises:
        BadRequestError: the request is malformed, has no query, or has a query that is not SQL.
    """
    as_object(request, "create view request")
    draft = ViewDraft(None, NO_OBJECTS, now_ms=now_ms, check_time=check_time)
    draft.uuid, draft.location = uuid, strip_trailing_slash(location)
    if request.get("properties") is not None:
        draft.own_properties().update(get_text_map(request, "properties"))
    version = read_version({**get_object(request, "view-version"), "version-id": 1, "schema-id": LAST_ADDED})
    others = {r["type"] for r in version["representations"] if r["type"].lower() != "sql"}
    if others:
        raise BadRequestError(
            f"Found unsupported view representations: {sorted(others)}", type="IllegalStateException"
        )
    if not version["representations"]:
        raise BadRequestError("Cannot create view without specifying a query", type="IllegalStateException")
    check_time()
    _add_schema(draft, request)
    _add_version(draft, {"view-version": version})
    _set_current_version(draft, {"view-version-id": LAST_ADDED})
    return draft


def read_version(version: Json) -> Json:
    """Check the fields of a view version that every reader needs, and return the version unchanged.

    Raises:
        BadRequestError: a field is missing or malformed.
    """
    get_int(version, "version-id")
    get_int(version, "schema-id")
    get_long(version, "timestamp-ms")
    get_text_map(version, "summary")
    find_text(version, "default-catalog")
    get_texts(version, "default-namespace")
    for representation in get_objects(version, "representations"):
        if get_text(representation, "type").lower() == "sql":
            get_text(representation, "sql")
            get_text(representation, "dialect")
    return version


def _add_schema(draft: ViewDraft, update: Json) -> None:
    schema = get_object(update, "schema")
    check_new_types(SchemaIndex(schema))
    schema = normal_schema(schema)
    digest = form_digest(normal_form(schema))
    if draft.schemas.like(digest) is not None:
        return
    require_within("schemas of a table or view", len(draft.schemas) + 1)
    id = draft.schemas.next_id()
    draft.schemas.add(id, {**schema, "schema-id": id}, digest=digest)
    draft.last_added_schema_id = id
    draft.record("add-schema", id)


def _add_version(draft: ViewDraft, update: Json) -> None:
    version = read_version(get_object(update, "view-version"))
    id = draft.versions.like(draft.versions.digest(version))
    if id is not None:
        draft.last_added_version_id = id if id in draft.added_versions else None
        return
    require_within("versions of a view", len(draft.versions) + 1)
    id = draft.versions.next_id(version["version-id"])
    schema_id = version["schema-id"]
    if schema_id == LAST_ADDED:
        schema_id = last_added("schema", draft.last_added_schema_id)
    if schema_id not in draft.schemas:
        raise invalid(f"Cannot add version with unknown schema: {schema_id}")
    seen: set[str] = set()
    for representation in version["representations"]:
        if representation["type"].lower() != "sql":
            raise BadRequestError(
                f"Cannot serialize unsupported view representation: {representation['type']}",
                type="UnsupportedOperationException",
            )
        dialect = representation["dialect"].lower()
        if dialect in seen:
            raise invalid(f"Invalid view version: Cannot add multiple queries for dialect {dialect}")
        seen.add(dialect)
    draft.versions.add(id, {**version, "version-id": id, "schema-id": schema_id})
    draft.added_versions.add(id)
    draft.last_added_version_id = id
    draft.record("add-view-version", id)


def _set_current_version(draft: ViewDraft, update: Json) -> None:
    id = get_int(update, "view-version-id")
    if id == LAST_ADDED:
        if draft.last_added_version_id is None:
            raise refused("Cannot set last version id: no current version id has been set")
        id = draft.last_added_version_id
    if id == draft.current_version_id:
        return
    version = draft.versions.get(id)
    if version is None:
        raise invalid(f"Cannot set current version to unknown version: {id}")
    draft.current_version_id = id
    time = version["timestamp-ms"] if id in draft.added_versions else draft.now_ms
    draft.log_item = b'{"timestamp-ms":%d,"version-id":%d}' % (time, id)
    draft.record("set-current-view-version", id)


def _assign_uuid(draft: ViewDraft, update: Json) -> None:
    uuid = get_text(update, "uuid")
    if draft.uuid and uuid != draft.uuid:
        raise invalid("Cannot reassign uuid")
    if not draft.uuid:
        draft.uuid = uuid
        draft.record("assign-uuid", uuid)


def _upgrade_format_version(draft: ViewDraft, update: Json) -> None:
    version = get_int(update, "format-version")
    if version < draft.format_version:
        raise invalid(f"Cannot downgrade v{draft.format_version} view to v{version}")
    if version > VIEW_FORMAT_VERSION:
        raise invalid(f"Unsupported format version: {version}")


def _set_location(draft: ViewDraft, update: Json) -> None:
    location = get_text(update, "location")
    if location != draft.location:
        draft.location = location
        draft.record("set-location", location)


def _set_properties(draft: ViewDraft, update: Json) -> None:
    changed = get_text_map(update, newer_name(update, "updates", "updated"))
    if changed:
        draft.own_properties().update(changed)
        draft.record("set-properties", tuple(changed))


_UPDATES: dict[str, Callable[[ViewDraft, Json], None]] = {
    "assign-uuid": _assign_uuid,
    "upgrade-format-version": _upgrade_format_version,
    "add-schema": _add_schema,
    "add-view-version": _add_version,
    "set-current-view-version": _set_current_version,
    "set-location": _set_location,
    "set-properties": _set_properties,
    "remove-properties": remove_properties,
}
