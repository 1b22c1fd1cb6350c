"""No stored number exceeds the 32 or 64 bits that Iceberg's Java classes use for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from polaris_spark.catalog.metadata.view_draft import ViewDraft
from polaris_spark.catalog.metadata.view_updates import apply_view_updates, create_view
from polaris_spark.errors import BadRequestError
from tests.catalog.metadata.memory import MemoryObjects
from tests.catalog.metadata.tables import (
    LOCATION,
    NOW,
    SCHEMA,
    Catalog,
    Json,
    add,
    field,
    point,
    schema,
    snapshot,
)
from tests.catalog.metadata.test_snapshots import partition_statistics, statistics
from tests.rest.client import VIEW_VERSION

HUGE = 10**30
INT, LONG = 2**31, 2**63
DIGITS = "9" * 5_000
"""More digits than Python converts to a number."""


def with_spec(transform: str) -> Json:
    """Partition by a column of numbers."""
    return {
        "action": "add-spec",
        "spec": {"fields": [{"name": "p", "source-id": 1, "transform": transform}]},
    }


def with_order(transform: str) -> Json:
    """Sort by a column of numbers."""
    words = {"direction": "asc", "null-order": "nulls-first"}
    fields = [{"source-id": 1, "transform": transform, **words}]
    return {"action": "add-sort-order", "sort-order": {"order-id": 7, "fields": fields}}


def with_type(type: Any) -> Json:
    """Add a column of a type."""
    columns = [*SCHEMA["fields"], field(9, "new", type)]
    return {"action": "add-schema", "schema": {**SCHEMA, "fields": columns}}


def nested(type: str) -> Json:
    """A type two levels down."""
    return {
        "type": "struct",
        "fields": [field(10, "m", {"type": "map", "key-id": 11, "value-id": 12, "key": "string",
                                   "value": type, "value-required": False})],
    }  # fmt: skip  # one line reads as the type that it is


def with_blob(**changed: Any) -> Json:
    """Statistics with one blob."""
    update = statistics(11)
    blob = {"type": "t", "snapshot-id": 11, "sequence-number": 1, "fields": [1], **changed}
    update["statistics"]["blob-metadata"] = [blob]
    return update


WIDTHS = ["0", "-1", "-0", str(INT), f"-{INT}", str(HUGE), DIGITS]
TYPES = [
    "fixed[0]",
    f"fixed[{INT}]",
    f"fixed[{HUGE}]",
    f"fixed[{DIGITS}]",
    "fixed[-1]",
    "fixed[\u0663]",
    "decimal(99,5)",
    "decimal(39, 0)",
    "decimal(0,0)",
    "decimal(5,6)",
    f"decimal(5,{HUGE})",
    f"decimal({DIGITS},{DIGITS})",
    "decimal(-1,0)",
    "decimal(9,-1)",
]
UPDATES: list[Json] = [
    *(with_spec(f"{name}[{width}]") for name in ("bucket", "truncate", "BUCKET") for width in WIDTHS),
    *(with_order(f"{name}[{width}]") for name in ("bucket", "Truncate") for width in WIDTHS),
    *(with_spec(f"{name}[{width}]") for name in ("unknown", "zorder") for width in (INT, HUGE, DIGITS)),
    *(with_type(type) for type in TYPES),
    *(with_type(nested(type)) for type in TYPES),
    *(
        {"action": "add-schema", "schema": schema(field(id, "a"))}
        for id in (INT, -INT - 1, HUGE, 1.0, "1", True)
    ),
    {"action": "add-spec", "spec": {"fields": [{"name": "p", "source-id": INT, "transform": "void"}]}},
    {"action": "add-spec", "spec": {"fields": [{"name": "p", "source-id": 1, "field-id": INT, "transform": "void"}]}},
    *(add(snapshot(12, 5, **{name: LONG})) for name in ("snapshot-id", "timestamp-ms", "sequence-number")),
    *(add(snapshot(12, 5, **{"manifest-list": "m", "first-row-id": 0, "added-rows": n})) for n in (LONG, HUGE, -1)),
    add(snapshot(12, 5, **{"schema-id": INT})),
    add(snapshot(12, 5, **{"parent-snapshot-id": -LONG - 1})),
    point("b", 11, **{"min-snapshots-to-keep": INT}),
    point("b", 11, **{"max-snapshot-age-ms": LONG}),
    point("b", 11, **{"max-ref-age-ms": LONG}),
    statistics(11, LONG),
    partition_statistics(11, LONG),
    with_blob(**{"snapshot-id": LONG}),
    with_blob(**{"sequence-number": HUGE}),
    with_blob(fields=[INT]),
    with_blob(fields=[1.5]),
    {"action": "set-default-sort-order", "sort-order-id": INT},
    {"action": "upgrade-format-version", "format-version": HUGE},
    {"action": "set-properties", "updates": {"format-version": DIGITS}},
]  # fmt: skip  # a table reads as one


@pytest.fixture
def catalog() -> Catalog:
    """A table of format version 3 with one snapshot."""
    made = Catalog().create(version=3)
    made.append(11, **{"first-row-id": 0, "added-rows": 1})
    return made


@pytest.mark.parametrize("update", UPDATES, ids=lambda update: json.dumps(update)[:70])
def test_an_update_with_a_number_that_java_cannot_read_is_refused(catalog: Catalog, update: Json) -> None:
    before = catalog.json()
    with pytest.raises(BadRequestError) as refused:
        catalog.commit(update)
    assert refused.value.status == 400
    assert len(str(refused.value)) < 1_000
    assert catalog.json() == before


@pytest.mark.parametrize(
    "request_",
    [
        *({"schema": schema(field(1, "a", type))} for type in TYPES),
        {"partition-spec": with_spec("bucket[0]")["spec"]},
        {"partition-spec": with_spec(f"truncate[{HUGE}]")["spec"]},
        {"write-order": with_order(f"bucket[{DIGITS}]")["sort-order"]},
        {"properties": {"commit.retry.num-retries": str(INT)}},
        {"properties": {"commit.retry.num-retries": DIGITS}},
        {"properties": {"commit.retry.min-wait-ms": "\u00b2"}},
    ],
    ids=lambda request: json.dumps(request)[:70],
)
def test_a_new_table_with_a_number_that_java_cannot_read_is_refused(request_: Json) -> None:
    with pytest.raises(BadRequestError):
        Catalog().create(**request_)


def _set(*path: str | int, value: Any) -> Callable[[Json], None]:
    def change(metadata: Json) -> None:
        place: Any = metadata
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set("last-column-id", value=INT),
        _set("last-sequence-number", value=LONG),
        _set("last-updated-ms", value=LONG),
        _set("next-row-id", value=HUGE),
        _set("schemas", 0, "schema-id", value=INT),
        _set("schemas", 0, "fields", 0, "type", value=f"fixed[{INT}]"),
        _set("partition-specs", 0, "spec-id", value=INT),
        _set("partition-specs", 0, "fields", 0, "transform", value=f"bucket[{INT}]"),
        _set("partition-specs", 0, "fields", 0, "transform", value=f"other[{HUGE}]"),
        _set("sort-orders", 0, "order-id", value=INT),
        _set("sort-orders", 0, "fields", 0, "transform", value=f"truncate[{DIGITS}]"),
        _set("snapshots", 0, "sequence-number", value=-LONG - 1),
        _set("snapshot-log", 0, "timestamp-ms", value=LONG),
        _set("metadata-log", 0, "timestamp-ms", value=HUGE),
        _set("statistics", value=[{**statistics(11)["statistics"], "file-size-in-bytes": LONG}]),
        _set("statistics", value=[with_blob(fields=[INT])["statistics"]]),
        _set("partition-statistics", value=[partition_statistics(11, HUGE)["partition-statistics"]]),
        _set("refs", "main", "max-ref-age-ms", value=LONG),
    ],
)
def test_a_metadata_file_with_a_number_that_java_cannot_read_is_refused(
    catalog: Catalog, change: Callable[[Json], None]
) -> None:
    metadata = catalog.json()
    Catalog().register(metadata)
    change(metadata)
    with pytest.raises(BadRequestError):
        Catalog().register(metadata)


def test_the_largest_numbers_that_java_reads_are_kept(catalog: Catalog) -> None:
    most = INT - 1
    catalog.commit(with_spec(f"bucket[{most}]"), with_order(f"truncate[{most}]"), with_type(f"fixed[{most}]"))
    catalog.commit(with_spec("truncate[1]"), with_spec("unknown[0]"), with_spec("truncate[x]"))
    catalog.commit(with_type("decimal(38,38)"), with_type("decimal(1,0)"))
    found = catalog.json()
    transforms = [spec["fields"][-1]["transform"] for spec in found["partition-specs"][1:]]
    assert transforms == [f"bucket[{most}]", "truncate[1]", "unknown[0]", "truncate[x]"]
    assert found["schemas"][1]["fields"][-1]["type"] == f"fixed[{most}]"
    assert found["schemas"][2]["fields"][-1]["type"] == "decimal(38, 38)"


def test_an_update_that_needs_a_new_id_is_refused_after_the_last_number(catalog: Catalog) -> None:
    """The catalog counts up from ids in metadata files, which may already contain the highest possible id."""
    metadata = catalog.json()
    most = INT - 1
    metadata["schemas"][0]["schema-id"] = metadata["current-schema-id"] = most
    metadata["partition-specs"][0]["spec-id"] = metadata["default-spec-id"] = most
    metadata["sort-orders"][0]["order-id"] = metadata["default-sort-order-id"] = most
    metadata["next-row-id"] = LONG - 1
    metadata["last-partition-id"] = most
    full = Catalog().register(metadata)
    no_id: Json = {
        "action": "add-spec",
        "spec": {"fields": [{"name": "p", "source-id": 1, "transform": "void"}]},
    }
    with_id: Json = {
        "action": "add-spec",
        "spec": {"fields": [{"name": "p", "source-id": 1, "field-id": 1001, "transform": "void"}]},
    }
    rows = {"first-row-id": LONG - 1, "added-rows": 1}
    for update in (
        with_type("int"), no_id, with_id, with_order("bucket[3]"), add(snapshot(12, 5, parent=11, **rows))
    ):  # fmt: skip  # one line reads as the list that it is
        with pytest.raises(BadRequestError, match=r"does not fit into (32|64) bits"):
            full.commit(update)
    full.commit({"action": "set-properties", "updates": {"a": "1"}})


def test_a_table_that_already_exceeds_the_bound_can_still_be_changed(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:  # a release that read widths of any size
        earlier.setattr(
            "polaris_spark.catalog.metadata.transforms.read_transform", lambda text: text, raising=True
        )
        catalog.commit(with_spec("bucket[0]"), with_spec(f"truncate[{HUGE}]"), with_order("bucket[-1]"))
    catalog.commit(with_spec("bucket[4]"), with_order("bucket[4]"))
    assert [spec["spec-id"] for spec in catalog.json()["partition-specs"]] == [0, 1, 2, 3]
    catalog.commit({"action": "remove-partition-specs", "spec-ids": [1, 2]})
    assert str(HUGE) not in json.dumps(catalog.json()["partition-specs"])


@pytest.mark.parametrize("number", [INT, HUGE, -INT - 1])
@pytest.mark.parametrize("name", ["version-id", "schema-id"])
def test_a_view_version_with_a_number_that_java_cannot_read_is_refused(name: str, number: int) -> None:
    view = create_view(
        {"name": "v", "schema": SCHEMA, "view-version": VIEW_VERSION}, uuid="u", location=LOCATION, now_ms=NOW
    )
    with pytest.raises(BadRequestError):
        apply_view_updates(
            view, [{"action": "add-view-version", "view-version": {**VIEW_VERSION, name: number}}]
        )


@pytest.mark.parametrize("size", ["\u00b2", DIGITS, str(INT), "0", "-1", "x", "-"])
def test_a_view_with_a_size_of_its_history_that_java_cannot_read_is_refused(size: str) -> None:
    request = {
        "name": "v", "schema": SCHEMA, "view-version": VIEW_VERSION,
        "properties": {"version.history.num-entries": size},
    }  # fmt: skip  # one line reads as the request that it is
    objects = MemoryObjects()
    draft = create_view(request, uuid="u", location=LOCATION, now_ms=NOW)
    for number in range(2, 15):
        version = {**VIEW_VERSION, "version-id": number, "summary": {"n": str(number)}}
        apply_view_updates(draft, [{"action": "add-view-version", "view-version": version}])
    assert isinstance(draft, ViewDraft)
    with pytest.raises(BadRequestError, match="must be"):
        draft.freeze(objects.new_id, metadata_location="m")
