"""`set_catalog_properties`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polaris_spark import Session, connect
from polaris_spark.errors import InputError
from polaris_spark.jobs.registry import call


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with connect(store=f"sqlite://{tmp_path}/c.db", warehouse=str(tmp_path / "warehouse")) as opened:
        yield opened


def test_properties_are_set_removed_and_shown_with_their_former_values(
    session: Session, tmp_path: Path
) -> None:
    warehouse = f"file://{tmp_path}/warehouse"
    rows = call(session, "set_catalog_properties", properties={"gc.enabled": "false", "grace": "4 h"})
    assert rows == [
        ("gc.enabled", "false", None),
        ("grace", "4 h", None),
        ("warehouse", warehouse, warehouse),
    ]
    rows = call(session, "set_catalog_properties", properties={"gc.enabled": "true"}, unset=["grace"])
    assert rows[:2] == [("gc.enabled", "true", "false"), ("grace", None, "4 h")]
    assert call(session, "set_catalog_properties") == [
        ("gc.enabled", "true", "true"),
        ("warehouse", warehouse, warehouse),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"properties": {"gc.enabled": None}}, "is NULL; name it in 'unset'"),
        ({"unset": [None]}, "the argument 'unset' contains NULL"),
        ({"properties": {"nope": "1"}}, "cannot have the property 'nope'"),
        (
            {"properties": {"grace": "env:HOME"}},
            "grace is stored in the catalog, so its value cannot be env:NAME",
        ),
        ({"properties": {"table-default.x": "env:HOME"}}, "table-default.x is stored in the catalog"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(
    session: Session, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        call(session, "set_catalog_properties", **arguments)
