"""Default values: which ones are valid for a column's type, and how they are stored."""

from __future__ import annotations

from typing import Any

import pytest

from polaris_spark.errors import BadRequestError
from tests.catalog.metadata.tables import SCHEMA, Catalog, Json, field


def with_default(type: Any, value: Any, name: str = "write-default") -> Json:
    column = field(5, "c", type, **{name: value})
    return {"action": "add-schema", "schema": {**SCHEMA, "fields": [*SCHEMA["fields"], column]}}


@pytest.mark.parametrize(
    ("type", "value", "written"),
    [
        ("boolean", True, True),
        ("int", -(2**31), -(2**31)),
        ("long", 2**63 - 1, 2**63 - 1),
        ("float", 0.1234567890123, 0.12345679),
        ("double", 0.1, 0.1),
        ("decimal(9,2)", "1.20", "1.20"),
        ("decimal(9,2)", "1E-2", "0.01"),
        ("string", "", ""),
        ("uuid", "F79C3E09-677C-4BBD-A479-3F349CB785E7", "f79c3e09-677c-4bbd-a479-3f349cb785e7"),
        ("date", "2024-02-29", "2024-02-29"),
        ("time", "10:20", "10:20:00"),
        ("time", "10:20:30.500", "10:20:30.5"),
        ("timestamp", "2024-02-29T10:20:30.123456789", "2024-02-29T10:20:30.123456"),
        ("timestamptz", "2024-02-29T10:20:30Z", "2024-02-29T10:20:30+00:00"),
        ("timestamp_ns", "2024-02-29T10:20:30.123456789", "2024-02-29T10:20:30.123456789"),
        ("timestamptz_ns", "2024-02-29T10:20+00:00", "2024-02-29T10:20:00+00:00"),
        ("fixed[2]", "00ff", "00FF"),
        ("binary", "", ""),
    ],
)
@pytest.mark.parametrize("name", ["initial-default", "write-default"])
def test_a_default_of_the_type_is_kept(type: str, value: Any, written: Any, name: str) -> None:
    catalog = Catalog().create(version=3)
    catalog.commit(with_default(type, value, name))
    assert catalog.json()["schemas"][1]["fields"][-1][name] == written
    catalog.commit(with_default(type, written, name))
    assert len(catalog.json()["schemas"]) == 2, "the same value, written otherwise, is the same schema"


@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("boolean", 1),
        ("int", 2**31),
        ("int", True),
        ("long", 1.0),
        ("float", 1),
        ("float", 1e39),
        ("double", "1.0"),
        ("decimal(9,2)", "1.2"),
        ("decimal(9,2)", "12345678.90"),
        ("decimal(9,2)", 1.25),
        ("decimal(9,2)", "1_0.00"),
        ("decimal(9,2)", "NaN"),
        ("string", 5),
        ("uuid", "f79c3e09677c4bbda4793f349cb785e7"),
        ("date", "2023-02-29"),
        ("date", 19000),
        ("time", "24:00"),
        ("timestamp", "2024-02-29T10:20:30+00:00"),
        ("timestamp", "2024-02-29"),
        ("timestamptz", "2024-02-29T10:20:30+01:00"),
        ("timestamptz", "2024-02-29T10:20:30"),
        ("timestamp_ns", "2263-01-01T00:00:00"),
        ("fixed[2]", "00"),
        ("binary", "0g"),
        ({"type": "list", "element-id": 6, "element": "int", "element-required": True}, [1]),
        ({"type": "struct", "fields": []}, {}),
        ("variant", 1),
        ("unknown", 1),
        ("geometry", "POINT(1 1)"),
    ],
)
def test_a_default_of_another_type_is_refused(type: Any, value: Any) -> None:
    catalog = Catalog().create(version=3)
    for name in ("initial-default", "write-default"):
        with pytest.raises(BadRequestError, match=r"default|is not supported"):
            catalog.commit(with_default(type, value, name))


def test_types_are_written_in_their_normal_form() -> None:
    catalog = Catalog().create(version=3)
    types = {
        "DECIMAL( 9,2 )": "decimal(9, 2)",
        "geometry": "geometry(OGC:CRS84)",
        "geography": "geography(OGC:CRS84, spherical)",
        "geography(srid:1, Karney)": "geography(srid:1, karney)",
    }
    for type in types:
        catalog.commit(with_default(type, None))
    written = [schema["fields"][-1]["type"] for schema in catalog.json()["schemas"][1:]]
    assert written == list(types.values())
    catalog.commit(with_default("geometry(ogc:crs84)", None))
    assert len(catalog.json()["schemas"]) == 1 + len(types)


@pytest.mark.parametrize("type", ["geography(x, flat)", "geometry()", "geography(, karney)"])
def test_a_parameter_that_cannot_be_is_refused(type: str) -> None:
    with pytest.raises(BadRequestError, match=r"Invalid edge|empty parameter"):
        Catalog().create(version=3).commit(with_default(type, None))
