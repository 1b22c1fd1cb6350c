"""Schemas as JSON: lookup of their columns, checks, comparison, and assignment of new column ids.

The rules are the same as in Iceberg's `Schema`, `SchemaParser`, `Types` and `AssignFreshIds` (specification:
https://iceberg.apache.org/spec/#schemas-and-data-types).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from polaris_spark.catalog.metadata.defaults import default_value
from polaris_spark.catalog.metadata.texts import (
    Json,
    find_int,
    find_text,
    get_any,
    get_int,
    get_longs,
    get_objects,
    get_text,
    invalid,
    parse_int,
    refused,
)
from polaris_spark.errors import BadRequestError

NESTED = frozenset({"struct", "list", "map"})

_SIMPLE = frozenset(
    {
        "boolean",
        "int",
        "long",
        "float",
        "double",
        "date",
        "time",
        "timestamp",
        "timestamptz",
        "timestamp_ns",
        "timestamptz_ns",
        "string",
        "uuid",
        "binary",
        "unknown",
        "variant",
    }
)
DEFAULTS = ("initial-default", "write-default")
"""Names of the JSON fields of a column that hold default values."""

# Adjacent parts of a pattern match different characters, so that a pattern never tries a text in several ways.
_PARAMETRIC = {
    "fixed": re.compile(r"fixed\[\s*(0*\d{1,10})\s*\]", re.IGNORECASE | re.ASCII),
    "decimal": re.compile(r"decimal\(\s*(0*\d{1,10})\s*,\s*(0*\d{1,10})\s*\)", re.IGNORECASE | re.ASCII),
    "geometry": re.compile(r"geometry\s*(?:\(([^)]*)\))?", re.IGNORECASE),
    "geography": re.compile(r"geography\s*(?:\(([^,]*)(?:,([^)]*))?\))?", re.IGNORECASE),
}
_SINCE_VERSION_3 = frozenset(
    {"timestamp_ns", "timestamptz_ns", "variant", "unknown", "geometry", "geography"}
)
_MAX_DECIMAL_PRECISION = 38
_DEFAULT_CRS = "OGC:CRS84"
_EDGE_ALGORITHMS = ("spherical", "vincenty", "thomas", "andoyer", "karney")
"""Interpolation algorithms for edges between points; the first one is the default."""


class Column(NamedTuple):
    """A column at any depth: a field of a struct, the element of a list, or the key or value of a map."""

    id: int
    name: str
    """Full name: the names of all enclosing columns and of this column, joined by dots."""
    label: str
    """Last part of the full name, such as `element` for the element of a list."""
    required: bool
    kind: str
    """`struct`, `list`, `map`, or the primitive type's name without parameters."""
    type: str
    """Normalized text of the type, such as `decimal(9, 2)`."""
    parent: int | None
    """Id of the column that directly contains this column; None for a top-level column."""
    has_default: bool
    """Whether the column has an initial default that is not null."""


class SchemaIndex:
    """The columns of one schema by id and by name.

    Raises:
        BadRequestError: the schema is malformed, or contains a name or an id twice.
    """

    __slots__ = ("by_id", "by_name", "highest_id", "identifiers", "schema_id")

    def __init__(self, schema: Json) -> None:
        if schema.get("type") != "struct":
            raise invalid(f"Cannot create schema, not a struct type: {schema.get('type')}")
        self.by_id: dict[int, Column] = {}
        self.by_name: dict[str, int] = {}
        short: dict[str, int] = {}
        self._walk(schema, (), (), None, short)
        for name, id in short.items():
            self.by_name.setdefault(name, id)
        self.schema_id = find_int(schema, "schema-id") or 0
        self.highest_id = max(self.by_id, default=0)
        present = schema.get("identifier-field-ids") is not None
        self.identifiers = frozenset(get_longs(schema, "identifier-field-ids")) if present else frozenset()
        for id in self.identifiers:
            self._check_identifier(id)

    def find(self, name: str) -> Column | None:
        """Return the column with this full name; None if there is no such column.

        The name may leave out `element` and `value` of lists and maps of structs.
        """
        id = self.by_name.get(name)
        return None if id is None else self.by_id[id]

    def ancestors(self, column: Column) -> Iterator[Column]:
        """Yield the columns that contain a column, the innermost first."""
        while column.parent is not None:
            column = self.by_id[column.parent]
            yield column

    def _walk(
        self,
        type: Any,
        path: tuple[str, ...],
        short: tuple[str, ...],
        parent: int | None,
        names: dict[str, int],
    ) -> None:
        for label, id, required, inner, defaults, in_short in _children(type):
            kind, text = type_of(inner)
            here, shortened = (*path, label), ((*short, label) if in_short else short)
            if kind == "unknown" and required:
                raise invalid(f"Cannot create required field with unknown type: {'.'.join(here)}")
            for value in defaults.values():
                default_value(kind, text, value)
            has_default = "initial-default" in defaults
            self._add(Column(id, ".".join(here), label, required, kind, text, parent, has_default))
            names.setdefault(".".join((*short, label)), id)
            self._walk(inner, here, shortened, id, names)

    def _add(self, column: Column) -> None:
        if column.id in self.by_id:
            raise invalid(
                f"Multiple entries with same id {column.id}: {self.by_id[column.id].name} and {column.name}"
            )
        other = self.by_name.get(column.name)
        if other is not None:
            raise refused(
                f"Invalid schema: multiple fields for name {column.name}: {other} and {column.id}",
            )
        self.by_id[column.id] = column
        self.by_name[column.name] = column.id

    def _check_identifier(self, id: int) -> None:
        column = self.by_id.get(id)
        if column is None:
            raise invalid(f"Cannot add fieldId {id} as an identifier field: field does not exist")
        problem = None
        if column.kind in NESTED or column.kind == "variant":
            problem = "not a primitive type field"
        elif not column.required:
            problem = "not a required field"
        elif column.kind in ("double", "float"):
            problem = "must not be float or double field"
        for around in reversed(list(self.ancestors(column))):
            if around.kind != "struct":
                problem = problem or f"must not be nested in {around.name}"
            elif not around.required:
                problem = problem or f"must not be nested in an optional field {around.name}"
        if problem:
            raise invalid(f"Cannot add field {column.label} as an identifier field: {problem}")


