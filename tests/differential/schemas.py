"""Random schemas, partition specs and sort orders. Most are valid; some have one error."""

from __future__ import annotations

import copy
import string
from collections.abc import Iterator
from random import Random
from typing import Any

Json = dict[str, Any]

OLD_TYPES = [
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "date",
    "time",
    "timestamp",
    "timestamptz",
    "string",
    "uuid",
    "binary",
]
OLD_TYPES += ["fixed[4]", "fixed[16]", "decimal(9,2)", "decimal(38, 10)", "decimal(5,5)"]
NEW_TYPES = ["timestamp_ns", "timestamptz_ns", "variant", "unknown", "geometry", "geography"]
NEW_TYPES += ["geometry(srid:3857)", "geography(OGC:CRS84, karney)"]
WRONG_TYPES = [
    "money",
    "decimal(39,2)",
    "decimal(9,2147483648)",
    "decimal(0,0)",
    "decimal(4,5)",
    "fixed[]",
    "fixed[0]",
    "fixed[2147483648]",
    "fixed[\u0663]",
    "",
    "struct",
    7,
    {"type": "set"},
    "INT",
    "Decimal( 4 , 1 )",
]

DEFAULTS: dict[str, list[Any]] = {
    "boolean": [True, False, "true", 1],
    "int": [0, -5, 2**31 - 1, 2**31, 1.5, "3", True],
    "long": [0, -(2**63), 2**62, 2**63, 2.5, "9"],
    "float": [1.5, -0.25, 1, "1.5", 1e10],
    "double": [0.1, -2.5, 3, "x", 1e300],
    "date": ["2024-02-29", "1969-12-31", "2024-02-30", "2024-2-9", 19000],
    "time": ["10:20:30.123456", "10:20:30", "10:20", "25:00:00", "10:20:30.1", 5],
    "timestamp": [
        "2024-02-29T10:20:30.123456",
        "2024-02-29T10:20:30",
        "2024-02-29T10:20",
        "2024-02-29",
        "2024-02-29T10:20:30+00:00",
        "1969-12-31T23:59:59.999999",
        1,
    ],
    "timestamptz": [
        "2024-02-29T10:20:30.123456+00:00",
        "2024-02-29T10:20:30+00:00",
        "2024-02-29T10:20:30Z",
        "2024-02-29T10:20:30+01:00",
        "2024-02-29T10:20:30",
    ],
    "timestamp_ns": ["2024-02-29T10:20:30.123456789", "2024-02-29T10:20:30", "2024-02-29T10:20:30Z", 1],
    "timestamptz_ns": [
        "2024-02-29T10:20:30.123456789+00:00",
        "2024-02-29T10:20:30.5+00:00",
        "2024-02-29T10:20:30",
    ],
    "string": ["", "x", "naïve ☃", 5, None],
    "uuid": ["f79c3e09-677c-4bbd-a479-3f349cb785e7", "F79C3E09-677C-4BBD-A479-3F349CB785E7", "no", 5],
    "binary": ["", "00ff", "00FF", "0", "xy", 7],
    "fixed": ["00112233", "00112233445566778899aabbccddeeff", "AABBCCDD", "00", 7],
    "decimal": ["1.23", "-0.01", "1.2", "12345678901.23", "0.0000000001", "1E-2", "0.12345", 1.23, "x"],
    "unknown": [None, 1],
    "variant": [None, 1],
    "geometry": [None, "POINT(1 1)"],
    "geography": [None, "POINT(1 1)"],
}
"""Default values by kind of type, right and wrong ones."""

TRANSFORMS = [
    "identity",
    "year",
    "month",
    "day",
    "hour",
    "void",
    "bucket[16]",
    "bucket[3]",
    "truncate[4]",
    "truncate[10]",
]
WRONG_TRANSFORMS = ["bucket[0]", "zorder", "IDENTITY", "Bucket[16]", "bucket", "truncate[x]", "", "days"]
WRONG_TRANSFORMS += ["bucket[-1]", "truncate[0]", "bucket[2147483648]", "hash[2147483648]", "bucket[\u0663]"]


