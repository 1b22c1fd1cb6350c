"""Whether a materialized view is fresh, what refreshes record, and which snapshots expiry keeps for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from polaris_spark.catalog.entities.entities import TableName
from polaris_spark.catalog.files.files import local_path
from polaris_spark.catalog.materialized.outside_sources import OutsideSources
from polaris_spark.catalog.materialized.query_pinning import pin
from polaris_spark.catalog.materialized.source_changes import RefreshNeeds, snapshots_since
from polaris_spark.catalog.materialized.view_sources import PinnedQuery, ViewQuery
from polaris_spark.catalog.tables.schema_merge import NAME_MAPPING
from polaris_spark.errors import BadRequestError
from polaris_spark.jobs.registry import call
from tests.rest.client import VIEW_VERSION, Client, path, view, view_request
from tests.rest.materialized import SCHEMA, refresh
from tests.rest.materialized import snapshot_commit as snapshot
from tests.rest.view_requests import PROPERTY, STORAGE, create, document, how, loaded, rows, state, table


def source(catalog: Client, where: str, snapshot_id: int) -> dict[str, Any]:
    """The recorded state of a table."""
    uuid = catalog.ok("GET", where)["metadata"]["table-uuid"]
    name = where.rpartition("/")[2]
    return {
        "type": "table",
        "namespace": ["db"],
        "name": name,
        "uuid": uuid,
        "snapshot-id": snapshot_id,
        "ref": "main",
    }


def test_it_is_fresh_until_a_source_changes_and_a_compaction_is_not_a_change(catalog: Client) -> None:
    base, uuid = table(catalog), create(catalog)["view-uuid"]
    assert state(catalog) == (False, "it was never refreshed")
    states = [source(catalog, base, -1)]
    rows(catalog, refresh(uuid, 100, 1, **{"source-states": states}))
    assert state(catalog) == (True, "")
    catalog.ok("POST", base, snapshot(1, 1, operation="append"))
    assert state(catalog) == (False, "changed: db.t")
    states = [source(catalog, base, 1)]
    rows(catalog, refresh(uuid, 101, 2, replaces=100, **{"source-states": states}))
    assert state(catalog) == (True, "")
    catalog.ok("POST", base, snapshot(2, 2, 1, operation="replace"))
    assert state(catalog) == (True, "")
    catalog.ok("POST", base, snapshot(3, 3, 2, operation="delete"))
    assert state(catalog) == (False, "changed: db.t")
    back = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 1}
    catalog.ok("POST", base, {"requirements": [], "updates": [back]})
    assert state(catalog) == (True, "")


def test_it_is_stale_when_a_source_or_the_query_is_replaced(catalog: Client) -> None:
    base, uuid = table(catalog), create(catalog)["view-uuid"]
    rows(catalog, refresh(uuid, 100, 1, **{"source-states": [source(catalog, base, -1)]}))
    assert state(catalog)[0]
    catalog.send("DELETE", base)
    assert state(catalog) == (False, "changed: db.t")
    table(catalog)
    assert state(catalog) == (False, "changed: db.t")
    create(catalog, "SELECT a + 2 AS a FROM t", replace=True)
    assert state(catalog) == (False, "it was never refreshed")


def test_a_refresh_of_another_writer_is_judged_by_its_base_tables(catalog: Client) -> None:
    base, uuid = table(catalog), create(catalog)["view-uuid"]
    catalog.ok("POST", base, snapshot(7, 1, operation="append"))
    rows(catalog, refresh(uuid, 100, 1))
    assert state(catalog) == (True, "")
    catalog.ok("POST", base, snapshot(8, 2, 7, operation="append"))
    assert state(catalog) == (False, "changed: db.t")


def test_a_refresh_must_become_current(catalog: Client) -> None:
    uuid = create(catalog)["view-uuid"]
    aside = refresh(uuid, 100, 1)
    aside["updates"][1]["ref-name"] = "aside"
    answer = catalog.send("POST", STORAGE, aside)
    assert answer.kind == (400, "ValidationException")
    assert "current in the branch main" in str(answer)


SOURCE = {"type": "table", "namespace": ["db"], "name": "t", "uuid": "1", "snapshot-id": 1, "ref": "main"}
MALFORMED = [
    ("refresh-start-timestamp-ms", "today"),
    ("refresh-start-timestamp-ms", None),
    ("rows-read", 0.5),
    ("reason", 1),
    ("session", "UTC"),
    ("base-tables", [1]),
    ("source-states", "none"),
    ("source-states", ["t"]),
    ("source-states", [{**SOURCE, "uuid": [1]}]),
    ("source-states", [{**SOURCE, "namespace": 5}]),
    ("source-states", [{**SOURCE, "snapshot-id": "1"}]),
    ("source-states", [{**SOURCE, "type": "view"}]),
]


@pytest.mark.parametrize(("name", "value"), MALFORMED)
def test_a_refresh_whose_record_has_a_field_of_a_wrong_type_is_refused(
    catalog: Client, name: str, value: object
) -> None:
    uuid = create(catalog)["view-uuid"]
    answer = catalog.send("POST", STORAGE, refresh(uuid, 100, 1, **{name: value}))
    assert (answer.status, name in answer.error["message"]) == (400, True)


@pytest.mark.parametrize(("name", "value"), [*MALFORMED, ("snapshot-ids", 5)])
def test_a_view_of_another_writer_whose_record_has_a_field_of_a_wrong_type_is_not_registered(
    catalog: Client, name: str, value: object
) -> None:
    uuid = create(catalog)["view-uuid"]
    rows(catalog, refresh(uuid, 100, 1))
    file = local_path(catalog.ok("GET", STORAGE)["metadata-location"])
    at = loaded(catalog)["at"]
    catalog.ok("DELETE", view("v"))
    assert file is not None
    text = json.loads(file.read_text())
    found = document(text["properties"])
    found["refreshes"][0][name] = value
    text["properties"][PROPERTY] = json.dumps(found)
    file.write_text(json.dumps(text))
    answer = catalog.send("POST", f"{path('db')}/register-view", {"name": "v", "metadata-location": at})
    assert (answer.status, name in answer.error["message"]) == (400, True)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (PROPERTY, "[]", "is not a JSON object"),
        (PROPERTY, "[" * 100_000, "is not a JSON object"),
        (PROPERTY, '{"storage-table-location": ""}', "must name the metadata file of its storage table"),
        ("refresh-retention", "soon", "refresh-retention is 'soon'"),
    ],
)
def test_a_view_of_another_writer_with_malformed_settings_is_not_registered(
    catalog: Client, name: str, value: str, words: str
) -> None:
    at = create(catalog)["at"]
    catalog.ok("DELETE", view("v"))
    file = local_path(at)
    assert file is not None
    text = json.loads(file.read_text())
    text["properties"][name] = value
    file.write_text(json.dumps(text))
    answer = catalog.send("POST", f"{path('db')}/register-view", {"name": "v", "metadata-location": at})
    assert (answer.status, words in answer.error["message"]) == (400, True)
    assert catalog.send("GET", view("v")).status == 404
    assert call(catalog.session, "show_materialized_views") == []


def test_a_change_of_the_columns_of_a_source_is_a_change(catalog: Client) -> None:
    base, uuid = table(catalog), create(catalog)["view-uuid"]
    states = [{**source(catalog, base, -1), "schema-id": 0}]
    rows(catalog, refresh(uuid, 100, 1, **{"source-states": states}))
    assert state(catalog) == (True, "")
    wider = {**SCHEMA, "fields": [*SCHEMA["fields"], {**SCHEMA["fields"][0], "id": 2, "name": "b"}]}
    updates = [
        {"action": "add-schema", "schema": wider},
        {"action": "set-current-schema", "schema-id": -1},
    ]
    catalog.ok("POST", base, {"requirements": [], "updates": updates})
    assert state(catalog) == (False, "changed: db.t")


def test_expiry_keeps_what_a_refresh_has_read_that_ends_while_snapshots_are_removed(catalog: Client) -> None:
    base, uuid = table(catalog), create(catalog, refresh_strategy="incremental")["view-uuid"]
    for id in (1, 2, 3):
        catalog.ok("POST", base, snapshot(id, id, id - 1 or None, operation="append"))

    def refreshed(id: int, replaces: int | None, read: int) -> None:
        start = catalog.session.connection.clock.now_ms()
        states = {"source-states": [source(catalog, base, read)], "refresh-start-timestamp-ms": start}
        rows(catalog, refresh(uuid, id, id, replaces=replaces, **states))

    def watch(doing: str, done: int, total: int) -> None:
        if doing == "removing snapshots":
            refreshed(101, 100, 2)

    refreshed(100, None, 1)
    call(catalog.session, "expire", watch=watch, table="db.t", older_than="0 s", retain_last=1)
    left = catalog.ok("GET", base)["metadata"]["snapshots"]
    assert [one["snapshot-id"] for one in left] == [2, 3]


def test_what_refreshes_need_is_found_out_again_after_each_refresh(catalog: Client) -> None:
    base, uuid = table(catalog), create(catalog, refresh_strategy="incremental")["view-uuid"]
    needs, views = RefreshNeeds(0), catalog.session.catalog
    assert needs.at(views.view()) == {}
    again = views.view()
    assert needs.at(again) == {}
    rows(catalog, refresh(uuid, 100, 1, **{"source-states": [source(catalog, base, -1)]}))
    assert not views.view().holds(again.reads)
    assert needs.at(views.view()) == {source(catalog, base, -1)["uuid"]: {-1}}


def test_what_refreshes_need_is_found_out_again_after_a_view_has_become_incremental(catalog: Client) -> None:
    base, uuid = table(catalog), create(catalog, refresh_strategy="full")["view-uuid"]
    rows(catalog, refresh(uuid, 100, 1, **{"source-states": [source(catalog, base, -1)]}))
    needs, views = RefreshNeeds(0), catalog.session.catalog
    before = views.view()
    assert needs.at(before) == {}
    call(
        catalog.session,
        "alter_materialized_view",
        view="db.v",
        set_properties={"refresh-strategy": "incremental"},
    )
    assert not views.view().holds(before.reads)
    assert needs.at(views.view()) == {source(catalog, base, -1)["uuid"]: {-1}}


def test_another_name_mapping_of_a_table_is_a_change(catalog: Client) -> None:
    base, uuid = table(catalog), create(catalog)["view-uuid"]
    catalog.ok("POST", base, snapshot(1, 1, operation="append"))
    query = ViewQuery("SELECT a FROM t", "", ("db",))

    def pinned() -> PinnedQuery:
        return pin(catalog.session.catalog.view(), "polaris", query, TableName(("db",), "v"))

    def mapped(action: str, **change: Any) -> None:
        catalog.ok("POST", base, {"requirements": [], "updates": [{"action": action, **change}]})

    rows(catalog, refresh(uuid, 100, 1, **{"source-states": pinned().source_states()}))
    assert state(catalog) == (True, "")
    mapped("set-properties", updates={NAME_MAPPING: '[{"field-id": 1, "names": ["b"]}]'})
    assert state(catalog) == (False, "changed: db.t")
    record = {"source-states": pinned().source_states()}
    rows(catalog, refresh(uuid, 101, 2, replaces=100, **record))
    assert state(catalog) == (True, "")
    mapped("remove-properties", removals=[NAME_MAPPING])
    assert state(catalog) == (False, "changed: db.t")
    since = snapshots_since(catalog.session.catalog.view(), record, pinned(), OutsideSources())
    assert since == "the name mapping of db.t was changed"


def test_an_engine_reads_stored_rows_only_of_the_view_version_that_it_loaded(
    catalog: Client,
) -> None:
    base, uuid = table(catalog), create(catalog)["view-uuid"]
    assert how(catalog, uuid)["refreshable"] is True
    states = {"source-states": [source(catalog, base, -1)], "session": {"zone": "UTC"}}
    rows(catalog, refresh(uuid, 100, 1, **states))
    found = how(catalog, uuid, zone="UTC")
    assert found["query"] == "SELECT `a` FROM `c`.`db`.`v`.`storage` VERSION AS OF 100"
    other = how(catalog, uuid, zone="CET")
    assert (other["query"], other["refreshable"]) == (None, False)
    create(catalog, "SELECT a + 1 AS a FROM t", replace=True)
    old = how(catalog, uuid, zone="UTC")
    assert (old["query"], old["refreshable"]) == (None, False)
    assert how(catalog, uuid, 2, zone="UTC")["refreshable"] is True


def test_only_hidden_columns_of_a_storage_table_can_be_changed(catalog: Client) -> None:
    rows(catalog, refresh(create(catalog)["view-uuid"], 100, 1))
    hidden = {"id": 2, "name": "polaris_state_0", "type": "long", "required": False}
    current = {"action": "set-current-schema", "schema-id": -1}

    def changed(fields: list[dict[str, Any]]) -> dict[str, Any]:
        added = {"action": "add-schema", "schema": {**SCHEMA, "fields": fields}}
        return {"requirements": [], "updates": [added, current]}

    shown = SCHEMA["fields"]
    assert isinstance(shown, list)
    found = catalog.ok("POST", STORAGE, changed([*shown, hidden]))["metadata"]
    assert [field["name"] for field in found["schemas"][-1]["fields"]] == ["a", "polaris_state_0"]
    assert document(found["properties"])["current-refresh-id"] == 100
    for fields in ([], [hidden], [*shown, hidden, {**hidden, "id": 3, "name": "b"}]):
        refused = catalog.send("POST", STORAGE, changed(fields))
        assert refused.status == 400
        assert "cannot be changed" in refused.body["error"]["message"]
    back = {"action": "set-current-schema", "schema-id": 0}
    catalog.ok("POST", STORAGE, {"requirements": [], "updates": [back]})


@pytest.mark.parametrize("limit", ["much", "-1", "nan", ""])
def test_an_incremental_limit_that_is_not_a_number_is_refused(catalog: Client, limit: str) -> None:
    with pytest.raises(BadRequestError, match="must be a number that is not negative"):
        create(catalog, incremental_limit=limit)


def test_an_engine_is_told_that_a_view_reads_itself(catalog: Client) -> None:
    def ordinary(name: str, sql: str) -> None:
        query = {"type": "sql", "sql": sql, "dialect": "spark"}
        version = {**VIEW_VERSION, "default-namespace": ["db"], "representations": [query]}
        catalog.ok("POST", f"{path('db')}/views", view_request(name, **{"view-version": version}))

    table(catalog)
    uuid = create(catalog, "SELECT a FROM low")["view-uuid"]
    ordinary("low", "SELECT a FROM t")
    assert how(catalog, uuid, zone="UTC")["recursion"] == ""
    ordinary("high", "SELECT low.a FROM low")
    catalog.send("DELETE", view("low"))
    ordinary("low", "SELECT t.a FROM t JOIN high USING (a)")
    found = how(catalog, uuid, zone="UTC")["recursion"]
    assert found == "view db.low reads itself: db.v reads db.low reads db.high reads db.low"
