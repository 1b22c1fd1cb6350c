"""Merging of added columns: a request that adds columns to an older schema is applied to the current schema.

`docs/concepts/commits.md` describes what happens to other requests if another client changed the table first.

Both the schema in the request and the current schema are compared with the base, which is the schema from which the
client started. Columns are merged if both only add optional columns to the base: all columns of the base are unchanged
and in the same order, and the identifier columns are the same. New columns in the same struct must have different
names, ignoring case.

The new columns of the request get new ids after the table's last column id, in the order of the ids in the request, as
if the client had retried. This is safe because nothing refers to the ids in the request: apart from the schema, the
request contains only changes of properties, and it does not set the name mapping. Merging is off by default, because
Iceberg promises clients a conflict, and because columns may get other ids than the client chose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.requirements import check
from polaris_spark.catalog.metadata.schemas import SchemaIndex, renumbered
from polaris_spark.catalog.metadata.table_pieces import LAST_ADDED
from polaris_spark.catalog.metadata.table_updates import FORMAT_VERSION
from polaris_spark.catalog.metadata.texts import Json, get_int
from polaris_spark.errors import BadRequestError, CommitFailedError

SCHEMA_MERGE = "polaris.schema-merge"
"""Name of the property of tables and catalogs that turns on the merging of columns that two clients add
concurrently."""

NAME_MAPPING = "schema.name-mapping.default"
"""Name of the table property that maps names of columns to column ids."""

_OF_SCHEMAS = ("assert-current-schema-id", "assert-last-assigned-field-id")


_OF_ONE_VERSION = ("schema-id", "identifier-field-ids")
"""Fields of a schema that are not part of its type."""

_NESTED = ("fields", "element", "key", "value")
"""Fields of a nested type in a schema that hold inner types, or a list of fields."""


class _OverlapError(Exception):
    """The columns that two clients added cannot be merged."""


def is_on(properties: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Whether a boolean property of a table is true. `default` is returned if the table does not set the property."""
    value = properties.get(name)
    return default if value is None else value.strip().lower() == "true"


def with_merged_columns(
    draft: TableDraft, requirements: Sequence[Json], updates: Sequence[Json]
) -> list[Json] | None:
    """Return the updates of a request whose requirements failed, changed so that they add the new columns to the
    current schema. Return None if the request cannot be merged.

    Args:
        draft: the table in its current state, without any updates.
    """
    added = [update for update in updates if update.get("action") == "add-schema"]
    others = [
        update for update in updates if update.get("action") not in ("add-schema", "set-current-schema")
    ]
    based_on = [r for r in requirements if r.get("type") == "assert-current-schema-id"]
    if (
        len(added) != 1
        or len(based_on) != 1
        or not any(_makes_current(update) for update in updates)
        or len(others) + 2 != len(updates)
        or not all(_keeps_columns(update) for update in others)
    ):
        return None
    try:
        base = draft.schemas.get(get_int(based_on[0], "current-schema-id"))
        if base is None:
            return None
        for requirement in requirements:
            if requirement.get("type") not in _OF_SCHEMAS:
                check(draft, requirement)
        asserted = [r for r in requirements if r.get("type") == "assert-last-assigned-field-id"]
        after = max((get_int(r, "last-assigned-field-id") for r in asserted), default=0)
        schema = _merge(draft, base, added[0].get("schema"), after)
    except (_OverlapError, BadRequestError, CommitFailedError):
        return None
    return [
        {"action": "add-schema", "schema": schema} if update is added[0] else update for update in updates
    ]


def _makes_current(update: Json) -> bool:
    return update.get("action") == "set-current-schema" and update.get("schema-id") == LAST_ADDED


def _keeps_columns(update: Json) -> bool:
    if update.get("action") == "remove-properties":
        return True
    changed = update.get("updates") or update.get("updated") or {}
    return (
        update.get("action") == "set-properties"
        and isinstance(changed, dict)
        and not {NAME_MAPPING, FORMAT_VERSION} & changed.keys()
    )


