"""Properties, registration and drops of materialized views."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.catalog.entities.entities import TableName
from polaris_spark.catalog.metadata.rows import View
from polaris_spark.catalog.tables.contents import DropContent
from polaris_spark.commits.change import Operation
from polaris_spark.errors import BadRequestError
from polaris_spark.jobs.registry import call
from tests.rest.client import Client, path, view, view_request
from tests.rest.materialized import refresh
from tests.rest.view_requests import PROPERTY, STORAGE, create, document, loaded, rows


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


def test_an_ordinary_view_is_never_dropped_as_a_materialized_one(catalog: Client) -> None:
    catalog.ok("POST", f"{path('db')}/views", view_request("plain"))
    with pytest.raises(BadRequestError, match=r"view db\.plain is not materialized"):
        call(catalog.session, "drop_materialized_view", view="db.plain")
    assert catalog.names("db", kind="views") == ["plain"]


def test_a_view_that_an_ordinary_one_has_replaced_is_not_dropped(catalog: Client) -> None:
    """The commit that drops the view decides whether it is materialized."""
    create(catalog)
    within, name = catalog.session.catalog, TableName(("db",), "v")
    change = DropContent(within.context, Operation(b"", "me"), name, View, only_materialized=True)
    prepared = change.prepare(within.view())
    catalog.ok("DELETE", view("v"))
    catalog.ok("POST", f"{path('db')}/views", view_request("v"))
    with pytest.raises(BadRequestError, match=r"view db\.v is not materialized"):
        change.apply(within.view(), prepared)
