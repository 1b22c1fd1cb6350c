"""Changes as OpenLineage events, and their delivery to a receiver that fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from polaris_spark.catalog.imports.directory import DirectoryTree
from polaris_spark.cli.changed_datasets import DatasetReader
from polaris_spark.cli.openlineage import MAX_OUTPUTS, endpoint, events_of, name_of_location
from polaris_spark.cli.stores import OpenStore, open_store
from tests.catalog.imports.support import run as run_import
from tests.catalog.imports.support import table_metadata, write
from tests.cli.lineage_receivers import SOURCE, Json, check_event, commit, new_catalog
from tests.rest.client import Client
from tests.rest.materialized import SCHEMA, create_materialized_view, refresh
from tests.views.catalogs import Catalog, archive

TABLE = "v1/namespaces/db/tables/t"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """A catalog with the namespace `db` and the table `t`."""
    return new_catalog(tmp_path)


def reader_of(opened: OpenStore) -> DatasetReader:
    realm = opened.realm("default")
    return DatasetReader("polaris", lambda: realm.catalog_head(realm.catalog(None), "main"))


def events(catalog: Catalog, after: int = 0, source: str = SOURCE) -> list[Json]:
    """The valid events of the ends of runs after a commit number, oldest first."""
    status, _, text = catalog.session.request("GET", "polaris-spark/v1/changes", {"after": str(after)})
    assert status == 200, text
    with open_store(catalog.store, None) as opened:
        made = list(events_of(json.loads(text)["changes"], source, reader_of(opened)))
    found = [json.loads(one.text) for one in made]
    for event in found:
        check_event(event)
    assert [one["eventType"] for one in found] == ["START", "COMPLETE"] * (len(found) // 2)
    assert [one["run"] for one in found[::2]] == [one["run"] for one in found[1::2]]
    return found[1::2]


def last(catalog: Catalog) -> Json:
    """The event of the newest run."""
    return events(catalog)[-1]


def output(event: Json) -> Json:
    """The only output of an event, with all its facets."""
    (found,) = event["outputs"]
    return {"name": found["name"], **found["facets"], **found["outputFacets"]}


def state_change(event: Json) -> str | None:
    found = output(event).get("lifecycleStateChange", {}).get("lifecycleStateChange")
    assert found is None or isinstance(found, str)
    return found


def test_an_append_has_its_job_counts_version_and_schema(catalog: Catalog) -> None:
    counts = {"added_records": "3", "added_files_size": "77", "added_data_files": "2"}
    commit(catalog, 5, operation="append", job="nightly", **counts)
    event = last(catalog)
    assert event["job"]["namespace"] == SOURCE
    assert event["job"]["name"] == "nightly"
    found = output(event)
    statistics = {key: value for key, value in found["outputStatistics"].items() if key[0] != "_"}
    assert statistics == {"rowCount": 3, "size": 77, "fileCount": 2}
    assert found["version"]["datasetVersion"] == "5"
    assert found["schema"]["fields"] == [{"name": "a", "type": "long"}]
    assert (found["datasetType"]["datasetType"], found["catalog"]["name"]) == ("TABLE", "polaris")
    assert state_change(event) is None
    assert event["inputs"] == []


def test_the_commits_of_pyiceberg_have_their_counts_and_state_changes(catalog: Catalog) -> None:
    rows = pa.table({"a": [1, 2]})
    properties = {"py-catalog-impl": "polaris_spark.pyiceberg.PolarisCatalog", "store": catalog.store}
    with load_catalog("polaris", **properties) as client:
        table = client.load_table("db.t")
        table.append(rows)
        table.delete("a = 1")
        table.delete()
    made = [output(one) for one in events(catalog)[1:]]
    assert [one["outputStatistics"]["rowCount"] for one in made] == [2, 1, 0]
    assert [one["outputStatistics"]["fileCount"] for one in made] == [1, 1, 0]
    assert made[0]["outputStatistics"]["size"] > 0
    assert [state_change(one) for one in events(catalog)[1:]] == [None, "OVERWRITE", "TRUNCATE"]


def test_datasets_are_named_by_location_and_linked_to_their_names(catalog: Catalog) -> None:
    location = catalog.load("db", "t")["location"]
    (found,) = last(catalog)["outputs"]
    assert (found["namespace"], found["name"]) == ("file", location.removeprefix("file://"))
    (link,) = found["facets"]["symlinks"]["identifiers"]
    assert link == {"namespace": SOURCE, "name": "db.t", "type": "TABLE"}


@pytest.mark.parametrize(
    ("summary", "expected"),
    [
        ({"operation": "append"}, None),
        ({"operation": "replace", "total-data-files": "1", "added-data-files": "1"}, None),
        ({"operation": "overwrite", "total-data-files": "2", "added-data-files": "2"}, "OVERWRITE"),
        ({"operation": "overwrite", "total-data-files": "3", "added-data-files": "2"}, None),
        ({"operation": "delete", "total-records": "0"}, "TRUNCATE"),
        ({"operation": "delete", "total-records": "4", "total-data-files": "1"}, None),
        ({"operation": "overwrite", "total-records": "many"}, None),
        ({"operation": "delete", "total-data-files": "2", "added-data-files": "2"}, None),
    ],
    ids=str,
)
def test_whether_a_commit_of_data_replaced_all_rows(
    catalog: Catalog, summary: dict[str, str], expected: str | None
) -> None:
    catalog.snapshot("db", "t", 5, summary=summary)
    assert state_change(last(catalog)) == expected


def test_each_change_of_the_life_cycle_has_its_name(catalog: Catalog) -> None:
    catalog.set_property("db", "t", "k", "v")
    names = {"namespace": ["db"], "name": "t"}, {"namespace": ["db"], "name": "u"}
    catalog.request("POST", "v1/tables/rename", dict(zip(("source", "destination"), names, strict=True)))
    catalog.request("DELETE", "v1/namespaces/db/tables/u")
    catalog.view("db", "w", "SELECT a FROM u")
    catalog.request("DELETE", "v1/namespaces/db/views/w")
    found = events(catalog)
    assert [state_change(one) for one in found] == ["CREATE", "ALTER", "RENAME", "DROP", "CREATE", "DROP"]
    renamed = output(found[2])["lifecycleStateChange"]
    assert renamed["previousIdentifier"] == {"namespace": SOURCE, "name": "db.t"}
    assert {output(one)["name"] for one in found[:4]} == {output(found[0])["name"]}
    assert output(found[3])["schema"]["fields"] == [{"name": "a", "type": "long"}]
    assert found[1]["job"]["name"] == "ada.update-table.db.t"


def test_a_tag_alters_nothing_and_a_replaced_table_is_overwritten(catalog: Catalog) -> None:
    counts = {"added-data-files": "1", "total-data-files": "1"}
    catalog.snapshot("db", "t", 5, summary={"operation": "append", **counts})
    tag = {"action": "set-snapshot-ref", "ref-name": "k", "type": "tag", "snapshot-id": 5}
    catalog.update("db", "t", tag)
    assert state_change(last(catalog)) is None
    column = {"id": 2, "name": "b", "required": False, "type": "long"}
    schema = {**SCHEMA, "fields": [*SCHEMA["fields"], column]}  # type: ignore[misc]  # it is a list
    added = {"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}
    catalog.update("db", "t", *added)
    assert state_change(last(catalog)) == "ALTER"
    assert [one["name"] for one in output(last(catalog))["schema"]["fields"]] == ["a", "b"]
    gone = {"action": "remove-snapshot-ref", "ref-name": "main"}
    snapshot = {
        "snapshot-id": 6,
        "sequence-number": 2,
        "timestamp-ms": catalog.load("db", "t")["last-updated-ms"],
        "summary": {"operation": "append", **counts},
        "manifest-list": "/manifests/6",
        "schema-id": 0,
    }
    to_main = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 6}
    catalog.update("db", "t", gone, {"action": "add-snapshot", "snapshot": snapshot}, to_main)
    assert state_change(last(catalog)) == "OVERWRITE"


def test_changes_that_share_a_commit_but_not_an_operation_are_runs_of_their_own(
    catalog: Catalog,
) -> None:
    """As when the changes of several sessions are committed together."""
    commit = {"number": 1, "id": "a", "time": "2026-01-31T00:00:00.000Z"}

    def change(position: int, principal: str) -> Json:
        return {
            "commit": commit,
            "position": f"1-a-{position}",
            "action": "update-table",
            "kind": "table",
            "name": "db.t",
            "entity": "7",
            "principal": principal,
            "time": commit["time"],
            "operation": None,
            "before": "5",
            "after": "6",
            "summary": {"operation": "append"},
        }

    with open_store(catalog.store, None) as opened:
        reader = reader_of(opened)  # the commit does not exist, as if it was swept
        found = list(events_of([change(1, "ada"), change(2, "")], SOURCE, reader))
    names = [json.loads(one.text)["job"]["name"] for one in found]
    assert names == ["ada.append.db.t"] * 2 + ["polaris-spark.append.db.t"] * 2
    assert [(one.id, one.is_last) for one in found[2:]] == [("1-a-2", False), ("1-a-2", True)]
    assert len({json.loads(one.text)["run"]["runId"] for one in found}) == 2


def test_changes_that_keep_the_content_have_no_events(catalog: Catalog) -> None:
    for id in (5, 6):
        commit(catalog, id, operation="append")
    tag = {"action": "set-snapshot-ref", "ref-name": "k", "type": "tag", "snapshot-id": 6}
    before = events(catalog)
    catalog.namespace("other")
    catalog.update("db", "t", tag)
    catalog.update("db", "t", {"action": "remove-snapshots", "snapshot-ids": [5]})
    assert events(catalog) == before


def test_a_rollback_has_the_older_version(catalog: Catalog) -> None:
    for id in (5, 6):
        commit(catalog, id, operation="append", job=f"job{id}")
    to_main = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 5}
    catalog.update("db", "t", to_main)
    event = last(catalog)
    assert event["job"]["name"] == "ada.update-table.db.t"
    assert (output(event)["version"]["datasetVersion"], state_change(event)) == ("5", None)


@pytest.mark.parametrize("lazy", [False, True])
def test_an_import_creates_or_alters(catalog: Catalog, tmp_path: Path, lazy: bool) -> None:
    root = tmp_path / "source"
    client = Client(catalog.session)
    for snapshots, expected in ((1, "CREATE"), (2, "ALTER")):
        metadata = table_metadata(root / "other" / "t", snapshots=snapshots)
        write(root / "other" / "t", metadata, f"0000{snapshots}-a.metadata.json")
        run_import(client, DirectoryTree(str(root), {}), lazy=lazy, overwrite=True)
        event = last(catalog)
        (found,) = event["outputs"]
        assert (found["namespace"], found["name"]) == ("file", f"{root}/other/t")
        assert ("schema" in found["facets"]) is not lazy
        assert (event["job"]["name"], state_change(event)) == ("importer.import-table.other.t", expected)


def test_a_view_has_its_query_and_what_it_reads(catalog: Catalog) -> None:
    catalog.view("db", "w", "SELECT a FROM t")
    event = last(catalog)
    assert event["job"]["facets"]["sql"]["query"] == "SELECT a FROM t"
    (read,) = event["inputs"]
    assert read["name"] == output(events(catalog)[0])["name"]
    found = output(event)
    assert (found["datasetType"]["datasetType"], found["version"]["datasetVersion"]) == ("VIEW", "1")


def test_a_refresh_has_what_it_read_and_the_lineage_of_columns(catalog: Catalog) -> None:
    create_materialized_view(catalog.session.catalog, "v")
    uuid = catalog.request("GET", "v1/namespaces/db/views/v")["metadata"]["view-uuid"]
    source = {"type": "table", "namespace": ["db"], "name": "t"}
    outside = {"type": "table", "catalog": "", "namespace": ["delta"], "name": "s3a://b/k/", "columns": ["x"]}
    hive = {"type": "table", "catalog": "hive", "namespace": ["x"], "name": "o"}
    sources = [{**source, "columns": ["a", "b"]}, outside, hive]
    lineage = {"sources": sources, "edges": {"AGGREGATION": [[0, 0, 1]], "FILTER": [[None, 1, 0], [0, 0, 1]]}}
    states = [{**source, "uuid": "u", "snapshot-id": 7}]
    body = refresh(uuid, 100, 1, lineage=lineage, **{"source-states": states})
    catalog.request("POST", "v1/namespaces/db%1Fv/tables/storage", body)
    created, event = events(catalog)[-2:]
    assert (created["job"]["name"], state_change(created)) == ("me.create-view.db.v", "CREATE")
    assert (event["job"]["name"], event["job"]["facets"]["jobType"]["jobType"]) == ("refresh.db.v", "REFRESH")
    t = output(events(catalog)[0])["name"]
    assert [(one["namespace"], one["name"]) for one in event["inputs"]] == [
        ("file", t),
        ("s3://b", "k"),
        ("hive", "x.o"),
    ]
    assert event["inputs"][0]["facets"]["version"]["datasetVersion"] == "7"
    found = output(event)
    assert found["name"] == output(created)["name"]
    assert found["datasetType"]["subType"] == "MATERIALIZED"
    assert found["symlinks"]["identifiers"][0]["name"] == "db.v"
    (field,) = found["columnLineage"]["fields"]["a"]["inputFields"]
    assert (field["name"], field["field"]) == (t, "b")
    assert field["transformations"] == [
        {"type": "DIRECT", "subtype": "AGGREGATION"},
        {"type": "INDIRECT", "subtype": "FILTER"},
    ]
    (whole,) = found["columnLineage"]["dataset"]
    assert (whole["namespace"], whole["name"], whole["field"]) == ("s3://b", "k", "x")


def test_a_refresh_and_its_effects_on_the_view_are_one_run_of_one_change(catalog: Catalog) -> None:
    create_materialized_view(catalog.session.catalog, "v")
    uuid = catalog.request("GET", "v1/namespaces/db/views/v")["metadata"]["view-uuid"]
    storage = "v1/namespaces/db%1Fv/tables/storage"
    for id, number, replaces in ((100, 1, None), (101, 2, 100)):
        catalog.request(
            "POST", storage, refresh(uuid, id, number, replaces=replaces, **{"source-states": []})
        )
    expiry = {"action": "remove-snapshots", "snapshot-ids": [100]}
    catalog.request("POST", storage, {"requirements": [], "updates": [expiry]})
    property = {"action": "set-properties", "updates": {"k": "v"}}
    catalog.request("POST", "v1/namespaces/db/views/v", {"requirements": [], "updates": [property]})
    found = [(one["job"]["name"], state_change(one)) for one in events(catalog)[2:]]
    assert found == [("refresh.db.v", None)] * 2 + [("ada.update-view.db.v", "ALTER")]


def test_a_materialized_view_and_its_storage_table_are_one_dataset(catalog: Catalog) -> None:
    create_materialized_view(catalog.session.catalog, "v")
    names = {"namespace": ["db"], "name": "v"}, {"namespace": ["db"], "name": "n"}
    catalog.request("POST", "v1/views/rename", dict(zip(("source", "destination"), names, strict=True)))
    catalog.request("DELETE", "v1/namespaces/db/views/n")
    created, renamed, dropped = (output(one) for one in events(catalog)[1:])
    assert created["name"] == renamed["name"] == dropped["name"]
    assert renamed["lifecycleStateChange"]["previousIdentifier"] == {"namespace": SOURCE, "name": "db.v"}
    assert renamed["symlinks"]["identifiers"][0]["name"] == "db.n"
    assert dropped["lifecycleStateChange"]["lifecycleStateChange"] == "DROP"
    assert dropped["datasetType"]["subType"] == "MATERIALIZED"


def test_nested_types_are_fields(catalog: Catalog) -> None:
    key = {
        "type": "map",
        "key-id": 7,
        "key": "string",
        "value-id": 8,
        "value": "int",
        "value-required": False,
    }
    struct = {"type": "struct", "fields": [{"id": 6, "name": "m", "required": False, "type": key}]}
    listed = {"type": "list", "element-id": 5, "element": struct, "element-required": False}
    column = {"id": 1, "name": "l", "required": False, "type": listed, "doc": "Parts"}
    schema = {"type": "struct", "schema-id": 0, "fields": [column]}
    catalog.request("POST", "v1/namespaces/db/tables", {"name": "n", "schema": schema})
    (found,) = output(last(catalog))["schema"]["fields"]
    pair = [{"name": "key", "type": "string"}, {"name": "value", "type": "int"}]
    inner = {"name": "m", "type": "map", "fields": pair}
    element = {"name": "_element", "type": "struct", "fields": [inner]}
    assert found == {"name": "l", "type": "array", "fields": [element], "description": "Parts"}


def test_the_changes_of_a_transaction_are_one_run(catalog: Catalog) -> None:
    with catalog.session.transaction() as transaction:
        for name in ("x", "y"):
            body = json.dumps({"name": name, "schema": SCHEMA})
            assert transaction.request("POST", "v1/namespaces/db/tables", body=body)[0] == 200
    event = last(catalog)
    links = [one["facets"]["symlinks"]["identifiers"][0]["name"] for one in event["outputs"]]
    assert links == ["db.x", "db.y"]
    tags = {one["key"]: one["value"] for one in event["run"]["facets"]["tags"]["tags"]}
    assert (tags["principal"], tags["from"]) == ("ada", "transaction")
    assert len({one["run"]["runId"] for one in events(catalog)}) == 2


def test_an_event_is_the_same_whenever_it_is_made(catalog: Catalog) -> None:
    commit(catalog, 5, operation="append")
    before = events(catalog)
    catalog.request("DELETE", "v1/namespaces/db/tables/t")
    assert events(catalog)[:2] == before
    assert events(catalog, source="urn:mine")[0]["run"] != before[0]["run"]


def test_of_swept_commits_the_events_have_what_the_log_has(catalog: Catalog) -> None:
    commit(catalog, 5, operation="append", added_records="3")
    catalog.request("DELETE", "v1/namespaces/db/tables/t")
    catalog.namespace("more")
    archive(catalog, 5)
    created, appended, dropped = events(catalog)
    for event in (created, appended, dropped):
        (found,) = event["outputs"]
        assert (found["namespace"], found["name"]) == (SOURCE, "db.t")
        assert "schema" not in found["facets"]
    assert output(appended)["outputStatistics"]["rowCount"] == 3
    assert [state_change(one) for one in (created, dropped)] == ["CREATE", "DROP"]


def test_a_run_with_other_changes_has_another_id(catalog: Catalog) -> None:
    """A restarted sender may read the changes of a large transaction in other pages."""
    with catalog.session.transaction() as transaction:
        for number in range(MAX_OUTPUTS + 2):
            body = json.dumps({"name": f"x{number:03}", "schema": SCHEMA})
            assert transaction.request("POST", "v1/namespaces/db/tables", body=body)[0] == 200
    whole = events(catalog)[1:]
    assert [len(one["outputs"]) for one in whole] == [MAX_OUTPUTS, 2]
    _, _, text = catalog.session.request("GET", "polaris-spark/v1/changes", {"after": "2"})
    changes = json.loads(text)["changes"]
    with open_store(catalog.store, None) as opened:
        first_page = list(events_of(changes[:50], SOURCE, reader_of(opened)))
    cut = json.loads(first_page[-1].text)
    assert cut["outputs"] == whole[0]["outputs"][:50]
    assert cut["run"]["runId"] not in {one["run"]["runId"] for one in whole}


def test_tables_are_read_when_their_events_are_needed(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for id in range(1, 5):
        commit(catalog, id, operation="append", job=f"job{id}")
    _, _, text = catalog.session.request("GET", "polaris-spark/v1/changes", {"after": "2"})
    changes, read = json.loads(text)["changes"], list[Json]()
    with open_store(catalog.store, None) as opened:
        reader = reader_of(opened)
        now = reader.read
        monkeypatch.setattr(reader, "read", lambda change: (read.append(change), now(change))[1])  # type: ignore[func-returns-value]
        found = events_of(changes, SOURCE, reader)
        assert json.loads(next(found).text)["job"]["name"] == "job1"
        assert read == changes[:2]
        assert len(list(found)) == 7
        assert read == changes


def test_names_of_any_characters_are_sent(catalog: Catalog) -> None:
    name = "表 `🧊`.x"
    catalog.request("POST", "v1/namespaces/db/tables", {"name": name, "schema": SCHEMA})
    (link,) = output(last(catalog))["symlinks"]["identifiers"]
    assert link["name"] == "db.`表 ``🧊``.x`"


@pytest.mark.parametrize(
    ("location", "namespace", "name"),
    [
        ("/a/b", "file", "/a/b"),
        ("file:/a/b/", "file", "/a/b"),
        ("file:///a/b", "file", "/a/b"),
        ("file://host/a", "file://host", "/a"),
        ("file:///", "file", "/"),
        ("s3://bucket/a/b", "s3://bucket", "a/b"),
        ("s3a://bucket/a%20b/#?", "s3://bucket", "a%20b/#?"),
        ("s3://bucket", "s3://bucket", "/"),
        ("gs://bucket/a", "gs://bucket", "a"),
        ("abfs://c@s.dfs.core.windows.net/a", "abfss://c@s.dfs.core.windows.net", "a"),
        ("hdfs://name:8020/a/b/", "hdfs://name:8020", "/a/b"),
        ("/odd:name/a", "file", "/odd:name/a"),
    ],
)
def test_locations_are_named_by_the_rules_of_openlineage(location: str, namespace: str, name: str) -> None:
    assert name_of_location(location) == (namespace, name)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://a:5000", "http://a:5000/api/v1/lineage"),
        ("http://a:5000/", "http://a:5000/api/v1/lineage"),
        ("https://a/openapi/lineage?x=1", "https://a/openapi/lineage?x=1"),
    ],
)
def test_an_address_without_a_path_gets_the_usual_one(url: str, expected: str) -> None:
    assert endpoint(url) == expected


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("eventType",), "COMPLETED"),
        (("eventTime",), "yesterday"),
        (("schemaURL",), "https://openlineage.io/spec/1-0-0/OpenLineage.json#/$defs/RunEvent"),
        (("run", "runId"), "1"),
        (("job", "title"), "x"),
        (("job", "name"), None),
        (("job", "facets", "schema"), {"fields": []}),
        (("job", "facets", "jobType", "processingType"), None),
        (("outputs", 0, "facets", "schema", "columns"), []),
        (("outputs", 0, "facets", "schema", "fields", 0, "name"), 1),
        (("outputs", 0, "facets", "schema", "_schemaURL"), "urn:x"),
        (("outputs", 0, "facets", "lifecycleStateChange", "lifecycleStateChange"), "CHANGE"),
    ],
    ids=str,
)
def test_the_check_of_events_finds_errors(catalog: Catalog, path: tuple[str | int, ...], value: Any) -> None:
    event: Any = last(catalog)
    part = event
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    with pytest.raises(Exception):  # noqa: B017, PT011  # errors of several libraries
        check_event(event)
