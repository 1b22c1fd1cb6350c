"""Views: updates, requirements, versions and their history, import and export."""

from __future__ import annotations

import json
from typing import Any

import pytest

from polaris_spark.catalog.metadata.metadata_paths import metadata_location
from polaris_spark.catalog.metadata.renderer import render_view
from polaris_spark.catalog.metadata.rows import View
from polaris_spark.catalog.metadata.view_draft import ViewDraft
from polaris_spark.catalog.metadata.view_parser import parse_view
from polaris_spark.catalog.metadata.view_updates import apply_view_updates, check_view, create_view
from polaris_spark.errors import BadRequestError, CommitFailedError
from tests.catalog.metadata.memory import MemoryObjects
from tests.catalog.metadata.tables import LOCATION, NOW, SCHEMA, UUID, Json, field, schema


def sql(text: str, dialect: str = "spark") -> Json:
    return {"type": "sql", "sql": text, "dialect": dialect}


def version(text: str = "select 1", *, id: int = 1, schema_id: int = -1, **others: Any) -> Json:
    value: Json = {
        "version-id": id,
        "timestamp-ms": NOW + id,
        "schema-id": schema_id,
        "summary": {"engine-name": "spark"},
        "default-catalog": "polaris",
        "default-namespace": ["a", "b"],
        "representations": [sql(text)],
    }
    return {**value, **others}


def add(value: Json) -> Json:
    return {"action": "add-view-version", "view-version": value}


def use(id: int = -1) -> Json:
    return {"action": "set-current-view-version", "view-version-id": id}


def add_schema(value: Json) -> Json:
    return {"action": "add-schema", "schema": value}


class Views:
    """One view, and its object store."""

    def __init__(self) -> None:
        self.objects = MemoryObjects()
        self.now = NOW
        self.id = 0

    @property
    def view(self) -> View:
        return self.objects.get(self.id, View)

    def store(self, draft: ViewDraft) -> ViewDraft:
        where = metadata_location(draft, f"{self.now}")
        view, rows = draft.freeze(
            self.objects.new_id, metadata_location=where, entity_id=None if self.id else 9
        )
        self.objects.write(rows)
        self.id = self.objects.put(view)
        return draft

    def create(self, **request: Any) -> Views:
        asked = {
            "name": "v",
            "schema": SCHEMA,
            "view-version": version(),
            "properties": {"a": "1"},
            **request,
        }
        self.store(create_view(asked, uuid=UUID, location=LOCATION, now_ms=self.now))
        return self

    def commit(self, *updates: Json, requirements: tuple[Json, ...] = ()) -> ViewDraft:
        self.now += 1000
        draft = ViewDraft(self.view, self.objects, now_ms=self.now)
        for requirement in requirements:
            check_view(draft, requirement)
        apply_view_updates(draft, updates)
        return self.store(draft)

    def json(self) -> Json:
        found: Json = json.loads(render_view(self.view, self.objects))
        return found


