"""Random requests and files are either accepted or refused with a clear error. They never cause an internal error."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.requirements import check_all
from polaris_spark.catalog.metadata.table_creation import create_table
from polaris_spark.catalog.metadata.table_parser import parse_table
from polaris_spark.catalog.metadata.table_updates import apply_all
from polaris_spark.catalog.metadata.view_draft import ViewDraft
from polaris_spark.catalog.metadata.view_parser import parse_view
from polaris_spark.catalog.metadata.view_updates import apply_view_updates, create_view
from polaris_spark.errors import RequestError
from tests.catalog.metadata.tables import (
    LOCATION,
    NOW,
    ORDER,
    SCHEMA,
    SPEC,
    UUID,
    Catalog,
    Json,
    add,
    field,
    point,
    snapshot,
)
from tests.catalog.metadata.test_rendering import imported
from tests.catalog.metadata.test_requirements import HOLDS
from tests.catalog.metadata.test_schemas import NESTED
from tests.catalog.metadata.test_snapshots import partition_statistics, statistics
from tests.catalog.metadata.test_table_updates import creating
from tests.catalog.metadata.test_views import METADATA, Views, version

JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    2**31,
    2**70,
    1.5,
    "",
    "x",
    "\ud800",
    "decimal(a)",
    [],
    {},
    [1],
    ["a"],
    [None],
    [[]],
    {"a": 1},
    {"type": ["x"]},
    {"fields": None},
]

MAP = {"type": "map", "key-id": 21, "key": "string", "value-id": 22, "value": "int", "value-required": True}
WIDE = {**SCHEMA, "fields": [*SCHEMA["fields"], field(5, "nested", NESTED), field(20, "map", MAP)]}

UPDATES: list[Json] = [
    *creating(2),
    {"action": "add-schema", "schema": WIDE},
    statistics(11),
    partition_statistics(11),
    add(snapshot(12, 2, parent=11)),
    point("main", 11),
    {"action": "remove-snapshots", "snapshot-ids": [11]},
    {"action": "remove-snapshot-ref", "ref-name": "main"},
    {"action": "remove-statistics", "snapshot-id": 11},
    {"action": "remove-properties", "removals": ["a"]},
    {"action": "remove-schemas", "schema-ids": [4]},
    {"action": "remove-partition-specs", "spec-ids": [4]},
    {"action": "add-encryption-key", "encryption-key": {"key-id": "a", "encrypted-key-metadata": "A"}},
    {"action": "remove-encryption-key", "key-id": "a"},
]
VIEW_UPDATES: list[Json] = [
    {"action": "add-schema", "schema": WIDE},
    {"action": "add-view-version", "view-version": version("select 2", id=2, schema_id=0)},
    {"action": "set-current-view-version", "view-version-id": 1},
    {"action": "set-properties", "updates": {"a": "b"}},
    {"action": "set-location", "location": "s3://x"},
]
TABLE_REQUEST = {
    "name": "t",
    "schema": WIDE,
    "partition-spec": SPEC,
    "write-order": ORDER,
    "properties": {"a": "1"},
}
VIEW_REQUEST = {"name": "v", "schema": SCHEMA, "view-version": version(), "properties": {"a": "1"}}


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths(item, (*path, key))


def spoiled(value: Any, dice: random.Random) -> Any:
    """Return the value with some part removed or replaced."""
    value = copy.deepcopy(value)
    path = dice.choice(list(paths(value)))
    junk = copy.deepcopy(dice.choice(JUNK))
    if not path:
        return junk
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    if dice.random() < 0.25:
        del inner[path[-1]]
    else:
        inner[path[-1]] = junk
    return value


def update_table(update: Any) -> None:
    draft = TableDraft(TABLE.table, TABLE.objects, now_ms=2 * NOW)
    apply_all(draft, [update])
    draft.freeze(TABLE.objects.new_id, metadata_location="x")


def update_view(update: Any) -> None:
    draft = ViewDraft(VIEW.view, VIEW.objects, now_ms=2 * NOW)
    apply_view_updates(draft, [update])
    draft.freeze(VIEW.objects.new_id, metadata_location="x")


def require(requirement: Any) -> None:
    check_all(TableDraft(TABLE.table, TABLE.objects, now_ms=NOW), [requirement])


def new_table(request: Any) -> None:
    draft = create_table(request, uuid=UUID, location=LOCATION, now_ms=NOW)
    draft.freeze(TABLE.objects.new_id, metadata_location="x")


def new_view(request: Any) -> None:
    draft = create_view(request, uuid=UUID, location=LOCATION, now_ms=NOW)
    draft.freeze(VIEW.objects.new_id, metadata_location="x")


def import_table(metadata: Any) -> None:
    parse_table(json.dumps(metadata), now_ms=NOW).freeze(TABLE.objects.new_id, metadata_location="x")


def import_view(metadata: Any) -> None:
    parse_view(json.dumps(metadata), now_ms=NOW).freeze(VIEW.objects.new_id, metadata_location="x")


TABLE = Catalog().create()
TABLE.append(11)
VIEW = Views().create()


@pytest.mark.parametrize(
    ("take", "sources"),
    [
        (update_table, UPDATES),
        (update_view, VIEW_UPDATES),
        (require, HOLDS),
        (new_table, [TABLE_REQUEST]),
        (new_view, [VIEW_REQUEST]),
        (import_table, [imported(1), imported(2), imported(3)]),
        (import_view, [METADATA]),
    ],
)
def test_junk_is_refused_or_harmless(take: Callable[[Any], None], sources: list[Json]) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    dice = random.Random(seed)
    refused = 0
    for _ in range(300):
        try:
            take(spoiled(dice.choice(sources), dice))
        except RequestError as error:
            refused += error.status in (400, 409)
    assert refused > 30
