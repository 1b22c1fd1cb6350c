"""Tables over the protocol."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from pyiceberg.types import IntegerType

from tests.rest.client import (
    SCHEMA,
    Client,
    at_once,
    files_below,
    path,
    rename,
    set_properties,
    table,
    table_request,
    tables,
    view,
    view_request,
)
from tests.rest.conftest import Open
from tests.rest.icebergs import ROWS, open_table
from tests.rest.staging import CREATE, creation, staged


def test_a_created_table_is_answered_as_it_is_loaded(opened: Open, store: str, warehouse: Path) -> None:
    catalog = opened(store, warehouse)
    catalog.namespace("db")
    created = catalog.create("t", properties={"k": "v"})
    metadata = created["metadata"]
    assert metadata["schemas"] == [SCHEMA]
    assert metadata["properties"]["k"] == "v"
    assert metadata["format-version"] == 2
    assert created == catalog.load()
    assert catalog.send("HEAD", table("t")).status == 204
    assert catalog.names("db") == ["t"]


def test_a_default_location_lies_below_the_warehouse_and_ends_in_the_uuid(
    catalog: Client, warehouse: Path
) -> None:
    catalog.namespace("db", "in/ner")
    metadata = catalog.create("t é", ("db", "in/ner"))["metadata"]
    uuid = metadata["table-uuid"]
    assert metadata["location"] == f"file://{warehouse}/db/in_ner/t__-{uuid}"


def test_a_namespaces_location_is_where_its_tables_go(catalog: Client, tmp_path: Path) -> None:
    catalog.namespace("own", properties={"location": f"file://{tmp_path}/own/"})
    location = catalog.create("t", ("own",))["metadata"]["location"]
    assert location.startswith(f"file://{tmp_path}/own/t-")


def test_a_name_is_given_once_to_tables_and_views_together(catalog: Client) -> None:
    catalog.create("t")
    catalog.ok("POST", f"{path('db')}/views", view_request("v"))
    expected = [
        (tables("db"), table_request("t"), "Table already exists: db.t"),
        (tables("db"), table_request("v"), "View with same name already exists: db.v"),
        (f"{path('db')}/views", view_request("v"), "View already exists: db.v"),
        (f"{path('db')}/views", view_request("t"), "Table with same name already exists: db.t"),
    ]
    for where, body, message in expected:
        answer = catalog.send("POST", where, body)
        assert answer.kind == (409, "AlreadyExistsException")
        assert answer.error["message"] == message


def test_a_table_needs_its_namespace(catalog: Client) -> None:
    answer = catalog.send("POST", tables("nope"), table_request("t"))
    assert answer.kind == (404, "NoSuchNamespaceException")


def test_a_staged_table_exists_once_it_is_committed(catalog: Client, warehouse: Path) -> None:
    before = catalog.session.catalog.head().version
    metadata = staged(catalog, "t", properties={"k": "v"})
    assert catalog.session.catalog.head().version == before
    assert not files_below(warehouse)
    assert catalog.send("GET", table("t")).status == 404
    answer = catalog.commit("t", *creation(metadata), requirements=CREATE)
    assert answer.status == 200, answer
    loaded = catalog.load()["metadata"]
    same = ("table-uuid", "location", "schemas", "properties", "partition-specs", "sort-orders")
    assert {name: loaded[name] for name in same} == {name: metadata[name] for name in same}


@pytest.mark.parametrize("metadata_files", ["every-commit", "never"])
def test_a_staged_table_in_a_local_warehouse_has_its_metadata_folder(
    opened: Open, warehouse: Path, metadata_files: str
) -> None:
    catalog = opened(f"memory:{uuid.uuid4()}", warehouse, metadata_files=metadata_files)
    catalog.namespace("db")
    assert Path(staged(catalog, "t")["location"].removeprefix("file://"), "metadata").is_dir()
    staged(catalog, "u", properties={"write.metadata.path": f"file://{warehouse}/aside/"})
    assert (warehouse / "aside").is_dir()


def test_a_creation_is_staged_where_its_folder_cannot_be_made(catalog: Client, warehouse: Path) -> None:
    warehouse.mkdir()
    (warehouse / "db").write_text("a file where the namespace's folder would be")
    assert staged(catalog, "t")["location"].startswith(f"file://{warehouse}/db/t-")


def test_only_one_of_two_staged_creations_of_a_name_is_committed(catalog: Client) -> None:
    one, other = staged(catalog, "t"), staged(catalog, "t")
    assert catalog.commit("t", *creation(one), requirements=CREATE).status == 200
    answer = catalog.commit("t", *creation(other), requirements=CREATE)
    assert answer.kind == (409, "AlreadyExistsException")
    assert answer.error["message"] == "Requirement failed: table already exists: db.t"
    assert catalog.load()["metadata"]["table-uuid"] == one["table-uuid"]


def test_a_staged_creation_is_refused_like_a_creation(catalog: Client) -> None:
    catalog.create("t")
    used = catalog.load()["metadata"]["location"]
    bodies = {"t": {}, "u": {"location": used}, "w": {"location": f"{used}/below"}, "": {}}
    statuses = [
        catalog.send("POST", tables("db"), {**table_request(name, **rest), "stage-create": True}).status
        for name, rest in bodies.items()
    ]
    assert statuses == [409, 403, 403, 400]


def test_a_creation_tolerates_no_other_requirement(catalog: Client) -> None:
    metadata = staged(catalog, "t")
    both = (*CREATE, {"type": "assert-table-uuid", "uuid": metadata["table-uuid"]})
    assert catalog.commit("t", *creation(metadata), requirements=both).status == 400
    assert catalog.names("db") == []


def test_a_commit_to_a_missing_table_is_refused(catalog: Client) -> None:
    assert catalog.commit("t", set_properties(a="1")).kind == (404, "NoSuchTableException")


def test_a_table_is_created_with_its_data_at_once(catalog: Client) -> None:
    """CREATE TABLE AS SELECT: the client writes files to the staged location. One commit creates the table with its
    data."""
    metadata = staged(catalog, "t")
    snapshot = {
        "snapshot-id": 7,
        "sequence-number": 1,
        "timestamp-ms": metadata["last-updated-ms"] + 1,
        "manifest-list": f"{metadata['location']}/metadata/snap-7.avro",
        "summary": {"operation": "append"},
        "schema-id": 0,
    }
    updates = [
        {"action": "add-snapshot", "snapshot": snapshot},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 7},
    ]
    answer = catalog.commit("t", *creation(metadata), *updates, requirements=CREATE)
    assert answer.status == 200, answer
    assert catalog.load()["metadata"]["current-snapshot-id"] == 7


def test_a_table_created_by_a_commit_gets_a_uuid_if_none_is_assigned(catalog: Client) -> None:
    updates = [one for one in creation(staged(catalog, "t")) if one["action"] != "assign-uuid"]
    assert catalog.commit("t", *updates, requirements=CREATE).status == 200
    assert uuid.UUID(catalog.load()["metadata"]["table-uuid"])


def test_a_table_is_replaced_as_javas_client_does(catalog: Client) -> None:
    first = catalog.create("t", properties={"old": "1"})["metadata"]
    open_table(catalog).append(ROWS)
    schema = {**SCHEMA, "schema-id": 1, "fields": [{"id": 3, "name": "c", "required": False, "type": "int"}]}
    updates = [
        {"action": "remove-snapshot-ref", "ref-name": "main"},
        {"action": "add-schema", "schema": schema, "last-column-id": 3},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "set-properties", "updates": {"new": "1"}},
    ]
    same = ({"type": "assert-table-uuid", "uuid": first["table-uuid"]},)
    answer = catalog.commit("t", *updates, requirements=same)
    assert answer.status == 200, answer
    replaced = catalog.load()["metadata"]
    assert replaced["table-uuid"] == first["table-uuid"]
    assert replaced["current-schema-id"] == 1
    assert replaced.get("current-snapshot-id", -1) in (-1, None)
    assert len(replaced["snapshots"]) == 1
    assert replaced["properties"]["old"] == replaced["properties"]["new"] == "1"


def test_a_commit_without_effect_makes_no_new_version(catalog: Client) -> None:
    before = catalog.create()
    answer = catalog.commit("t")
    assert answer.status == 200
    assert answer.body["metadata-location"] == before["metadata-location"]


def test_every_version_has_its_own_metadata_location(opened: Open, store: str, warehouse: Path) -> None:
    catalog = opened(store, warehouse, metadata_files="never")
    catalog.namespace("db")
    found = [catalog.create()["metadata-location"]]
    found += [catalog.set("t", x=str(i))["metadata-location"] for i in range(5)]
    assert len(set(found)) == 6
    assert [location.rsplit("/", 1)[1][:6] for location in found] == [f"0000{i}-" for i in range(6)]
    log = [item["metadata-file"] for item in catalog.load()["metadata"]["metadata-log"]]
    assert log == found[:-1]


def test_a_load_may_ask_for_the_snapshots_that_refs_name(catalog: Client) -> None:
    catalog.create()
    made = open_table(catalog)
    for _ in range(3):
        made.append(ROWS)
    assert len(catalog.load()["metadata"]["snapshots"]) == 3
    assert len(catalog.load(snapshots="all")["metadata"]["snapshots"]) == 3
    refs = catalog.load(snapshots="refs")["metadata"]
    assert [s["snapshot-id"] for s in refs["snapshots"]] == [refs["current-snapshot-id"]]
    assert catalog.send("GET", table("t"), query={"snapshots": "some"}).kind == (400, "BadRequestException")


def test_a_version_that_the_client_has_is_not_sent_again(catalog: Client) -> None:
    catalog.create()
    tag = catalog.send("GET", table("t")).headers["ETag"]
    for known in (tag, f"W/{tag}", f'"x", {tag}', f'W/"y",{tag} ', "*"):
        answer = catalog.send("GET", table("t"), headers={"if-none-match": known})
        assert (answer.status, answer.body, answer.headers["ETag"]) == (304, None, tag)
    for other in ('"x"', "", "x" * 100_000, f"{tag[:-1]}", "\ud800"):
        assert catalog.send("GET", table("t"), headers={"If-None-Match": other}).status == 200
    refs = catalog.send("GET", table("t"), query={"snapshots": "refs"}, headers={"If-None-Match": tag})
    assert refs.status == 200
    committed = catalog.commit("t", set_properties(a="1")).headers["ETag"]
    assert catalog.send("GET", table("t"), headers={"If-None-Match": tag}).status == 200
    assert catalog.send("GET", table("t"), headers={"If-None-Match": committed}).status == 304


def test_a_version_of_a_dropped_table_is_never_taken_for_that_of_the_next(catalog: Client) -> None:
    catalog.create()
    tag = catalog.send("GET", table("t")).headers["ETag"]
    catalog.send("DELETE", table("t"))
    assert catalog.send("GET", table("t"), headers={"If-None-Match": tag}).status == 404
    catalog.create()
    assert catalog.send("GET", table("t"), headers={"If-None-Match": tag}).status == 200


@pytest.mark.parametrize("kind", ["table", "view"])
def test_a_rename_moves_across_namespaces_and_keeps_everything(catalog: Client, kind: str) -> None:
    catalog.namespace("other")
    body = table_request("t") if kind == "table" else view_request("t")
    before = catalog.ok("POST", f"{path('db')}/{kind}s", body)
    where = table if kind == "table" else view
    assert catalog.send("POST", f"v1/{kind}s/rename", rename("t", "u", ("other",))).status == 204
    assert catalog.ok("GET", where("u", ("other",))) == before
    assert catalog.send("GET", where("t")).status == 404
    assert (catalog.names("db", kind=f"{kind}s"), catalog.names("other", kind=f"{kind}s")) == ([], ["u"])


@pytest.mark.parametrize("kind", ["table", "view"])
@pytest.mark.parametrize(("target", "taken"), [("t2", "Table"), ("v2", "View")])
def test_a_rename_to_a_used_name_names_the_entity_that_has_it(
    catalog: Client, kind: str, target: str, taken: str
) -> None:
    for name in ("table", "t2"):
        catalog.create(name)
    for name in ("view", "v2"):
        catalog.ok("POST", f"{path('db')}/views", view_request(name))
    answer = catalog.send("POST", f"v1/{kind}s/rename", rename(kind, target))
    assert answer.error["message"] == f"Cannot rename db.{kind} to db.{target}. {taken} already exists"


def test_a_rename_is_refused_where_its_ends_are_not_right(catalog: Client) -> None:
    catalog.create("t")
    catalog.create("taken")
    catalog.ok("POST", f"{path('db')}/views", view_request("v"))
    expected = {
        ("nope", "u", ("db",)): (404, "NoSuchTableException"),
        ("t", "u", ("nope",)): (404, "NoSuchNamespaceException"),
        ("t", "taken", ("db",)): (409, "AlreadyExistsException"),
        ("t", "v", ("db",)): (409, "AlreadyExistsException"),
        ("v", "u", ("db",)): (404, "NoSuchTableException"),
        ("nope", "nope", ("db",)): (404, "NoSuchTableException"),
    }
    for (source, target, to), kind in expected.items():
        assert catalog.send("POST", "v1/tables/rename", rename(source, target, to)).kind == kind
    assert catalog.send("POST", "v1/views/rename", rename("t", "u")).kind == (404, "NoSuchViewException")
    assert catalog.send("POST", "v1/tables/rename", rename("t", "t")).status == 204
    assert catalog.names("db") == ["t", "taken"]


def test_a_dropped_table_is_gone_and_its_files_are_not(catalog: Client, warehouse: Path) -> None:
    catalog.create()
    open_table(catalog).append(ROWS)
    files = files_below(warehouse)
    assert catalog.send("DELETE", table("t")).status == 204
    for method in ("GET", "HEAD", "DELETE"):
        assert catalog.send(method, table("t")).status == 404
    assert catalog.commit("t", set_properties(a="1")).status == 404
    assert files_below(warehouse) == files


def test_pyiceberg_writes_and_reads_what_the_catalog_keeps(opened: Open, store: str, warehouse: Path) -> None:
    catalog = opened(store, warehouse)
    catalog.namespace("db")
    catalog.create()
    made = open_table(catalog)
    made.append(ROWS)
    made.delete("a = 2")
    with made.update_schema() as update:
        update.add_column("c", IntegerType())
    rows = open_table(catalog).scan().to_arrow().sort_by("a").to_pydict()
    assert rows == {"a": [1, 3], "b": ["x", "z"], "c": [None, None]}


def test_concurrent_commits_to_one_table_all_happen(opened: Open, store: str, warehouse: Path) -> None:
    catalog = opened(store, warehouse)
    catalog.namespace("db")
    catalog.create()

    def work(thread: int) -> None:
        for i in range(10):
            catalog.set("t", **{f"p{thread}-{i}": "1"})

    at_once([lambda thread=thread: work(thread) for thread in range(8)])
    metadata = catalog.load()["metadata"]
    assert sum(name.startswith("p") for name in metadata["properties"]) == 80
    assert len(metadata["metadata-log"]) == 80


def test_of_concurrent_creations_of_a_name_one_succeeds(opened: Open, store: str, warehouse: Path) -> None:
    catalog = opened(store, warehouse)
    catalog.namespace("db")
    answers = at_once([lambda: catalog.send("POST", tables("db"), table_request("t")) for _ in range(8)])
    assert sorted(answer.status for answer in answers) == [200] + [409] * 7
    winner = next(answer for answer in answers if answer.status == 200)
    assert catalog.load() == winner.body
    assert len(files_below(warehouse)) == 1


def test_of_concurrent_commits_on_one_snapshot_one_succeeds(catalog: Client) -> None:
    created = catalog.create()
    requirement = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}

    def append(id: int) -> int:
        snapshot = {
            "snapshot-id": id,
            "sequence-number": 1,
            "timestamp-ms": created["metadata"]["last-updated-ms"],
            "manifest-list": f"/nowhere/{id}",
            "summary": {"operation": "append"},
        }
        ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": id}
        return catalog.commit(
            "t", {"action": "add-snapshot", "snapshot": snapshot}, ref, requirements=(requirement,)
        ).status

    statuses = at_once([lambda id=id: append(id) for id in range(1, 9)])
    assert sorted(statuses) == [200] + [409] * 7
    assert len(catalog.load()["metadata"]["snapshots"]) == 1