def type_of(type: Any) -> tuple[str, str]:
    """Return the kind and the normalized text of a type, such as `decimal` and `decimal(9, 2)`.

    For a struct, list or map, both are `struct`, `list` or `map`.

    Raises:
        BadRequestError: Iceberg has no such type.
    """
    if isinstance(type, dict):
        nested = type.get("type")
        if isinstance(nested, str) and nested in NESTED:
            return nested, nested
    if not isinstance(type, str):
        raise invalid(f"Cannot parse type from json: {type}")
    lower = type.lower()
    if lower in _SIMPLE:
        return lower, lower
    for kind, pattern in _PARAMETRIC.items():
        match = pattern.fullmatch(type)
        if match:
            parts = [part.strip() for part in match.groups() if part is not None]
            if "" in parts:
                raise invalid(f"Cannot parse type string with an empty parameter: {type}")
            return kind, _parametric_text(kind, parts)
    raise invalid(f"Cannot parse type string to primitive: {type[:200]}")


def check_format(index: SchemaIndex, format_version: int) -> None:
    """Refuse a schema with types or default values that the format version does not support.

    Raises:
        BadRequestError: the schema is refused; the message names the columns.
    """
    if format_version >= 3:
        return
    problems = []
    for column in sorted(index.by_id.values()):
        if column.kind in _SINCE_VERSION_3:
            problems.append(f"Invalid type for {column.name}: {column.type} is not supported until v3")
        if column.has_default:
            problems.append(
                f"Invalid initial default for {column.name}: a non-null default is not supported until v3"
            )
    if problems:
        raise BadRequestError(
            f"Invalid schema for v{format_version}:\n- " + "\n- ".join(problems), type="IllegalStateException"
        )


def check_new_types(index: SchemaIndex) -> None:
    """Refuse a new schema with a type that makes Spark and Parquet fail: `fixed` of 0 bytes, or `decimal` with a
    precision of 0 or with a scale above its precision.

    Stored schemas may contain these types, because Iceberg's Java code accepts them.

    Raises:
        BadRequestError: a column has a refused type; the message names the column.
    """
    for column in index.by_id.values():
        if column.kind == "fixed" and column.type == "fixed[0]":
            raise invalid(f"Invalid type for {column.name}: {column.type}: the length must be > 0")
        if column.kind == "decimal":
            precision, scale = (int(number) for number in column.type[len("decimal(") : -1].split(","))
            if precision == 0 or scale > precision:
                raise invalid(
                    f"Invalid type for {column.name}: {column.type}: the precision must be > 0, and not below the scale"
                )


def schema_form(schema: Json) -> object:
    """Return the fields by which schemas are compared: all except the schema's id, including fields unknown to this
    release. Schemas with the same values in these fields count as equal."""
    return normal_form(normal_schema(schema))


def normal_form(schema: Json) -> object:
    """Return the fields by which schemas are compared, as `schema_form` does, but for a schema that `normal_schema` has
    already normalized."""
    identifiers = frozenset(schema.get("identifier-field-ids") or ())
    made = _without_case(schema)
    return {**made, "schema-id": None, "identifier-field-ids": identifiers}


def fresh_ids(
    schema: Json, schema_id: int, next_id: Callable[[], int], base: SchemaIndex | None = None
) -> tuple[Json, SchemaIndex]:
    """Return a copy of a schema with new column ids, and the `SchemaIndex` of the original schema.

    A column whose full name exists in `base` gets its id from `base`; other columns get their ids from `next_id`. All
    fields of a struct are numbered before the columns that are nested in the fields.
    """
    old = SchemaIndex(schema)
    ids: dict[int, int] = {}

    def number(id: int) -> int:
        known = None if base is None else base.find(old.by_id[id].name)
        ids[id] = next_id() if known is None else known.id
        return ids[id]

    fresh = {**renumbered(schema, number), "schema-id": schema_id}
    if old.identifiers:
        fresh["identifier-field-ids"] = [ids[id] for id in schema["identifier-field-ids"]]
    return fresh, old


