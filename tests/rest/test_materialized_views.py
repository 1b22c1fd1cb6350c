"""Materialized views over the protocol: the view and its storage table change together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.catalog.entities.entities import TableName
from polaris_spark.catalog.files.files import local_path
from polaris_spark.catalog.metadata.rows import View
from polaris_spark.catalog.rows import Unloaded
from polaris_spark.catalog.tables.contents import DropContent
from polaris_spark.commits.change import Operation
from polaris_spark.commits.state import State
from polaris_spark.errors import TryAgainError
from polaris_spark.jobs.registry import call
from polaris_spark.rest.table_routes import drop
from tests.rest.client import VIEW_VERSION, Client, path, view, view_request
from tests.rest.conftest import Open
from tests.rest.materialized import SCHEMA, create_materialized_view, refresh
from tests.rest.materialized import snapshot_commit as snapshot
from tests.rest.view_requests import PROPERTY, STORAGE, create, document, loaded, rows


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


def test_a_refresh_of_a_view_that_was_replaced_and_replaced_back_is_refused(catalog: Client) -> None:
    first = create(catalog)
    create_materialized_view(catalog.session.catalog, "v", "SELECT b FROM t", replace=True, column="b")
    again = create(catalog, replace=True)
    assert again["current-version-id"] == first["current-version-id"]
    # The column has another id than before, so rows that were written with the earlier id would be null.
    answer = catalog.send("POST", STORAGE, refresh(first["view-uuid"], 100, 1, **{"column-ids": [1]}))
    assert answer.kind == (400, "ValidationException")
    assert "columns of db.v.storage were replaced" in str(answer)
    found = document(rows(catalog, refresh(first["view-uuid"], 100, 1, **{"column-ids": [3]})))
    assert "column-ids" not in found["refreshes"][0]


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


def test_a_replaced_view_with_time_travel_has_no_current_refresh(catalog: Client) -> None:
    uuid = create(catalog, time_travel="true")["view-uuid"]
    rows(catalog, refresh(uuid, 100, 1))
    create(catalog, replace=True, sql="SELECT 2 AS a", time_travel="true")
    found = document(catalog.ok("GET", STORAGE)["metadata"]["properties"])
    assert [one["refresh-id"] for one in found["refreshes"]] == [100]
    assert "current-refresh-id" not in found
    assert list(call(catalog.session, "fsck")) == []


def test_an_ordinary_view_is_not_replaced(catalog: Client) -> None:
    catalog.ok("POST", f"{path('db')}/views", view_request("v"))
    with pytest.raises(Exception, match="it is not a materialized view"):
        create(catalog, replace=True)


def test_settings_change_fields_of_the_document(catalog: Client) -> None:
    create(catalog)
    update = {"action": "set-properties", "updates": {"allow-stale-data": "true", "mine": "1"}}
    catalog.ok("POST", view("v"), {"requirements": [], "updates": [update]})
    properties = loaded(catalog)["properties"]
    assert document(properties)["allow-stale-data"] is True
    assert "allow-stale-data" not in properties
    assert properties["mine"] == "1"
    update = {"action": "remove-properties", "removals": ["allow-stale-data", "mine"]}
    catalog.ok("POST", view("v"), {"requirements": [], "updates": [update]})
    assert document(loaded(catalog)["properties"])["allow-stale-data"] is False
    assert "mine" not in loaded(catalog)["properties"]


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
        """A drop whose first attempt raises TryAgainError."""

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
    create(catalog, replace=True, sql="SELECT 2 AS a")
    replaced = document(catalog.ok("GET", STORAGE)["metadata"]["properties"])
    assert replaced == {"refreshes": [], "more": True}
