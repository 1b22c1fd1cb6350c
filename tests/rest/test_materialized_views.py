"""Materialized views over the protocol: the view and its storage table change together."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from polaris_spark.catalog.contents import DropContent
from polaris_spark.catalog.entities import TableName
from polaris_spark.catalog.files import local_path
from polaris_spark.catalog.metadata.rows import View
from polaris_spark.catalog.outside_sources import OutsideSources
from polaris_spark.catalog.rows import Unloaded
from polaris_spark.catalog.source_changes import RefreshNeeds
from polaris_spark.catalog.view_freshness import freshness
from polaris_spark.commits.change import Operation
from polaris_spark.commits.state import State
from polaris_spark.errors import BadRequestError, TryAgainError
from polaris_spark.extension import ROUTER
from polaris_spark.jobs.registry import call
from polaris_spark.rest.access import Caller, Role
from polaris_spark.rest.handler import handle
from polaris_spark.rest.table_routes import drop
from tests.rest.client import VIEW_VERSION, Client, path, view, view_request
from tests.rest.conftest import Open
from tests.rest.materialized import SCHEMA, create_materialized_view, refresh
from tests.rest.materialized import snapshot_commit as snapshot

STORAGE = f"{path('db', 'v')}/tables/storage"
PROPERTY = "materialized_view_metadata"


def create(
    catalog: Client, sql: str = "SELECT a FROM t", *, replace: bool = False, **properties: str
) -> dict[str, Any]:
    """Create the materialized view `db.v`, and return its metadata."""
    named = {name.replace("_", "-"): value for name, value in properties.items()}
    create_materialized_view(catalog.session.catalog, "v", sql, replace=replace, properties=named)
    return loaded(catalog)


def loaded(catalog: Client) -> dict[str, Any]:
    """The metadata of the view `db.v`, and its location as the field `at`."""
    answer = catalog.ok("GET", view("v"))
    return {**answer["metadata"], "at": answer["metadata-location"]}


def document(properties: Mapping[str, str]) -> dict[str, Any]:
    """The document of the draft specification in properties."""
    found: dict[str, Any] = json.loads(properties[PROPERTY])
    return found


def rows(catalog: Client, body: dict[str, Any]) -> dict[str, Any]:
    """Commit to the storage table, and return its properties."""
    found: dict[str, Any] = catalog.ok("POST", STORAGE, body)["metadata"]["properties"]
    return found


@pytest.mark.parametrize("mode", ["every-commit", "never"])
def test_the_view_is_listed_and_names_its_storage_table_and_file(
    opened: Open, store: str, warehouse: Path, mode: str
) -> None:
    catalog = opened(store, warehouse, metadata_files=mode)
    catalog.namespace("db")
    made = create(catalog, refresh_strategy="incremental", allow_stale_data="true")
    assert catalog.names("db", kind="views") == ["v"]
    assert catalog.names("db") == []
    assert made["versions"][0]["storage-table"] == {"namespace": ["db", "v"], "name": "storage"}
    storage = catalog.ok("GET", STORAGE)
    assert document(made["properties"]) == {
        "storage-table-location": storage["metadata-location"],
        "allow-stale-data": True,
        "refresh-strategy": "incremental",
    }
    assert storage["metadata"]["location"].startswith(f"{made['location']}/")
    assert (
        json.loads(Path(storage["metadata-location"].removeprefix("file://")).read_text())
        == (storage["metadata"])
    )
    assert PROPERTY not in storage["metadata"]["properties"]
    assert call(catalog.session, "fsck") == []


def test_a_refresh_changes_the_view_in_the_same_commit(catalog: Client) -> None:
    made = create(catalog)
    found = document(rows(catalog, refresh(made["view-uuid"], 100, 1, extra="kept")))
    assert found == {
        "refreshes": [
            {
                "refresh-id": 100,
                "version-id": 1,
                "base-tables": [{"type": "iceberg-metastore", "identifier": "t", "snapshot-reference": 7}],
                "extra": "kept",
                "sequence-number": 1,
                "snapshot-ids": [100],
            }
        ],
        "current-refresh-id": 100,
    }
    after = loaded(catalog)
    location = catalog.ok("GET", STORAGE)["metadata-location"]
    assert after["at"] != made["at"]
    assert document(after["properties"])["storage-table-location"] == location
    assert after["current-version-id"] == made["current-version-id"]


def test_only_the_last_refresh_is_kept_and_a_rollback_brings_back_an_earlier_one(catalog: Client) -> None:
    uuid = create(catalog)["view-uuid"]
    rows(catalog, refresh(uuid, 100, 1))
    kept = document(rows(catalog, refresh(uuid, 101, 2, replaces=100)))
    assert [one["refresh-id"] for one in kept["refreshes"]] == [101]
    compacted = document(rows(catalog, snapshot(5, 3, 101, operation="replace")))
    assert compacted["current-refresh-id"] == 101
    assert compacted["refreshes"][0]["snapshot-ids"] == [101, 5]
    back = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 100}
    found = document(rows(catalog, {"requirements": [], "updates": [back]}))
    assert (found["current-refresh-id"], len(found["refreshes"])) == (100, 1)


def test_with_time_travel_all_refreshes_are_kept_until_their_snapshots_go(catalog: Client) -> None:
    uuid = create(catalog, time_travel="true")["view-uuid"]
    rows(catalog, refresh(uuid, 100, 1))
    rows(catalog, refresh(uuid, 101, 2, replaces=100))
    found = document(rows(catalog, snapshot(5, 3, 101, operation="replace")))
    assert [one["snapshot-ids"] for one in found["refreshes"]] == [[100], [101, 5]]
    gone = {"action": "remove-snapshots", "snapshot-ids": [100, 101]}
    found = document(rows(catalog, {"requirements": [], "updates": [gone]}))
    assert [one["snapshot-ids"] for one in found["refreshes"]] == [[5]]
    assert found["current-refresh-id"] == 101


def test_a_compaction_stays_known_after_the_snapshot_of_its_refresh_expired(catalog: Client) -> None:
    uuid = create(catalog)["view-uuid"]
    rows(catalog, refresh(uuid, 100, 1))
    rows(catalog, snapshot(5, 2, 100, operation="replace"))
    rows(catalog, {"requirements": [], "updates": [{"action": "remove-snapshots", "snapshot-ids": [100]}]})
    found = document(rows(catalog, snapshot(6, 3, 5, operation="replace")))
    assert found["current-refresh-id"] == 100
    assert found["refreshes"][0]["snapshot-ids"] == [5, 6]


@pytest.mark.parametrize(
    ("updates", "words"),
    [
        (snapshot(9, 1, operation="append")["updates"], "only REFRESH MATERIALIZED VIEW writes its rows"),
        (snapshot(9, 1, operation="delete")["updates"], "only REFRESH MATERIALIZED VIEW writes its rows"),
        ([{"action": "add-schema", "schema": {**SCHEMA, "fields": []}}], "cannot be changed"),
        ([{"action": "set-location", "location": "file:///elsewhere"}], "cannot be changed"),
        ([{"action": "set-properties", "updates": {PROPERTY: "{}"}}], "is set by the catalog"),
    ],
)
def test_any_other_write_of_the_storage_table_is_refused(
    catalog: Client, updates: list[dict[str, Any]], words: str
) -> None:
    before = create(catalog)
    answer = catalog.send("POST", STORAGE, {"requirements": [], "updates": updates})
    assert answer.status == 400
    assert words in str(answer)
    assert loaded(catalog) == before


def test_removing_the_document_of_the_storage_table_is_refused(catalog: Client) -> None:
    rows(catalog, refresh(create(catalog)["view-uuid"], 100, 1))
    removal = {"action": "remove-properties", "removals": [PROPERTY]}
    answer = catalog.send("POST", STORAGE, {"requirements": [], "updates": [removal]})
    assert answer.status == 400
    assert "is set by the catalog" in str(answer)


def test_other_properties_of_the_storage_table_can_be_set(catalog: Client) -> None:
    create(catalog)
    update = {"action": "set-properties", "updates": {"write.target-file-size-bytes": "1000"}}
    found = rows(catalog, {"requirements": [], "updates": [update]})
    assert found["write.target-file-size-bytes"] == "1000"


def test_of_two_refreshes_the_second_is_refused_and_is_not_retried_by_clients(catalog: Client) -> None:
    uuid = create(catalog)["view-uuid"]
    rows(catalog, refresh(uuid, 100, 1))
    answer = catalog.send("POST", STORAGE, refresh(uuid, 101, 2))
    assert answer.kind == (400, "ValidationException")
    assert "another refresh" in str(answer)


def test_a_refresh_of_an_earlier_version_or_of_another_view_is_refused(catalog: Client) -> None:
    first = create(catalog)
    create(catalog, "SELECT a + 1 AS a FROM t", replace=True)
    answer = catalog.send("POST", STORAGE, refresh(first["view-uuid"], 100, 1))
    assert answer.kind == (400, "ValidationException")
    other = "00000000-0000-0000-0000-000000000000"
    assert catalog.send("POST", STORAGE, refresh(other, 100, 1, version=2)).status == 400
    rows(catalog, refresh(first["view-uuid"], 100, 1, version=2))


def test_a_replaced_view_keeps_its_identity_and_has_no_rows(catalog: Client) -> None:
    first = create(catalog, refresh_strategy="incremental")
    rows(catalog, refresh(first["view-uuid"], 100, 1))
    after = create(catalog, "SELECT a + 1 AS a FROM t", replace=True)
    assert (after["view-uuid"], after["current-version-id"]) == (first["view-uuid"], 2)
    assert document(after["properties"])["refresh-strategy"] == "incremental"
    storage = catalog.ok("GET", STORAGE)["metadata"]
    assert storage["current-snapshot-id"] == -1
    assert PROPERTY not in storage["properties"]
    assert [one["fields"][0]["id"] for one in storage["schemas"]] == [1]
    again = create(catalog, "SELECT a FROM t", replace=True)  # which does not change the storage table
    assert again["current-version-id"] == 1
    location = document(again["properties"])["storage-table-location"]
    assert location == catalog.ok("GET", STORAGE)["metadata-location"]
    assert Path(location.removeprefix("file://")).exists()
    assert call(catalog.session, "fsck") == []


def test_a_view_replaced_before_its_first_refresh_refers_to_the_file_of_its_storage_table(
    catalog: Client,
) -> None:
    create(catalog)
    after = create(catalog, "SELECT a + 1 AS a FROM t", replace=True)
    location = document(after["properties"])["storage-table-location"]
    assert location == catalog.ok("GET", STORAGE)["metadata-location"]
    assert Path(location.removeprefix("file://")).exists()


def test_an_ordinary_view_is_not_replaced(catalog: Client) -> None:
    catalog.ok("POST", f"{path('db')}/views", view_request("v"))
    with pytest.raises(Exception, match="it is not materialized"):
        create(catalog, replace=True)


def test_settings_change_fields_of_the_document(catalog: Client) -> None:
    create(catalog)
    update = {"action": "set-properties", "updates": {"allow-stale-data": "true", "mine": "1"}}
    catalog.ok("POST", view("v"), {"requirements": [], "updates": [update]})
    properties = loaded(catalog)["properties"]
    assert document(properties)["allow-stale-data"] is True
    assert "allow-stale-data" not in properties
    assert properties["mine"] == "1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("allow-stale-data", "perhaps"),
        ("refresh-strategy", "sometimes"),
        ("max-staleness", "soon"),
        ("time-travel", "2"),
        (PROPERTY, "no JSON"),
    ],
)
def test_a_setting_with_an_impossible_value_is_refused(catalog: Client, name: str, value: str) -> None:
    before = create(catalog)
    update = {"action": "set-properties", "updates": {name: value}}
    answer = catalog.send("POST", view("v"), {"requirements": [], "updates": [update]})
    assert answer.status == 400
    assert name in str(answer)
    assert loaded(catalog) == before


def test_the_query_of_a_materialized_view_is_not_changed_as_that_of_an_ordinary_one(catalog: Client) -> None:
    create(catalog)
    version = {**VIEW_VERSION, "version-id": 2}
    updates = [
        {"action": "add-view-version", "view-version": version},
        {"action": "set-current-view-version", "view-version-id": -1},
    ]
    answer = catalog.send("POST", view("v"), {"requirements": [], "updates": updates})
    assert answer.status == 400
    assert "CREATE OR REPLACE MATERIALIZED VIEW" in str(answer)


def test_a_view_does_not_become_materialized_by_a_property(catalog: Client) -> None:
    answer = catalog.send("POST", f"{path('db')}/views", view_request("v", properties={PROPERTY: "{}"}))
    assert answer.status == 400
    catalog.ok("POST", f"{path('db')}/views", view_request("v"))
    update = {"action": "set-properties", "updates": {PROPERTY: "{}"}}
    assert catalog.send("POST", view("v"), {"requirements": [], "updates": [update]}).status == 400


def test_the_storage_table_is_neither_dropped_nor_renamed_nor_replaced_alone(catalog: Client) -> None:
    create(catalog)
    location = catalog.ok("GET", STORAGE)["metadata-location"]
    assert catalog.send("DELETE", STORAGE).status == 400
    names = {
        "source": {"namespace": ["db", "v"], "name": "storage"},
        "destination": {"namespace": ["db"], "name": "t"},
    }
    assert catalog.send("POST", "v1/tables/rename", names).status == 400
    again = {"name": "storage", "metadata-location": location, "overwrite": True}
    assert catalog.send("POST", f"{path('db', 'v')}/register", again).status == 400


def test_view_and_storage_table_are_renamed_and_dropped_together(catalog: Client) -> None:
    rows(catalog, refresh(create(catalog)["view-uuid"], 100, 1))
    names = {
        "source": {"namespace": ["db"], "name": "v"},
        "destination": {"namespace": ["db"], "name": "w"},
    }
    assert catalog.send("POST", "v1/views/rename", names).status == 204
    moved = catalog.ok("GET", view("w"))["metadata"]
    assert moved["versions"][0]["storage-table"] == {"namespace": ["db", "w"], "name": "storage"}
    assert catalog.send("GET", STORAGE).status == 404
    storage = f"{path('db', 'w')}/tables/storage"
    assert document(catalog.ok("GET", storage)["metadata"]["properties"])["current-refresh-id"] == 100
    assert call(catalog.session, "fsck") == []
    assert catalog.send("DELETE", view("w")).status == 204
    assert catalog.send("GET", storage).status == 404
    assert call(catalog.session, "fsck") == []
    create(catalog)  # the names and locations are free


def test_a_purge_that_is_tried_again_keeps_the_files_of_a_view_that_another_drop_kept(
    catalog: Client,
) -> None:
    create(catalog)
    place = local_path(catalog.ok("GET", STORAGE)["metadata-location"])
    assert place is not None

    class Lost(DropContent[View]):
        """A drop whose first try is in vain."""

        tries = 0

        def apply(self, state: State, prepared: int) -> View | Unloaded:
            done = super().apply(state, prepared)
            self.tries += 1
            if self.tries == 1:
                raise TryAgainError("another commit came first")
            return done

    within = catalog.session.catalog
    change = Lost(within.context, Operation(b"", "me"), TableName(("db",), "v"), View, purge=True)
    with pytest.raises(TryAgainError):
        within.commit(change)
    catalog.ok("DELETE", view("v"))
    catalog.ok("POST", f"{path('db')}/views", view_request("v"))
    drop(within, change)
    assert place.exists()


def test_a_namespace_and_a_materialized_view_cannot_have_one_name(catalog: Client) -> None:
    create(catalog)
    assert catalog.send("POST", "v1/namespaces", {"namespace": ["db", "v"]}).status == 409
    assert catalog.send("DELETE", path("db")).status == 409
    catalog.send("DELETE", view("v"))
    catalog.namespace("db", "v")
    with pytest.raises(Exception, match="a materialized view needs this name"):
        create(catalog)


@pytest.mark.parametrize("mode", ["every-commit", "never"])
def test_a_dropped_materialized_view_can_be_registered_again(
    opened: Open, store: str, warehouse: Path, mode: str
) -> None:
    catalog = opened(store, warehouse, metadata_files=mode)
    catalog.namespace("db")
    rows(catalog, refresh(create(catalog)["view-uuid"], 100, 1))
    before, storage = loaded(catalog), catalog.ok("GET", STORAGE)
    assert catalog.send("DELETE", view("v")).status == 204
    body = {"name": "v", "metadata-location": before["at"]}
    catalog.ok("POST", f"{path('db')}/register-view", body)
    assert loaded(catalog) == before
    assert catalog.ok("GET", STORAGE)["metadata"] == storage["metadata"]
    rows(catalog, refresh(before["view-uuid"], 101, 2, replaces=100))


def test_a_view_of_another_writer_is_registered_and_its_unknown_fields_survive(
    catalog: Client, tmp_path: Path
) -> None:
    made = create(catalog)
    rows(catalog, refresh(made["view-uuid"], 100, 1))
    before, storage = loaded(catalog), catalog.ok("GET", STORAGE)["metadata"]
    catalog.send("DELETE", view("v"))
    del before["at"], before["versions"][0]["storage-table"]
    record = {
        "refresh-id": 3,
        "version-id": 1,
        "base-tables": [{"type": "deltalake-filesystem", "identifier": "x", "theirs": [1]}],
        "other": {"a": 1},
    }
    folder = Path(before["location"].removeprefix("file://"))
    table = folder / "storage" / "metadata" / "theirs.metadata.json"
    storage["properties"][PROPERTY] = json.dumps(
        {"refreshes": [record], "current-refresh-id": 3, "more": True}
    )
    table.write_text(json.dumps(storage))
    before["properties"][PROPERTY] = json.dumps({"storage-table-location": f"file://{table}", "new": "x"})
    file = folder / "metadata" / "theirs.metadata.json"
    file.write_text(json.dumps(before))
    catalog.ok("POST", f"{path('db')}/register-view", {"name": "v", "metadata-location": f"file://{file}"})
    found = document(rows(catalog, snapshot(5, 2, 100, operation="replace")))
    assert found["more"] is True
    assert found["current-refresh-id"] == 3
    assert found["refreshes"] == [{**record, "snapshot-ids": [100, 5]}]
    assert document(loaded(catalog)["properties"])["new"] == "x"


def table(catalog: Client, name: str = "t") -> str:
    """Create a table in `db`, and return its path."""
    catalog.ok("POST", f"{path('db')}/tables", {"name": name, "schema": SCHEMA})
    return f"{path('db')}/tables/{name}"


def state(catalog: Client) -> tuple[bool, str]:
    """Whether `db.v` is fresh, and why not."""
    found = freshness(catalog.session.catalog.view(), TableName(("db",), "v"))
    return found.fresh, found.reason


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


def test_it_is_fresh_until_a_source_changes_and_a_compaction_is_no_change(catalog: Client) -> None:
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


def test_malformed_source_states_make_the_view_stale(catalog: Client) -> None:
    uuid = create(catalog)["view-uuid"]
    rows(catalog, refresh(uuid, 100, 1, **{"source-states": [{"x": 1}]}))
    assert state(catalog) == (False, "the refresh does not describe all sources")
    assert len(call(catalog.session, "show_materialized_views")) == 1


MALFORMED = [
    ("refresh-start-timestamp-ms", "today"),
    ("refresh-start-timestamp-ms", None),
    ("rows-read", 0.5),
    ("reason", 1),
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


def how(
    catalog: Client, uuid: str, version: int = 1, outside: Sequence[dict[str, Any]] = (), **session: str
) -> dict[str, Any]:
    """How an engine that has loaded this version of the view reads it."""
    body = {"uuid": uuid, "version-id": version, "session": session, "catalog": "c", "outside": list(outside)}
    path = "polaris-spark/v1/namespaces/db/materialized-views/v/read"
    found: dict[str, Any] = catalog.ok("POST", path, body)
    return found


def test_an_engine_is_told_to_read_stored_rows_only_if_they_are_those_of_the_view_that_it_loaded(
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
def test_an_incremental_limit_that_is_no_number_is_refused(catalog: Client, limit: str) -> None:
    with pytest.raises(BadRequestError, match="must be a number that is not negative"):
        create(catalog, incremental_limit=limit)


def test_an_engine_is_asked_for_the_tables_of_other_catalogs(catalog: Client) -> None:
    uuid = create(catalog)["view-uuid"]
    place = {"namespace": ["db"], "name": "t", "uuid": "u", "snapshot-id": 5, "ref": "main", "schema-id": 0}
    states = [
        {"type": "table", "catalog": "lake", **place},
        {"type": "table", **place, "namespace": ["iceberg"], "name": "/t", "base-type": "iceberg-filesystem"},
        {"type": "view", "catalog": "lake", "namespace": ["db"], "name": "big", "uuid": "v", "version-id": 2},
    ]
    rows(catalog, refresh(uuid, 100, 1, **{"source-states": states, "session": {"zone": "UTC"}}))
    asked = how(catalog, uuid, zone="UTC")
    names = [["lake", "db", "t"], ["", "iceberg", "/t"], ["lake", "db", "big"]]
    assert (asked["query"], asked["unknown"]) == (None, names)
    assert state(catalog)[1].endswith("have changed: lake.db.t, iceberg./t, lake.db.big")
    table = {"type": "table", "uuid": "u", "current-schema-id": 0, "schemas": [], "refs": {"main": 5}}
    view = {"type": "view", "uuid": "v", "version-id": 2, "sql": "", "catalog": "lake", "namespace": []}
    known = [{**table, "snapshots": []}, {**table, "snapshots": []}, {**view, "columns": []}]
    outside = [{**one, "parts": parts} for one, parts in zip(known, names, strict=True)]
    assert "VERSION AS OF 100" in how(catalog, uuid, outside=outside, zone="UTC")["query"]
    replaced = [{"parts": names[0], "type": "none"}, *outside[1:]]
    stale = how(catalog, uuid, outside=replaced, zone="UTC")
    assert (stale["refreshable"], stale["reason"]) == (True, "changed: lake.db.t")
    compacted = [
        {"snapshot-id": 5, "summary": {"operation": "append"}},
        {"snapshot-id": 6, "parent-snapshot-id": 5, "summary": {"operation": "replace"}},
    ]
    later = [{**outside[0], "refs": {"main": 6}, "snapshots": compacted}, *outside[1:]]
    assert how(catalog, uuid, outside=later, zone="UTC")["reason"] == ""
    changed = how(catalog, uuid, outside=[*outside[:2], {**outside[2], "version-id": 3}], zone="UTC")
    assert changed["reason"] == "changed: lake.db.big"


def test_a_description_of_a_table_without_a_name_is_refused(catalog: Client) -> None:
    body = {
        "uuid": create(catalog)["view-uuid"],
        "version-id": 1,
        "session": {},
        "outside": [{"type": "none"}],
    }
    answer = catalog.send("POST", "polaris-spark/v1/namespaces/db/materialized-views/v/read", body)
    assert answer.kind == (400, "BadRequestException")


def delta(folder: Path) -> str:
    """Append a row to a Delta table, and return the id of the table."""
    deltalake.write_deltalake(str(folder), pa.table({"a": [1]}), mode="append")
    return str(deltalake.DeltaTable(str(folder)).metadata().id)


def over_delta(catalog: Client, folder: Path, **state: Any) -> str:
    """Create the materialized view `db.v`, and record that its refresh read a Delta table. Return its UUID."""
    uuid: str = create(catalog)["view-uuid"]
    table = {
        "type": "table",
        "namespace": ["delta"],
        "name": str(folder),
        "base-type": "deltalake-filesystem",
    }
    rows(catalog, refresh(uuid, 100, 1, **{"source-states": [{**table, **state}]}))
    return uuid


@pytest.mark.parametrize("state", [{"ref": "main"}, {}], ids=["the current version", "a fixed version"])
def test_a_delta_table_has_changed_if_it_was_created_again(
    catalog: Client, tmp_path: Path, state: dict[str, str]
) -> None:
    folder = tmp_path / "delta"
    over_delta(catalog, folder, **{"uuid": delta(folder), "snapshot-id": 0}, **state)

    def fresh(outside: OutsideSources) -> bool:
        return freshness(catalog.session.catalog.view(), TableName(("db",), "v"), outside).fresh

    first = OutsideSources(reads_delta=True)
    assert fresh(first)
    shutil.rmtree(folder)
    delta(folder)
    assert fresh(first), "it is looked up once"
    assert not fresh(OutsideSources(reads_delta=True))


def test_only_another_version_is_a_change_of_the_current_version_of_a_delta_table(
    catalog: Client, tmp_path: Path
) -> None:
    folder = tmp_path / "delta"
    uuid = over_delta(catalog, folder, ref="main", **{"uuid": delta(folder), "snapshot-id": 0})
    assert how(catalog, uuid)["reason"] == ""
    delta(folder)
    assert how(catalog, uuid)["reason"] == f"changed: delta.{folder}"


def test_no_procedure_opens_a_delta_table_for_an_http_client(catalog: Client, tmp_path: Path) -> None:
    folder = tmp_path / "delta"
    over_delta(catalog, folder, ref="main", **{"uuid": delta(folder), "snapshot-id": 0})
    why = f"only a Spark session can find out whether these have changed: delta.{folder}"
    assert [row[4:6] for row in procedure(catalog, "show_materialized_views")] == [[None, why]]
    catalog.ok("POST", f"{path('db')}/views", {**view_request("w"), "view-version": at_location(folder)})
    create_materialized_view(catalog.session.catalog, "above", "SELECT a FROM w")
    with pytest.raises(AssertionError, match="can be looked up only in a Spark session"):
        procedure(catalog, "explain_refresh", view="db.above")


def at_location(folder: Path) -> dict[str, Any]:
    """A version of a view that reads a Delta table."""
    query = {"type": "sql", "sql": f"SELECT 1 AS a FROM delta.`{folder}`", "dialect": "spark"}
    return {**VIEW_VERSION, "representations": [query]}


def procedure(catalog: Client, name: str, **arguments: str) -> list[list[Any]]:
    """The rows of a procedure that an administrator calls over HTTP."""
    session = catalog.session
    body = json.dumps({"arguments": arguments, "wait-seconds": 10})
    where = f"polaris-spark/v1/procedures/{name}"
    caller = Caller("me", Role.ADMINISTRATOR)
    answer = handle(session.catalog, "POST", where, body=body, caller=caller, router=ROUTER, session=session)
    assert answer.status == 200, answer
    found: list[list[Any]] = json.loads(answer.body or "")["rows"]
    return found


def test_without_spark_a_table_of_another_catalog_is_not_called_missing_everywhere(catalog: Client) -> None:
    create(catalog, "SELECT a FROM lake.db.t")
    with pytest.raises(
        BadRequestError, match=r"if it is in another catalog, it can be looked up only in a Spark"
    ):
        call(catalog.session, "explain_refresh", view="db.v")


def settings(catalog: Client, action: str, **more: Any) -> tuple[dict[str, str], dict[str, str]]:
    """Change properties of the view. Return those of the view and of its storage table, without the documents."""
    before = loaded(catalog)["at"]
    updates = [{"action": action, **more}]
    catalog.ok("POST", view("v"), {"requirements": [], "updates": updates})
    after = loaded(catalog)
    assert after["at"] != before
    storage = catalog.ok("GET", STORAGE)
    assert document(after["properties"])["storage-table-location"] == storage["metadata-location"]
    assert call(catalog.session, "fsck") == []
    found = (after["properties"], storage["metadata"]["properties"])
    return tuple(
        {k: v for k, v in one.items() if k not in (PROPERTY, "write.parquet.compression-codec")}
        for one in found
    )  # type: ignore[return-value]


def test_properties_of_writes_and_files_are_those_of_the_storage_table(catalog: Client) -> None:
    made = create(catalog)
    rows(catalog, refresh(made["view-uuid"], 100, 1))
    both = {"mine": "1", "write.merge.mode": "merge-on-read", "gc.enabled": "false"}
    of_view, of_storage = settings(catalog, "set-properties", updates=both)
    assert of_view == {"mine": "1"}
    assert of_storage == {"write.merge.mode": "merge-on-read", "gc.enabled": "false"}
    one = {"write.format.default": "orc"}
    assert settings(catalog, "set-properties", updates=one)[1] == {**of_storage, **one}
    names = ["gc.enabled", "write.merge.mode", "mine"]
    assert settings(catalog, "remove-properties", removals=names) == ({}, one)
    assert catalog.ok("GET", STORAGE)["metadata"]["format-version"] == 2
    settings(catalog, "set-properties", updates={"format-version": "3"})
    assert catalog.ok("GET", STORAGE)["metadata"]["format-version"] == 3
    wrong = {"action": "set-properties", "updates": {"format-version": "new"}}
    assert catalog.send("POST", view("v"), {"requirements": [], "updates": [wrong]}).status == 400
    assert document(loaded(catalog)["properties"])["storage-table-location"] != made["at"]


def test_a_replaced_view_keeps_properties_that_the_replacement_does_not_set(catalog: Client) -> None:
    create(catalog, mine="1", other="2", max_staleness="1 h", time_travel="true")
    after = create(catalog, "SELECT a + 1 AS a FROM t", replace=True, other="3")
    kept = {name: text for name, text in after["properties"].items() if name != PROPERTY}
    assert kept == {"mine": "1", "other": "3", "max-staleness": "1 h", "time-travel": "true"}


def test_a_view_that_is_registered_under_another_name_names_its_storage_table_there(catalog: Client) -> None:
    made = create(catalog)
    rows(catalog, refresh(made["view-uuid"], 100, 1))
    before = loaded(catalog)
    catalog.send("DELETE", view("v"))
    catalog.namespace("other")
    body = {"name": "w", "metadata-location": before["at"]}
    catalog.ok("POST", f"{path('other')}/register-view", body)
    answer = catalog.ok("GET", view("w", ("other",)))
    [version] = answer["metadata"]["versions"]
    assert version["storage-table"] == {"namespace": ["other", "w"], "name": "storage"}
    assert answer["metadata-location"] != before["at"]
    assert (
        json.loads(Path(answer["metadata-location"].removeprefix("file://")).read_text())
        == (answer["metadata"])
    )
    assert document(catalog.ok("GET", f"{path('other', 'w')}/tables/storage")["metadata"]["properties"])
    assert call(catalog.session, "fsck") == []


@pytest.mark.parametrize(
    "state",
    [
        {"source-states": "t"},
        {"source-states": [{"type": "table"}]},
        {"source-states": [], "view-version-id": 7},
    ],
)
def test_a_refresh_with_a_malformed_state_of_its_sources_is_refused(
    catalog: Client, state: dict[str, Any]
) -> None:
    uuid = create(catalog)["view-uuid"]
    assert catalog.send("POST", STORAGE, refresh(uuid, 100, 1, state=state)).status == 400


def test_a_server_opens_no_delta_table_that_a_client_names(catalog: Client, tmp_path: Path) -> None:
    uuid = create(catalog)["view-uuid"]
    place = {"namespace": ["delta"], "name": str(tmp_path), "uuid": "u", "snapshot-id": 5, "ref": "main"}
    states = [{"type": "table", **place, "schema-id": 0, "base-type": "deltalake-filesystem"}]
    rows(catalog, refresh(uuid, 100, 1, **{"source-states": states, "session": {"zone": "UTC"}}))
    assert state(catalog)[1].startswith("only a Spark session can find out")
    assert (
        "cannot be read" in how(catalog, uuid, zone="UTC")["reason"]
    )  # a session of this process may open it
    served = catalog.session.catalog.restricted([])
    body = {"uuid": uuid, "version-id": 1, "session": {"zone": "UTC"}, "catalog": "c"}
    path = "polaris-spark/v1/namespaces/db/materialized-views/v/read"
    status, _, text = catalog.session.derive(catalog=served).request("POST", path, body=json.dumps(body))
    assert (status, json.loads(text)["unknown"]) == (200, [["", "delta", str(tmp_path)]])


def test_an_ordinary_view_is_never_dropped_as_a_materialized_one(catalog: Client) -> None:
    catalog.ok("POST", f"{path('db')}/views", view_request("plain"))
    with pytest.raises(BadRequestError, match=r"view db\.plain is not materialized"):
        call(catalog.session, "drop_materialized_view", view="db.plain")
    assert catalog.names("db", kind="views") == ["plain"]


def test_a_view_that_an_ordinary_one_has_replaced_is_not_dropped(catalog: Client) -> None:
    """Whether the view is materialized is decided in the commit that drops it."""
    create(catalog)
    within, name = catalog.session.catalog, TableName(("db",), "v")
    change = DropContent(within.context, Operation(b"", "me"), name, View, only_materialized=True)
    prepared = change.prepare(within.view())
    catalog.ok("DELETE", view("v"))
    catalog.ok("POST", f"{path('db')}/views", view_request("v"))
    with pytest.raises(BadRequestError, match=r"view db\.v is not materialized"):
        change.apply(within.view(), prepared)
