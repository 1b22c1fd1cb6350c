"""Sources of materialized views outside of the catalog: tables of other catalogs, and Delta tables."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from polaris_spark.catalog.entities.entities import TableName
from polaris_spark.catalog.materialized.outside_sources import OutsideSources
from polaris_spark.catalog.materialized.query_pinning import pin
from polaris_spark.catalog.materialized.view_freshness import freshness
from polaris_spark.catalog.materialized.view_sources import ViewQuery
from polaris_spark.errors import BadRequestError
from polaris_spark.extension import ROUTER
from polaris_spark.jobs.registry import call
from polaris_spark.rest.access import Caller, Role
from polaris_spark.rest.handler import handle
from tests.rest.client import VIEW_VERSION, Client, path, view_request
from tests.rest.materialized import SCHEMA, create_materialized_view, refresh
from tests.rest.materialized import snapshot_commit as snapshot
from tests.rest.view_requests import create, how, rows, state, table


@pytest.mark.parametrize("suffix", ["", " VERSION AS OF 1", ".branch_b"])
def test_a_materialized_view_cannot_read_its_own_storage_table(catalog: Client, suffix: str) -> None:
    create(catalog)
    query = ViewQuery(f"SELECT a FROM db.v.storage{suffix}", "", ("db",))
    with pytest.raises(BadRequestError, match=r"view db\.v reads itself: db\.v reads db\.v"):
        pin(catalog.session.catalog.view(), "polaris", query, TableName(("db",), "v"))


@pytest.mark.parametrize(
    "option", ["'branch' = 'b'", "BRANCH 'b'", "'split-size' = '5', 'versionAsOf' = '1'"]
)
def test_a_table_is_not_read_with_an_option_that_changes_its_rows(catalog: Client, option: str) -> None:
    table(catalog)
    query = ViewQuery(f"SELECT a FROM db.t WITH ({option})", "", ("db",))
    with pytest.raises(BadRequestError, match=r"db\.t is read with the option '(branch|BRANCH|versionAsOf)'"):
        pin(catalog.session.catalog.view(), "polaris", query, TableName(("db",), "v"))


def test_a_column_that_is_newer_than_the_snapshot_is_null_in_its_type_of_spark(catalog: Client) -> None:
    base = table(catalog)
    catalog.ok("POST", base, snapshot(1, 1, operation="append"))
    types = {"b": "fixed[4]", "c": "timestamp", "d": "decimal(9, 2)"}
    more = [
        {"id": id, "name": name, "type": type, "required": False}
        for id, (name, type) in enumerate(types.items(), 2)
    ]
    add = {"action": "add-schema", "schema": {**SCHEMA, "fields": [*SCHEMA["fields"], *more]}}
    current = {"action": "set-current-schema", "schema-id": -1}
    catalog.ok("POST", base, {"requirements": [], "updates": [add, current]})
    query = ViewQuery("SELECT * FROM db.t", "", ("db",))
    found = pin(catalog.session.catalog.view(), "polaris", query, TableName(("db",), "v")).sql
    assert (
        "CAST(NULL AS BINARY) AS `b`, CAST(NULL AS TIMESTAMP_NTZ) AS `c`, CAST(NULL AS decimal(9, 2))"
        in found
    )


def test_a_location_with_a_password_is_refused_without_showing_it(catalog: Client) -> None:
    for location in ("s3://me:secret@bucket/t", "hdfs://me:secret@host:8020/t"):
        query = ViewQuery(f"SELECT a FROM iceberg.`{location}`", "", ("db",))
        with pytest.raises(BadRequestError, match="contains a password") as caught:
            pin(catalog.session.catalog.view(), "polaris", query, TableName(("db",), "v"))
        assert "secret" not in str(caught.value)
    account = ViewQuery("SELECT a FROM iceberg.`abfss://container@account/t`", "", ("db",))
    with pytest.raises(BadRequestError, match="only in a Spark session"):
        pin(catalog.session.catalog.view(), "polaris", account, TableName(("db",), "v"))


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
    known = [{**table, "snapshots": []}, {**table, "snapshots": []}, {**view, "schema": {"fields": []}}]
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
    """Call a procedure as an administrator over HTTP, and return its rows."""
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
