"""The OpenLineage listener from Maven Central finds the datasets of the catalog."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.programs.starting import SPARK_HOME, Place, started

pytestmark = pytest.mark.programs

LISTENER = "io.openlineage:openlineage-spark_2.13:1.53.0"
STATEMENTS = [
    "CREATE NAMESPACE polaris.shop",
    "CREATE TABLE polaris.shop.orders (id BIGINT, item STRING)",
    "INSERT INTO polaris.shop.orders VALUES (1, 'tea'), (2, 'coffee')",
    "CREATE TABLE polaris.shop.drinks AS SELECT item FROM polaris.shop.orders",
]


def _datasets(events: list[dict[str, Any]], kind: str) -> set[tuple[str, str]]:
    """Namespace and name of every symlink of the inputs or outputs of events."""
    return {
        (link["namespace"], link["name"])
        for event in events
        for dataset in event.get(kind, [])
        for link in dataset["facets"].get("symlinks", {}).get("identifiers", [])
    }


def test_the_listener_finds_the_tables_that_statements_read_and_write(tmp_path: Path) -> None:
    place, out = Place(tmp_path), tmp_path / "events.json"
    arguments = place.arguments
    at = arguments.index("--packages") + 1
    arguments[at] = f"{arguments[at]},{LISTENER}"
    lineage = {
        "spark.extraListeners": "io.openlineage.spark.agent.OpenLineageSparkListener",
        "spark.openlineage.transport.type": "file",
        "spark.openlineage.transport.location": str(out),
    }
    options = [word for key, value in lineage.items() for word in ("--conf", f"{key}={value}")]
    command = [SPARK_HOME / "bin" / "spark-sql", *arguments, *options, "-e", ";".join(STATEMENTS)]
    with started(place, *command) as program:
        program.finish()
    events = [json.loads(line) for line in out.read_text().splitlines() if line.strip()]
    done = [event for event in events if event.get("eventType") == "COMPLETE"]
    orders, drinks = ((place.store, f"shop.{name}") for name in ("orders", "drinks"))
    assert _datasets(done, "outputs") >= {orders, drinks}
    assert _datasets(done, "inputs") == {orders}
    copied = [event for event in done if drinks in _datasets([event], "outputs")]
    assert any(orders in _datasets([event], "inputs") for event in copied)