def normal_schema(schema: Json) -> Json:
    """Return a schema in the form in which metadata stores it, with normalized types and default values.

    The schema must be valid. Creating its `SchemaIndex` checks this.
    """
    return _normal_type(schema)  # type: ignore[no-any-return]  # for an object, an object is returned


def _normal_type(type: Any) -> Any:
    if not isinstance(type, dict):
        return type_of(type)[1]
    made = {name: value for name, value in type.items() if value is not None}
    if type["type"] == "struct":
        made["fields"] = [_normal_field(field) for field in type["fields"]]
    for name in ("element", "key", "value"):
        if name in made:
            made[name] = _normal_type(made[name])
    return made


def _normal_field(field: Json) -> Json:
    made = {name: value for name, value in field.items() if value is not None}
    made["type"] = _normal_type(field["type"])
    for name in DEFAULTS:
        if name in made:
            made[name] = default_value(*type_of(field["type"]), made[name])
    return made


def _children(type: Any) -> Iterator[tuple[str, int, bool, Any, Json, bool]]:
    """Yield (label, id, required, type, default values, is in short names) for each column directly inside a type.

    The last value tells whether the short names of nested columns contain the label. Short names leave out `element`
    and `value` of lists and maps of structs.
    """
    if not isinstance(type, dict):
        return
    if type["type"] == "struct":
        for field in get_objects(type, "fields"):
            label, id, required = get_text(field, "name"), get_int(field, "id"), _flag(field, "required")
            find_text(field, "doc")
            defaults = {key: field[key] for key in DEFAULTS if field.get(key) is not None}
            yield label, id, required, get_any(field, "type"), defaults, True
    elif type["type"] == "list":
        element = get_any(type, "element")
        yield (
            "element",
            get_int(type, "element-id"),
            _flag(type, "element-required"),
            element,
            {},
            _plain(element),
        )
    else:
        key, value = get_any(type, "key"), get_any(type, "value")
        yield "key", get_int(type, "key-id"), True, key, {}, True
        yield "value", get_int(type, "value-id"), _flag(type, "value-required"), value, {}, _plain(value)


def _plain(type: Any) -> bool:
    return type_of(type)[0] != "struct"


def _flag(data: Json, name: str) -> bool:
    value = data.get(name)
    if not isinstance(value, bool):
        raise invalid(f"Cannot parse to a boolean value: {name}: {value}")
    return value


def _parametric_text(kind: str, parts: list[str]) -> str:
    if kind in ("fixed", "decimal"):
        numbers = [parse_int(part) for part in parts]
        if kind == "decimal" and (numbers[0] is None or numbers[0] > _MAX_DECIMAL_PRECISION):
            raise invalid(f"Decimals with precision larger than 38 are not supported: {parts[0][:40]}")
        for part, number in zip(parts, numbers, strict=True):
            if number is None:
                raise invalid(f"Cannot parse type {kind}: {part[:40]} does not fit into 32 bits")
        return f"fixed[{numbers[0]}]" if kind == "fixed" else f"decimal({numbers[0]}, {numbers[1]})"
    crs, *algorithm = parts or [_DEFAULT_CRS]
    if kind == "geometry":
        return f"geometry({crs})"
    named = algorithm[0].lower() if algorithm else _EDGE_ALGORITHMS[0]
    if named not in _EDGE_ALGORITHMS:
        raise invalid(f"Invalid edge interpolation algorithm: {algorithm[0]}")
    return f"geography({crs}, {named})"


def _without_case(type: Any) -> Any:
    """Return a type with type names in lower case, so that the case of coordinate reference systems is ignored."""
    if isinstance(type, str):
        return type.lower()
    made = dict(type)
    for name in ("type", "element", "key", "value"):
        if isinstance(made.get(name), (dict, str)):
            made[name] = _without_case(made[name])
    if "fields" in made:
        made["fields"] = [{**field, "type": _without_case(field["type"])} for field in made["fields"]]
    return made


def renumbered(type: Any, number: Callable[[int], int]) -> Any:
    """Return a copy of a schema or type in which `number(id)` replaces the id of each column."""
    if not isinstance(type, dict):
        return type
    if type["type"] == "struct":
        numbered = [{**field, "id": number(field["id"])} for field in type["fields"]]
        return {
            **type,
            "fields": [{**field, "type": renumbered(field["type"], number)} for field in numbered],
        }
    fresh = dict(type)
    names = ("element",) if type["type"] == "list" else ("key", "value")
    for name in names:
        fresh[f"{name}-id"] = number(type[f"{name}-id"])
    for name in names:
        fresh[name] = renumbered(type[name], number)
    return fresh
