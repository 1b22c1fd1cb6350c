"""Time travel of materialized views over the protocol: which snapshot and which columns answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.rest.client import Answer, Client, path, view_request
from tests.rest.materialized import create_materialized_view, refresh
from tests.rest.materialized import snapshot_commit as snapshot
from tests.rest.view_requests import STORAGE, create, rows

_START_US = 1_700_000_000_000_000
"""Time of the snapshot with number 0, in microseconds."""
_HIDDEN = {"id": 2, "name": "polaris_state_0", "type": "long", "required": False}


def ask(catalog: Client, name: str = "v", **question: Any) -> Answer:
    """Ask for the snapshot of the storage table that has earlier rows of a view in `db`."""
    body = {field.replace("_", "-"): value for field, value in question.items()}
    return catalog.send("POST", f"polaris-spark/v1/namespaces/db/materialized-views/{name}/as-of", body)


def at(catalog: Client, **question: Any) -> tuple[int, list[str]]:
    """Return the snapshot of the storage table that has the view's rows at a time or commit, and the columns."""
    answer = ask(catalog, **question)
    assert answer.status == 200, answer
    return answer.body["snapshot-id"], answer.body["columns"]


def change(catalog: Client, *updates: dict[str, Any]) -> None:
    """Change the storage table."""
    catalog.ok("POST", STORAGE, {"requirements": [], "updates": list(updates)})


def main_at(id: int) -> dict[str, Any]:
    """An update that makes a snapshot current."""
    return {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": id}


def renamed_id(body: dict[str, Any], id: int) -> dict[str, Any]:
    """The commit of a refresh with another refresh id."""
    summary = body["updates"][0]["snapshot"]["summary"]
    summary["polaris.refresh"] = json.dumps({**json.loads(summary["polaris.refresh"]), "refresh-id": id})
    return body


@pytest.mark.parametrize("time_travel", ["true", "false"])
def test_a_version_is_a_snapshot_a_refresh_a_tag_or_a_branch(catalog: Client, time_travel: str) -> None:
    uuid = create(catalog, time_travel=time_travel)["view-uuid"]
    rows(catalog, renamed_id(refresh(uuid, 100, 1), 7))
    second = refresh(uuid, 101, 2, replaces=7)
    second["updates"][0]["snapshot"]["parent-snapshot-id"] = 100
    rows(catalog, renamed_id(second, 8))
    rows(catalog, snapshot(5, 3, 101, operation="replace"))
    tag = {"action": "set-snapshot-ref", "ref-name": "2026", "type": "tag", "snapshot-id": 101}
    change(catalog, tag)
    expected = {"100": 100, "7": 100, "101": 101, "8": 101, "5": 5, "2026": 101, "main": 5}
    assert {version: at(catalog, version=version)[0] for version in expected} == expected


def test_a_time_is_answered_by_the_refresh_that_was_current_then(catalog: Client) -> None:
    uuid = create(catalog)["view-uuid"]
    rows(catalog, refresh(uuid, 100, 1))
    rows(catalog, refresh(uuid, 101, 20, replaces=100))
    rows(catalog, snapshot(5, 30, 101, operation="replace"))
    change(catalog, main_at(100))
    times = {1_000: 100, 19_999: 100, 20_000: 101, 30_000: 5, 10**18: 100}
    found = {time: at(catalog, timestamp_us=_START_US + time)[0] for time in times}
    assert found == times


@pytest.mark.parametrize("time_us", [_START_US + 999, -(2**63)])
def test_a_time_before_the_first_refresh_is_refused(catalog: Client, time_us: int) -> None:
    uuid = create(catalog)["view-uuid"]
    empty = ask(catalog, timestamp_us=time_us)
    assert (empty.status, "it has none" in empty.error["message"]) == (400, True)
    rows(catalog, refresh(uuid, 100, 1))
    message = ask(catalog, timestamp_us=time_us).error["message"]
    assert "db.v has no refresh at or before" in message
    assert "the first was at 2023-11-14T22:13:20.001000+00:00" in message


@pytest.mark.parametrize("version", ["6", "nope", "99999999999999999999", "9223372036854775808", "", "-1"])
def test_an_unknown_or_expired_version_is_refused(catalog: Client, version: str) -> None:
    uuid = create(catalog, time_travel="true")["view-uuid"]
    rows(catalog, refresh(uuid, 6, 1))
    rows(catalog, refresh(uuid, 101, 2, replaces=6))
    change(catalog, {"action": "remove-snapshots", "snapshot-ids": [6]})
    answer = ask(catalog, version=version)
    assert answer.status == 400
    assert f"materialized view db.v has no version {version!r}: " in answer.error["message"]
    assert "system.refreshes" in answer.error["message"]


def test_a_time_before_a_replacement_has_the_columns_of_that_time(catalog: Client) -> None:
    uuid = create(catalog)["view-uuid"]
    wide = {"type": "struct", "fields": [{"id": 1, "name": "a", "type": "long", "required": False}, _HIDDEN]}
    change(
        catalog,
        {"action": "add-schema", "schema": wide},
        {"action": "set-current-schema", "schema-id": -1},
    )
    first = refresh(uuid, 100, 1)
    first["updates"][0]["snapshot"]["schema-id"] = 1
    rows(catalog, first)
    create_materialized_view(catalog.session.catalog, "v", "SELECT a AS b FROM t", replace=True, column="b")
    assert at(catalog, timestamp_us=_START_US + 10**9) == (100, ["a"])
    second = refresh(uuid, 101, 2, version=2)
    second["updates"][0]["snapshot"]["schema-id"] = 2
    rows(catalog, second)
    assert at(catalog, version="101") == (101, ["b"])
    assert at(catalog, version="100") == (100, ["a"])
    # A compaction of the earlier rows would have the columns of now.
    change(catalog, main_at(100))
    log = catalog.ok("GET", STORAGE)["metadata"]["snapshot-log"]
    compaction = snapshot(5, 3, 100, operation="replace")
    compaction["updates"][0]["snapshot"] |= {"schema-id": 2, "timestamp-ms": log[-1]["timestamp-ms"]}
    refused = catalog.send("POST", STORAGE, compaction)
    assert (refused.status, "a compaction would lose" in refused.error["message"]) == (400, True)


def test_only_materialized_views_have_earlier_rows(catalog: Client) -> None:
    catalog.ok("POST", f"{path('db')}/views", view_request("plain"))
    create(catalog)
    for name in ("plain", "gone"):
        assert ask(catalog, name, version="5").kind == (404, "NoSuchViewException")
    for question in ({}, {"version": "5", "timestamp_us": 5}):
        assert "either a version or a timestamp" in ask(catalog, **question).error["message"]
