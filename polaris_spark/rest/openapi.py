"""An OpenAPI description of the supported endpoints, generated from the routes and messages.

The messages do not define some parts of bodies (schemas, requirements, updates). These parts are described here in the
detail that clients and random tests need. The specification is
https://github.com/apache/iceberg/blob/main/open-api/rest-catalog-open-api.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

from polaris_spark.rest import messages, unsupported
from polaris_spark.rest.access import Role
from polaris_spark.rest.config import ROUTES
from polaris_spark.rest.router import ICEBERG, Route

Json = dict[str, Any]

_TEXT: Json = {"type": "string"}
_INT: Json = {"type": "integer", "format": "int32"}
_LONG: Json = {"type": "integer", "format": "int64"}
_FLAG: Json = {"type": "boolean"}
_MAP: Json = {"type": "object", "additionalProperties": _TEXT}


def _list(of: Json) -> Json:
    return {"type": "array", "items": of}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: dict[str, Json], **optional: Json) -> Json:
    properties = required | {name.replace("_", "-"): kind for name, kind in optional.items()}
    return {"type": "object", "required": list(required), "properties": properties}


_FIELD = {"id": _INT, "name": _TEXT, "required": _FLAG, "type": _ref("Type")}
_TRANSFORMED = {"transform": _TEXT, "source-id": _INT}
_REPRESENTATION = {"type": {"const": "sql"}, "sql": _TEXT, "dialect": _TEXT}
_VERSION = {
    "version-id": _INT,
    "timestamp-ms": _LONG,
    "schema-id": _INT,
    "summary": _MAP,
    "representations": _list(_object(_REPRESENTATION)),
    "default-namespace": _list(_TEXT),
}
_BLOB = {
    "type": _TEXT,
    "snapshot-id": _LONG,
    "sequence-number": _LONG,
    "fields": _list(_INT),
}
_STATISTICS = {
    "snapshot-id": _LONG,
    "statistics-path": _TEXT,
    "file-size-in-bytes": _LONG,
    "file-footer-size-in-bytes": _LONG,
    "blob-metadata": _list(_object(_BLOB, properties=_MAP)),
}

_PIECES: dict[str, Json] = {
    "Type": {
        "anyOf": [
            {"enum": ["boolean", "int", "long", "string", "date", "timestamp", "decimal(9,2)", "fixed[4]"]},
            _ref("Schema"),
            _object(
                {"type": {"const": "list"}, "element-id": _INT, "element": _TEXT, "element-required": _FLAG}
            ),
            _TEXT,
        ]
    },
    "Schema": _object(
        {"type": {"const": "struct"}, "fields": _list(_object(_FIELD, doc=_TEXT))},
        schema_id=_INT,
        identifier_field_ids=_list(_INT),
    ),
    "PartitionSpec": _object(
        {"fields": _list(_object(_TRANSFORMED | {"name": _TEXT}, field_id=_INT))}, spec_id=_INT
    ),
    "SortOrder": _object(
        {
            "order-id": _INT,
            "fields": _list(
                _object(
                    _TRANSFORMED
                    | {
                        "direction": {"enum": ["asc", "desc"]},
                        "null-order": {"enum": ["nulls-first", "nulls-last"]},
                    }
                )
            ),
        }
    ),
    "Snapshot": _object(
        {"snapshot-id": _LONG, "timestamp-ms": _LONG, "manifest-list": _TEXT, "summary": _MAP},
        parent_snapshot_id=_LONG,
        sequence_number=_LONG,
        schema_id=_INT,
        first_row_id=_LONG,
        added_rows=_LONG,
    ),
    "ViewVersion": _object(_VERSION, default_catalog=_TEXT),
}

_REQUIREMENTS: dict[str, dict[str, Json]] = {
    "assert-create": {},
    "assert-table-uuid": {"uuid": _TEXT},
    "assert-view-uuid": {"uuid": _TEXT},
    "assert-ref-snapshot-id": {"ref": _TEXT, "snapshot-id": {"anyOf": [_LONG, {"type": "null"}]}},
    "assert-last-assigned-field-id": {"last-assigned-field-id": _INT},
    "assert-current-schema-id": {"current-schema-id": _INT},
    "assert-last-assigned-partition-id": {"last-assigned-partition-id": _INT},
    "assert-default-spec-id": {"default-spec-id": _INT},
    "assert-default-sort-order-id": {"default-sort-order-id": _INT},
}

_UPDATES: dict[str, dict[str, Json]] = {
    "assign-uuid": {"uuid": _TEXT},
    "upgrade-format-version": {"format-version": _INT},
    "add-schema": {"schema": _ref("Schema")},
    "set-current-schema": {"schema-id": _INT},
    "remove-schemas": {"schema-ids": _list(_INT)},
    "add-spec": {"spec": _ref("PartitionSpec")},
    "set-default-spec": {"spec-id": _INT},
    "remove-partition-specs": {"spec-ids": _list(_INT)},
    "add-sort-order": {"sort-order": _ref("SortOrder")},
    "set-default-sort-order": {"sort-order-id": _INT},
    "add-snapshot": {"snapshot": _ref("Snapshot")},
    "set-snapshot-ref": {"ref-name": _TEXT, "type": {"enum": ["branch", "tag"]}, "snapshot-id": _LONG},
    "remove-snapshot-ref": {"ref-name": _TEXT},
    "remove-snapshots": {"snapshot-ids": _list(_LONG)},
    "set-statistics": {"statistics": _object(_STATISTICS)},
    "remove-statistics": {"snapshot-id": _LONG},
    "set-partition-statistics": {"partition-statistics": _object(dict(list(_STATISTICS.items())[:3]))},
    "remove-partition-statistics": {"snapshot-id": _LONG},
    "set-location": {"location": _TEXT},
    "set-properties": {"updates": _MAP},
    "remove-properties": {"removals": _list(_TEXT)},
    "add-encryption-key": {"encryption-key": _object({"key-id": _TEXT, "encrypted-key-metadata": _TEXT})},
    "remove-encryption-key": {"key-id": _TEXT},
    "add-view-version": {"view-version": _ref("ViewVersion")},
    "set-current-view-version": {"view-version-id": _INT},
}


@cache
def text(routes: tuple[Route, ...]) -> str:
    """Return the OpenAPI description of the given routes as JSON text."""
    return msgspec.json.encode(description(routes)).decode()


def description(routes: Sequence[Route] = ROUTES) -> Json:
    """Return an OpenAPI 3.1 description of the given routes. Routes that HTTP does not offer, and the route for tokens,
    are left out. The paths have no prefix."""
    paths: dict[str, Json] = {}
    for route in routes:
        # The errors of `TOKENS` have another form.
        if route is unsupported.TOKENS or route.least is Role.LOCAL:
            continue
        paths.setdefault(f"/{route.base}/{route.path}", {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "polaris_spark", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": _schemas([kind for one in routes for kind in (one.body, one.result) if kind]),
            "securitySchemes": {"BearerAuth": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"BearerAuth": []}],
    }


def _operation(route: Route) -> Json:
    parameters = [
        {"name": one, "in": "path", "required": True, "schema": _TEXT}
        for one in re.findall(r"{([^}]+)}", route.path)
    ]
    parameters += [{"name": one, "in": "query", "schema": _TEXT} for one in route.query]
    if route.method in ("POST", "DELETE") and route.base == ICEBERG:
        key = {"type": "string", "format": "uuid"}
        parameters.append({"name": "Idempotency-Key", "in": "header", "schema": key})
    operation: Json = {
        "operationId": route.answer.__name__,
        "parameters": parameters,
        "responses": {
            "2XX": _done(route),
            "default": {
                "description": "not done",
                "content": {"application/json": {"schema": _ref("ErrorResponse")}},
            },
        },
    }
    if route.least is Role.ADMINISTRATOR:
        operation["description"] = "Needs the token of an administrator."
    if route.method in ("POST", "PUT"):
        schema = {"type": "object"} if route.body is None else _ref(route.body.__name__)
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _done(route: Route) -> Json:
    done: Json = {"description": "done"}
    if route.result is not None:
        done["content"] = {"application/json": {"schema": _ref(route.result.__name__)}}
    return done


def _schemas(kinds: Sequence[type]) -> Json:
    kinds = [*dict.fromkeys(kinds), messages.ErrorResponse]
    found = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")[1]
    for commit in ("CommitTableRequest", "CommitViewRequest"):
        found[commit]["properties"] |= {
            "updates": _list(_ref("Update")),
            "requirements": _list(_ref("Requirement")),
        }
    found["CreateTableRequest"]["properties"] |= {
        "schema": _ref("Schema"),
        "partition-spec": _ref("PartitionSpec"),
        "write-order": _ref("SortOrder"),
    }
    found["CreateViewRequest"]["properties"] |= {
        "schema": _ref("Schema"),
        "view-version": _ref("ViewVersion"),
    }
    updates = [_object({"action": {"const": name}} | fields) for name, fields in _UPDATES.items()]
    requirements = [_object({"type": {"const": name}} | fields) for name, fields in _REQUIREMENTS.items()]
    return {**found, **_PIECES, "Update": {"oneOf": updates}, "Requirement": {"oneOf": requirements}}