def test_a_new_view_has_version_1_and_schema_0() -> None:
    found = Views().create(schema={**SCHEMA, "schema-id": 4}).json()
    assert found == {
        "view-uuid": UUID,
        "format-version": 1,
        "location": LOCATION,
        "properties": {"a": "1"},
        "schemas": [SCHEMA],
        "current-version-id": 1,
        "versions": [version(schema_id=0)],
        "version-log": [{"timestamp-ms": NOW + 1, "version-id": 1}],
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": None}, "schema"),
        ({"view-version": version(representations=[])}, "without specifying a query"),
        (
            {"view-version": version(representations=[{"type": "plan"}])},
            "unsupported view representations: .'plan'",
        ),
        (
            {"view-version": version(representations=[sql("a"), sql("b", "SPARK")])},
            "multiple queries for dialect spark",
        ),
        ({"view-version": {}}, "timestamp-ms"),
        ({"properties": {"a": 1}}, "Cannot parse to a string value"),
    ],
)
def test_a_view_that_cannot_be_is_refused(change: Json, message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        Views().create(**change)


def test_a_view_is_replaced_as_icebergs_rest_client_does() -> None:
    views = Views().create()
    wider = schema(field(1, "x", "int"))
    holds = ({"type": "assert-view-uuid", "uuid": UUID.upper()},)
    draft = views.commit(add_schema(wider), add(version("select 2", id=2)), use(), requirements=holds)
    found = views.json()
    assert ([s["schema-id"] for s in found["schemas"]], found["current-version-id"]) == ([0, 1], 2)
    assert found["versions"][1] == version("select 2", id=2, schema_id=1)
    assert [entry["version-id"] for entry in found["version-log"]] == [1, 2]
    assert draft.summary() == {
        "updates": "add-schema,add-view-version,set-current-view-version",
        "add-column x": "int",
        "drop-column id": "long required",
        "drop-column at": "timestamptz",
        "drop-column tags": "list",
    }


def test_an_equal_version_is_used_again_and_logged_at_the_time_of_the_change() -> None:
    views = Views().create()
    views.commit(add(version("select 2", id=2, schema_id=0)), use())
    views.commit(use(1))
    found = views.json()
    assert found["current-version-id"] == 1
    assert found["version-log"][-1] == {"timestamp-ms": views.now, "version-id": 1}
    draft = ViewDraft(views.view, views.objects, now_ms=1)
    apply_view_updates(draft, [add(version("select 2", id=9, schema_id=0))])
    assert not draft.changed


def test_a_version_whose_id_is_taken_gets_the_next_one() -> None:
    views = Views().create()
    views.commit(add(version("select 2", id=1, schema_id=0)), use())
    assert views.json()["current-version-id"] == 2


def test_a_view_does_not_lose_a_dialect_unless_it_may() -> None:
    views = Views().create()
    other = add(version(schema_id=0, id=2, representations=[sql("select 1", "trino")]))
    with pytest.raises(BadRequestError, match="loss of view dialects"):
        views.commit(other, use())
    views.commit(
        {"action": "set-properties", "updates": {"replace.drop-dialect.allowed": "true"}}, other, use()
    )
    assert views.json()["current-version-id"] == 2


def test_old_versions_go_with_the_history_up_to_them() -> None:
    views = Views().create(properties={"version.history.num-entries": "2"})
    for id in (2, 3, 4):
        views.commit(add(version(f"select {id}", id=id, schema_id=0)), use())
    found = views.json()
    assert [v["version-id"] for v in found["versions"]] == [4, 3]
    assert [entry["version-id"] for entry in found["version-log"]] == [3, 4]


def test_versions_that_one_request_adds_all_stay() -> None:
    views = Views().create(properties={"version.history.num-entries": "1"})
    updates = [add(version(f"select {id}", id=id, schema_id=0)) for id in (2, 3, 4)]
    views.commit(*updates, use(2))
    assert {v["version-id"] for v in views.json()["versions"]} == {2, 3, 4}


def test_a_property_commit_reads_no_pieces() -> None:
    views = Views().create()
    view, read = views.view, views.objects.read
    draft = ViewDraft(view, views.objects, now_ms=1)
    apply_view_updates(draft, [{"action": "set-properties", "updates": {"b": "2"}}])
    frozen, rows = draft.freeze(views.objects.new_id, metadata_location="x")
    assert (views.objects.read, rows, frozen.properties) == (read, [], {"a": "1", "b": "2"})


def test_plain_fields_are_changed() -> None:
    views = Views().create()
    views.commit(
        {"action": "set-location", "location": "s3://elsewhere/v"},
        {"action": "remove-properties", "removals": ["a"]},
        {"action": "assign-uuid", "uuid": UUID},
        {"action": "upgrade-format-version", "format-version": 1},
    )
    assert (views.json()["location"], views.json().get("properties")) == ("s3://elsewhere/v", None)


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"action": "assign-uuid", "uuid": "other"}, "Cannot reassign uuid"),
        ({"action": "upgrade-format-version", "format-version": 0}, "Cannot downgrade v1 view to v0"),
        ({"action": "upgrade-format-version", "format-version": 2}, "Unsupported format version: 2"),
        ({"action": "set-default-spec", "spec-id": 0}, "Cannot apply update set-default-spec to a view"),
        ({}, "Missing field: action"),
        (use(7), "Cannot set current version to unknown version: 7"),
        (use(), "Cannot set last version id: no current version id has been set"),
        (
            add(version("x", id=2, schema_id=0, representations=[{"type": "drawing"}])),
            "Cannot serialize unsupported view representation: drawing",
        ),
        (add(version("x", id=2)), "Cannot set last added schema: no schema has been added"),
        (add(version("x", id=2, schema_id=7)), "Cannot add version with unknown schema: 7"),
        (
            {"action": "set-properties", "updates": {"version.history.num-entries": "0"}},
            "must be positive but was 0",
        ),
        ({"action": "set-properties", "updates": {"version.history.num-entries": "x"}}, "must be an integer"),
    ],
)
def test_an_update_that_cannot_be_is_refused(update: Json, message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        Views().create().commit(update)


def test_requirements_of_views_are_judged() -> None:
    views = Views().create()
    with pytest.raises(CommitFailedError, match=f"view UUID does not match: expected {UUID} != other"):
        views.commit(requirements=({"type": "assert-view-uuid", "uuid": "other"},))
    with pytest.raises(BadRequestError, match="Cannot validate assert-create against a view"):
        views.commit(requirements=({"type": "assert-create"},))
    with pytest.raises(BadRequestError, match="Unknown update requirement: luck"):
        views.commit(requirements=({"type": "luck"},))


METADATA: Json = {
    "view-uuid": UUID,
    "format-version": 1,
    "location": LOCATION,
    "properties": {"a": "1"},
    "schemas": [{**SCHEMA, "later": 1}, schema(field(9, "x"), **{"schema-id": 5})],
    "current-version-id": 3,
    "versions": [version(id=n, schema_id=0, later=n) for n in (3, 2, 1)],
    "version-log": [{"timestamp-ms": n, "version-id": 1 + n % 3, "later": n} for n in range(20)],
    "later": [{"a": 1}],
}


@pytest.mark.parametrize("indent", [None, 2])
def test_imported_view_metadata_is_exported_with_all_its_fields(indent: int | None) -> None:
    views = Views()
    draft = views.store(parse_view(json.dumps(METADATA, indent=indent), now_ms=NOW))
    assert views.json() == METADATA
    assert draft.summary() == {"updates": "register"}


@pytest.mark.parametrize("name", [name for name in METADATA if name not in ("properties", "later")])
def test_metadata_without_a_required_field_is_refused(name: str) -> None:
    broken = {key: value for key, value in METADATA.items() if key != name}
    with pytest.raises(BadRequestError):
        Views().store(parse_view(json.dumps(broken), now_ms=NOW))


def test_a_current_version_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadRequestError, match="Cannot find current version 8"):
        Views().store(parse_view(json.dumps({**METADATA, "current-version-id": 8}), now_ms=NOW))
