"""Views that the process behind the catalog plans, and that Spark's workers read from this plan."""

from __future__ import annotations

import base64
import json
import pickle
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from polaris_spark.errors import PolarisError
from polaris_spark.spark.views.columns import struct
from polaris_spark.spark.views.planner import plan
from polaris_spark.spark.views.tables import Tables
from tests.views.catalogs import Catalog, Row, configured

HEAVY = (
    "asyncio",
    "fastavro",
    "pyiceberg",
    "rich",
    "ssl",
    "polaris_spark.catalog.catalogs.catalog",
    "polaris_spark.maintenance",
    "polaris_spark.rest.session",
    "polaris_spark.spark.datasource",
    "polaris_spark.spark.session",
)
"""Modules that cost time to import, and that neither planning nor reading a view needs."""

PLANNING = """
import json, sys
from polaris_spark.spark.views.planner import plan
print(json.dumps(plan(**json.loads(sys.argv[1]))))
print(*sys.modules, file=sys.stderr)
"""
READING = """
import base64, json, pickle, sys
import pyarrow as pa
planned = json.loads(sys.argv[1])
read, schema = pickle.loads(base64.b64decode(planned["function"]))
for partition in planned["partitions"]:
    batch = pa.record_batch([pa.array([base64.b64decode(partition)], pa.binary())], ["partition"])
    print(sum(rows.num_rows for rows in read(iter([batch]))))
print(*sys.modules, file=sys.stderr)
"""


def asked(shop: Catalog, view: str, columns: list[str], *filters: list[Any], **options: str) -> str:
    """Return the body of a request for a plan."""
    named = {"view": view, "catalog": "shop", **configured(shop.store), **options}
    return json.dumps({"options": named, "columns": columns, "filters": filters})


def read(body: str) -> list[Row]:
    """Read the rows of a plan as a worker does."""
    planned = plan(**json.loads(body))
    function, _ = pickle.loads(base64.b64decode(planned["function"]))
    found: list[Row] = []
    for partition in planned["partitions"]:
        batch = pa.record_batch([pa.array([base64.b64decode(partition)], pa.binary())], ["partition"])
        found += [row for rows in function(iter([batch])) for row in rows.to_pylist()]
    return found


def test_a_plan_leads_to_the_rows_of_the_view(shop: Catalog) -> None:
    rows = read(asked(shop, "tables", ["name", "entity_id"]))
    wanted = [{name: row[name] for name in ("name", "entity_id")} for row in shop.read("tables")]
    assert len(rows) == 2
    assert rows == wanted


def test_the_schema_of_a_plan_is_that_of_its_columns(shop: Catalog) -> None:
    planned = plan(**json.loads(asked(shop, "tables", ["name", "catalog"])))
    _, schema = pickle.loads(base64.b64decode(planned["function"]))
    by_name = {column.name: column for column in Tables().columns}
    assert schema == struct([by_name["name"], by_name["catalog"]])


@pytest.mark.parametrize(("prune", "found"), [("true", {"orders"}), ("false", {"orders", "returns"})])
def test_filters_leave_rows_out_of_a_plan_for_one_scan(shop: Catalog, prune: str, found: set[str]) -> None:
    body = asked(shop, "tables", ["name"], ["EqualTo", "name", "orders"], prune=prune)
    assert {row["name"] for row in read(body)} == found


def test_filters_on_times_are_microseconds(shop: Catalog) -> None:
    every = shop.read("changes")
    between = sorted({row["committed_at"] for row in every})[len(every) // 2]
    micros = int(between.timestamp()) * 1_000_000 + between.microsecond
    rows = read(
        asked(shop, "changes", ["committed_at"], ["GreaterThan", "committed_at", micros], prune="true")
    )
    assert min(row["committed_at"] for row in rows) <= between  # may be looser
    assert 0 < len(rows) < len(every)
    beyond = [["LessThan", "committed_at", 2**62], ["GreaterThan", "committed_at", -(2**62)]]
    assert len(read(asked(shop, "changes", ["number"], *beyond, prune="true"))) == len(every)


def test_a_plan_that_cannot_be_made_is_refused_in_words(shop: Catalog) -> None:
    with pytest.raises(PolarisError, match="nowhere"):
        plan(**json.loads(asked(shop, "tables", ["name"], realm="nowhere")))


@pytest.mark.parametrize("view", ["tables", "changes", "namespaces", "references"])
def test_neither_planning_nor_reading_imports_anything_heavy(shop: Catalog, view: str) -> None:
    planned = run(PLANNING, asked(shop, view, list(shop.read(view)[0])))
    rows = run(READING, planned.stdout)
    assert sum(map(int, rows.stdout.split())) == len(shop.read(view))
    assert not set(planned.stderr.split()) & {*HEAVY, "pandas", "pyarrow"}
    assert not set(rows.stderr.split()) & set(HEAVY)


def run(program: str, argument: str) -> subprocess.CompletedProcess[str]:
    """Run a program in another process, and return the modules that it has imported."""
    done = subprocess.run(
        [sys.executable, "-c", program, argument], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done