def _merge(draft: TableDraft, base: Json, sent: Any, after: int) -> Json:
    """Return the current schema, extended by the columns that the schema `sent` adds to the schema `base`.

    Args:
        base: the schema that the client started from.
        sent: the schema in the request.
        after: last column id that the client knew. A column that is not in `base` and whose id is not higher was
            dropped before; the request would restore it, and is not merged.
    Raises:
        _OverlapError: the sent schema has other changes than additions, or the additions overlap.
        BadRequestError: a schema is malformed.
    """
    current = draft.schemas.get(draft.current_schema_id)
    if not isinstance(sent, dict) or current is None:
        raise _OverlapError
    known, mine = SchemaIndex(base), SchemaIndex(sent)
    theirs = SchemaIndex(current)
    if not known.identifiers == mine.identifiers == theirs.identifiers:
        raise _OverlapError
    _require(all(id > after for id in mine.by_id.keys() - known.by_id.keys()))
    fresh = count(draft.last_column_id + 1)
    ids = {id: id if id in known.by_id else next(fresh) for id in sorted(mine.by_id)}
    plain = [
        {key: value for key, value in schema.items() if key not in _OF_ONE_VERSION}
        for schema in (base, current, renumbered(sent, ids.__getitem__))
    ]
    schema: Json = {**_merged_type(*plain), "schema-id": draft.current_schema_id}
    if base.get("identifier-field-ids") is not None:
        schema["identifier-field-ids"] = base["identifier-field-ids"]
    SchemaIndex(schema)  # refuses full names that are the same, such as `a.b` and `b` in `a`
    return schema


def _merged_type(base: Any, current: Any, sent: Any) -> Any:
    """Return the type `current` of a column, extended by the fields that the type `sent` adds to the type `base`."""
    if not isinstance(base, dict):
        _require(base == current == sent)
        return base
    nested = [name for name in _NESTED if name in base]
    rests = [_without(type, *nested) for type in (base, current, sent)]
    _require(rests[0] == rests[1] == rests[2])
    of_fields = _merged_fields if base["type"] == "struct" else _merged_type
    return {**base, **{name: of_fields(base[name], current[name], sent[name]) for name in nested}}


def _merged_fields(base: list[Json], current: list[Json], sent: list[Json]) -> list[Json]:
    """Return the fields of a struct. Each field of the base is followed by the fields that `current` adds after it,
    then by the fields that `sent` adds after it."""
    known = [field["id"] for field in base]
    theirs, mine = _behind(known, current), _behind(known, sent)
    added = [field for fields in mine.values() for field in fields]
    _require(not any(field["required"] for field in added))
    _require(
        {field["name"].lower() for field in current}.isdisjoint(field["name"].lower() for field in added)
    )
    merged = [*theirs[None], *mine[None]]
    same = zip(base, _in_base(known, current), _in_base(known, sent), strict=True)
    for fields in same:
        rests = [_without(field, "type") for field in fields]
        _require(rests[0] == rests[1] == rests[2])
        id = rests[0]["id"]
        kept = {**fields[0], "type": _merged_type(*(field["type"] for field in fields))}
        merged += [kept, *theirs[id], *mine[id]]
    return merged


def _in_base(known: list[int], fields: list[Json]) -> list[Json]:
    wanted = set(known)
    kept = [field for field in fields if field["id"] in wanted]
    _require([field["id"] for field in kept] == known)
    return kept


def _behind(known: list[int], fields: list[Json]) -> dict[int | None, list[Json]]:
    """Return a dict from the id of each base field to the new fields that follow it. The key None holds the new fields
    before the first base field.

    Args:
        known: ids of the base fields.
    """
    behind: dict[int | None, list[Json]] = {id: [] for id in (None, *known)}
    at = None
    for field in fields:
        if field["id"] in behind:
            at = field["id"]
        else:
            behind[at].append(field)
    return behind


def _without(value: Any, *names: str) -> Json:
    """Return a JSON object without the given fields and without null fields."""
    _require(isinstance(value, dict) and all(name == "type" or name in value for name in names))
    return {key: item for key, item in value.items() if key not in names and item is not None}


def _require(holds: bool) -> None:  # noqa: FBT001  # an assertion's argument is a boolean
    if not holds:
        raise _OverlapError
