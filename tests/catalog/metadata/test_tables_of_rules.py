"""The tables of rules in docstrings contain every update, and the tests that they name exist."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from polaris_spark.catalog.metadata import table_updates, view_updates

HERE = Path(__file__).parent


@pytest.mark.parametrize("module", [table_updates, view_updates])
def test_each_update_has_rules_and_tests_that_name_it(module: ModuleType) -> None:
    rows = [line.strip("| ").split(" | ") for line in (module.__doc__ or "").splitlines() if line[:1] == "|"][
        2:
    ]
    listed = {name for row in rows for name in row[0].split(", ")}
    assert listed - {""} >= set(module._UPDATES)
    found: dict[str, str] = {}
    for row in rows:
        test = row[-1]
        assert re.fullmatch(r"test_\w+", test), row
        found.setdefault(test, (HERE / f"{test}.py").read_text())
    text = "".join(found.values()) + (HERE / "tables.py").read_text()
    assert [name for name in module._UPDATES if f'"{name}"' not in text] == []
