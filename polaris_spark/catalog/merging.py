"""Merging: requests that were made on an older state of a table and do not overlap with what others did since.

| request | what it requires (Iceberg's `UpdateRequirements`) | beside which changes it is carried out |
| --- | --- | --- |
| properties set or removed | nothing of other properties | all; of the same property, the last one counts |
| location, statistics, snapshots removed | nothing of others | all |
| a branch or tag made, moved or removed | its own old snapshot | all that leave that branch or tag alone |
| optional columns added | the current schema, the last column id | others' columns, if `polaris.schema-merge` is true |
| an append | the branch's head | appends, if `polaris.append-rebase` is true: `rebasing` |
| everything else | what it depends on | those that leave that alone; else the ordinary conflict (409) |

Columns are merged when the schema that was sent, and the current one, are the schema that the request was made on and
additions: every column of it as it was and in the same order, anything new optional, identifier columns untouched.
Columns that are new in the same struct differ in name, upper and lower case being the same. The request's new columns
then get new ids after the last one, in the order of those that they were sent with, exactly as the client's own retry
would number them. That is safe because nothing can refer to the ids that were sent: the request holds nothing else but
properties, other than the name mapping. It is off by default, because Iceberg's clients are promised a conflict: with
it, the ids that a client chose are not the ones that its columns get.
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
"""Property of tables and catalogs: whether columns that two clients add at once are merged."""

NAME_MAPPING = "schema.name-mapping.default"
"""The property that names columns by their ids."""

_OF_SCHEMAS = ("assert-current-schema-id", "assert-last-assigned-field-id")


_OF_ONE_VERSION = ("schema-id", "identifier-field-ids")
"""Fields of a schema that are not part of its type."""

_NESTED = ("fields", "element", "key", "value")
"""Fields of a type that hold other types or their fields."""


class _OverlapError(Exception):
    """The additions cannot be merged."""


def is_on(properties: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Whether a table with these properties has a switch on; `default` is what the catalog says."""
    value = properties.get(name)
    return default if value is None else value.strip().lower() == "true"


def merged(draft: TableDraft, requirements: Sequence[Json], updates: Sequence[Json]) -> list[Json] | None:
    """The updates to carry out instead of a request whose requirements failed, or None if there are none.

    Args:
        draft: the table as it is, unchanged.
    """
    added = [update for update in updates if update.get("action") == "add-schema"]
    others = [
        update for update in updates if update.get("action") not in ("add-schema", "set-current-schema")
    ]
    based_on = [r for r in requirements if r.get("type") == "assert-current-schema-id"]
    if (
        len(added) != 1
        or len(based_on) != 1
        or updates[-1].get("action") is None
        or not any(_makes_current(update) for update in updates)
        or len(others) + 2 != len(updates)
        or not all(_is_of_properties(update) for update in others)
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


def _is_of_properties(update: Json) -> bool:
    if update.get("action") == "remove-properties":
        return True
    changed = update.get("updates") or update.get("updated") or {}
    return (
        update.get("action") == "set-properties"
        and isinstance(changed, dict)
        and not {NAME_MAPPING, FORMAT_VERSION} & changed.keys()
    )


def _merge(draft: TableDraft, base: Json, sent: Any, after: int) -> Json:
    """The current schema with the columns that the sent one adds to the base.

    Args:
        after: new columns have ids after it; another is a column that was dropped, to be there again under its id.
    Raises:
        _OverlapError: there is more to it than additions, or they overlap.
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
    """The current type of a column with what the sent one adds to the base."""
    if not isinstance(base, dict):
        _require(base == current == sent)
        return base
    nested = [name for name in _NESTED if name in base]
    rests = [_without(type, *nested) for type in (base, current, sent)]
    _require(rests[0] == rests[1] == rests[2])
    of_fields = _merged_fields if base["type"] == "struct" else _merged_type
    return {**base, **{name: of_fields(base[name], current[name], sent[name]) for name in nested}}


def _merged_fields(base: list[Json], current: list[Json], sent: list[Json]) -> list[Json]:
    """Fields of a struct: each of the base, then what others put behind it, then what was sent to be there."""
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
    """New fields by the field of the base that they stand behind, None at the beginning."""
    behind: dict[int | None, list[Json]] = {id: [] for id in (None, *known)}
    at = None
    for field in fields:
        if field["id"] in behind:
            at = field["id"]
        else:
            behind[at].append(field)
    return behind


def _without(value: Any, *names: str) -> Json:
    """An object without some of its fields, and without null ones."""
    _require(isinstance(value, dict) and all(name == "type" or name in value for name in names))
    return {key: item for key, item in value.items() if key not in names and item is not None}


def _require(holds: bool) -> None:  # noqa: FBT001  # an assertion takes what it asserts
    if not holds:
        raise _OverlapError