class Words:
    """Random names from a small set, so that names often collide."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    def name(self) -> str:
        rng = self.rng
        if rng.random() < 0.05:
            return rng.choice(["a.b", "naïve ☃", "A", " ", "", "x" * 200, "element", "key", "value"])
        return rng.choice(string.ascii_lowercase) + rng.choice("012345")


def kind_of(type: Any) -> str:
    """The name of a type without its parameters."""
    if isinstance(type, dict):
        return str(type["type"])
    return str(type).split("[")[0].split("(")[0].strip().lower()


def defaults_of(type: Any) -> list[Any]:
    """Default values for a type. The first one is valid."""
    right = {"fixed[16]": "00" * 16, "decimal(38, 10)": "0.0000000001", "decimal(5,5)": "0.12345"}
    right["decimal(5, 5)"] = right["decimal(5,5)"]
    found = DEFAULTS.get(kind_of(type), [None, {}, []])
    return [right[type], *found] if isinstance(type, str) and type in right else found


def random_type(rng: Random, version: int, ids: Iterator[int], depth: int, hostile: float) -> Any:
    """Return a random type. Nested types take their ids from `ids`."""
    roll = rng.random()
    if rng.random() < hostile:
        return rng.choice(WRONG_TYPES)
    if depth and roll < 0.12:
        return {"type": "struct", "fields": random_fields(rng, version, ids, depth - 1, hostile, most=3)}
    if depth and roll < 0.18:
        return {
            "type": "list",
            "element-id": next(ids),
            "element": random_type(rng, version, ids, depth - 1, hostile),
            "element-required": rng.random() < 0.5,
        }
    if depth and roll < 0.24:
        return {
            "type": "map",
            "key-id": next(ids),
            "value-id": next(ids),
            "key": rng.choice(["string", "int"])
            if rng.random() < 0.8
            else random_type(rng, version, ids, 1, 0),
            "value": random_type(rng, version, ids, depth - 1, hostile),
            "value-required": rng.random() < 0.5,
        }
    if (version >= 3 and roll < 0.4) or rng.random() < 0.002:
        return rng.choice(NEW_TYPES)
    return rng.choice(OLD_TYPES)


def random_field(rng: Random, version: int, ids: Iterator[int], depth: int, hostile: float) -> Json:
    """Return a random column. In version 3, it often has default values."""
    field: Json = {"id": next(ids), "name": Words(rng).name()}
    field["type"] = random_type(rng, version, ids, depth, hostile)
    kind = kind_of(field["type"])
    field["required"] = rng.random() < (0.02 if kind == "unknown" else 0.4)
    if rng.random() < 0.2:
        field["doc"] = rng.choice(["", "what it is", "naïve ☃"])
    for name in ("initial-default", "write-default"):
        if rng.random() < (0.2 if version >= 3 else 0.002):
            values = defaults_of(field["type"])
            position = 0 if rng.random() < 0.97 else rng.randrange(len(values))
            if values[position] is not None:
                field[name] = values[position]
    return field


def random_fields(
    rng: Random, version: int, ids: Iterator[int], depth: int, hostile: float, most: int = 8
) -> list[Json]:
    """Return random columns. Their names rarely collide."""
    fields = [random_field(rng, version, ids, depth, hostile) for _ in range(rng.randint(1, most))]
    if rng.random() < 0.97:
        fields = list({field["name"]: field for field in fields}.values())
    return fields


def columns(type: Any) -> Iterator[Json]:
    """Yield the fields of structs at any depth. Elements, keys and values are yielded as fields with `id` and
    `type`."""
    if not isinstance(type, dict):
        return
    if type.get("type") == "struct":
        for field in type["fields"]:
            yield field
            yield from columns(field["type"])
    elif type.get("type") in ("list", "map"):
        for part in ("element",) if type["type"] == "list" else ("key", "value"):
            required = type.get(f"{part}-required", True)
            yield {"id": type[f"{part}-id"], "type": type[part], "name": part, "required": required}
            yield from columns(type[part])


def random_schema(rng: Random, version: int, first_id: int = 1, hostile: float = 0.0) -> Json:
    """Return a random schema, sometimes with identifier fields."""
    ids = iter(range(first_id, first_id + 10_000))
    schema: Json = {"type": "struct", "fields": random_fields(rng, version, ids, 3, hostile)}
    if rng.random() < 0.7:
        schema["schema-id"] = rng.choice([0, 0, 1, 5])
    add_identifiers(rng, schema)
    return schema


def add_identifiers(rng: Random, schema: Json) -> None:
    """Add identifier fields to a schema, sometimes invalid ones."""
    found = list(columns(schema))
    unfit = ("float", "double", "struct", "list", "map", "variant")
    fit = [
        field["id"] for field in schema["fields"] if field["required"] and kind_of(field["type"]) not in unfit
    ]
    if fit and rng.random() < 0.25:
        schema["identifier-field-ids"] = rng.sample(fit, min(len(fit), rng.randint(1, 2)))
    elif rng.random() < 0.01:
        schema["identifier-field-ids"] = [rng.choice([field["id"] for field in found] + [999])]


def changed_schema(rng: Random, version: int, schema: Json, last_column_id: int) -> Json:
    """Return a schema after some random changes. Not all of them are allowed."""
    new = copy.deepcopy(schema)
    ids = iter(range(last_column_id + 1, last_column_id + 10_000))
    hostile = 0.02
    for _ in range(rng.randint(1, 3)):
        found = list(columns(new))
        structs = [
            new,
            *[
                field["type"]
                for field in found
                if isinstance(field["type"], dict) and "fields" in field["type"]
            ],
        ]
        roll = rng.random()
        field = rng.choice(found) if found else None
        if roll < 0.5 or field is None:
            rng.choice(structs)["fields"].append(random_field(rng, version, ids, 2, hostile))
        elif roll < 0.6:
            fields = rng.choice(structs)["fields"]
            if fields:
                fields.pop(rng.randrange(len(fields)))
        elif roll < 0.7:
            field["name"] = Words(rng).name()
        elif roll < 0.75:
            field["required"] = not field["required"]
        elif roll < 0.8:
            field["doc"] = rng.choice(["", "changed", None])
        elif roll < 0.88:
            wider = {"int": "long", "float": "double", "decimal(9,2)": "decimal(11,2)"}
            if isinstance(field["type"], str):
                field["type"] = wider.get(
                    field["type"], rng.choice(OLD_TYPES) if rng.random() < 0.1 else field["type"]
                )
        elif roll < 0.93:
            rng.shuffle(rng.choice(structs)["fields"])
        elif roll < 0.95:
            field["id"] = rng.choice(found)["id"]
        else:
            values = [value for value in defaults_of(field["type"]) if value is not None]
            field["write-default"] = rng.choice(values[:1] * 4 + values or [1])
    if rng.random() < 0.2:
        add_identifiers(rng, new)
    if rng.random() < 0.3:
        new["schema-id"] = rng.choice([0, 1, 7, -1])
    return new


def random_spec(rng: Random, schema: Json, last_partition_id: int, *, with_ids: bool) -> Json:
    """Return a random partition spec for a schema. Its fields often have a suitable type."""
    found = list(columns(schema)) or [{"id": 1, "name": "x", "type": "int"}]
    fields: list[Json] = []
    usual = _primitives(schema) or found
    for position in range(rng.choice([0, 1, 1, 2, 3])):
        column = rng.choice(usual if rng.random() < 0.97 else found)
        transform = _fitting(rng, kind_of(column["type"]))
        source = column["id"] if rng.random() < 0.97 else 4242
        name = f"{column['name']}_{transform.split('[')[0]}"
        if transform == "identity" and rng.random() < 0.8:
            name = column["name"]
        if rng.random() < 0.03:
            name = rng.choice([found[0]["name"], "", name])
        field: Json = {"name": name, "transform": transform, "source-id": source}
        if with_ids:
            field["field-id"] = rng.choice(
                [last_partition_id + 1 + position] * 6 + [1000 + position, 1000, 1007]
            )
        fields.append(field)
    if fields and with_ids and rng.random() < 0.02:
        del fields[-1]["field-id"]
    return {"spec-id": rng.choice([0, 0, 1, 9]), "fields": fields}


def random_order(rng: Random, schema: Json) -> Json:
    """Return a random sort order for a schema."""
    found = list(columns(schema)) or [{"id": 1, "name": "x", "type": "int"}]
    fields = []
    usual = _primitives(schema) or found
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        column = rng.choice(usual if rng.random() < 0.97 else found)
        fields.append(
            {
                "transform": _fitting(rng, kind_of(column["type"])),
                "source-id": column["id"] if rng.random() < 0.97 else 4242,
                "direction": rng.choice(["asc", "desc", "asc", "DESC"] + ["up"] * (rng.random() < 0.03)),
                "null-order": rng.choice(["nulls-first", "nulls-last"] + ["first"] * (rng.random() < 0.03)),
            }
        )
    id = 0 if not fields else 1
    return {"order-id": id if rng.random() < 0.97 else 1 - id, "fields": fields}


def _primitives(schema: Json) -> list[Json]:
    """Return the columns that a spec or sort order can usually use."""
    fields: list[Json] = []
    for field in schema["fields"]:
        if kind_of(field["type"]) == "struct" and isinstance(field["type"], dict):
            fields += _primitives(field["type"])
        elif isinstance(field["type"], str) and kind_of(field["type"]) not in (
            "variant",
            "geometry",
            "geography",
        ):
            fields.append(field)
    return fields


def _fitting(rng: Random, kind: str) -> str:
    """Return a transform, mostly one that accepts this kind of type."""
    if rng.random() < 0.02:
        return rng.choice(WRONG_TRANSFORMS)
    if rng.random() < 0.03:
        return rng.choice(TRANSFORMS)
    if kind == "date" or kind.startswith("timestamp"):
        return rng.choice(["year", "month", "day", "identity", "bucket[16]", "void"])
    if kind == "time":
        return rng.choice(["identity", "bucket[16]", "void"])
    if kind in ("fixed", "uuid"):
        return rng.choice(["identity", "bucket[16]", "void"])
    if kind in ("boolean", "float", "double", "uuid"):
        return rng.choice(["identity", "void"])
    return rng.choice(["identity", "identity", "bucket[16]", "bucket[3]", "truncate[4]", "void"])
