"""Which procedures callers over HTTP may call, and which locations and environment variables they may name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import polaris_spark
from polaris_spark.backends.base import ReferenceRow
from polaris_spark.jobs import access
from polaris_spark.jobs.procedure import Parameter
from polaris_spark.jobs.registry import call, procedures
from polaris_spark.rest.access import Role
from polaris_spark.rest.session import Session
from tests.extension.callers import Asking
from tests.extension.conftest import Add
from tests.rest.materialized import create_materialized_view

WAIT = {"wait_seconds": 10.0}


LOCATIONS = [
    "/",
    "/etc",
    "file:///etc",
    "{tmp}",
    "{tmp}/warehouse/../x",
    "{tmp}/store.db",
    "s3://bucket/x",
    "x",
]


@pytest.mark.parametrize("location", LOCATIONS)
@pytest.mark.parametrize("procedure", ["export_metadata", "remove_orphans"])
def test_an_administrator_names_only_locations_that_the_server_allows(
    admin: Asking, local: Asking, tmp_path: Path, procedure: str, location: str
) -> None:
    named = location.replace("{tmp}", str(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    status, body = admin.call(procedure, {"location": named}, **WAIT)
    assert status in (400, 403), body
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("location", LOCATIONS)
def test_an_administrator_creates_a_catalog_only_where_the_server_allows_it(
    admin: Asking, local: Asking, tmp_path: Path, location: str
) -> None:
    named = location.replace("{tmp}", str(tmp_path))
    status, body = admin.call("create_catalog", {"name": "new", "warehouse": named}, **WAIT)
    assert status in (400, 403), body
    assert [row[0] for row in call(local.session, "show_catalogs")] == ["polaris"]


def test_a_link_out_of_the_warehouse_is_not_an_allowed_location(admin: Asking, tmp_path: Path) -> None:
    outside, warehouse = tmp_path / "outside", tmp_path / "warehouse"
    outside.mkdir()
    warehouse.mkdir(exist_ok=True)
    (warehouse / "link").symlink_to(outside)
    for procedure in ("export_metadata", "remove_orphans"):
        assert admin.call(procedure, {"location": str(warehouse / "link")}, **WAIT)[0] == 403


def test_an_export_follows_no_link_below_an_allowed_location(
    admin: Asking, local: Asking, tmp_path: Path
) -> None:
    local.send("POST", "v1/namespaces", {"namespace": ["db"]})
    schema = {"type": "struct", "fields": []}
    local.send("POST", "v1/namespaces/db/tables", {"name": "t", "schema": schema})
    outside, target = tmp_path / "outside", tmp_path / "warehouse" / "exported"
    outside.mkdir()
    target.mkdir(parents=True)
    (target / "db").symlink_to(outside)
    admin.call("export_metadata", {"location": str(target)}, **WAIT)
    assert not list(outside.iterdir())


def test_an_administrator_exports_below_the_warehouse(admin: Asking, local: Asking, tmp_path: Path) -> None:
    local.send("POST", "v1/namespaces", {"namespace": ["db"]})
    schema = {"type": "struct", "fields": []}
    local.send("POST", "v1/namespaces/db/tables", {"name": "t", "schema": schema})
    target = tmp_path / "warehouse" / "exported"
    status, run = admin.call("export_metadata", {"location": str(target)}, **WAIT)
    assert (status, len(run["rows"])) == (200, 1)
    assert [path.suffix for path in target.rglob("*") if path.is_file()] == [".json"]


OF_ACCESS = {one.name for one in access.PROCEDURES}
"""Procedures that need a realm with access control; `tests.access` runs them."""
OFFERED = [
    name
    for name, one in procedures().items()
    if one.over_http and name != "storage_summary" and name not in OF_ACCESS
]


NEEDED = {
    name: {"view": "db.mv"}
    for name in ("describe_materialized_view", "drop_materialized_view", "explain_refresh")
} | {
    "alter_materialized_view": {"view": "db.mv", "set_properties": {"max-staleness": "1 h"}},
    "create_branch": {"name": "new"},
    "drop_branch": {"name": "dev"},
    "undrop_branch": {"name": "dropped"},
    "describe_branch": {"name": "dev"},
    "rename_branch": {"name": "dev", "to": "renamed"},
    "reassign_branch": {"name": "dev", "to": "main"},
    "protect_branch": {"name": "dev"},
    "unprotect_branch": {"name": "dev"},
    "alter_branch": {"name": "dev", "comment": "x"},
    "create_catalog": {"name": "new"},
    "describe_catalog": {"name": "other"},
    "rename_catalog": {"name": "other", "to": "renamed"},
    "drop_catalog": {"name": "other"},
    "undrop_catalog": {"name": "gone"},
    "add_check": {"branch": "dev", "name": "x", "sql": "SELECT true"},
    "drop_check": {"branch": "dev", "name": "x", "if_exists": True},
    "alter_tag": {"name": "v1", "comment": "x"},
    "create_tag": {"name": "new"},
    "describe_tag": {"name": "v1"},
    "drop_tag": {"name": "v1"},
    "undrop_tag": {"name": "v2"},
    "rename_tag": {"name": "v1", "to": "v3"},
    "diff": {"from_state": "main", "to_state": "dev"},
    "merge": {"source": "dev"},
    "revert": {"commit": "2"},
    "cherry_pick": {"commit": "dev#1"},
    "undrop": {"table": "db.dropped"},
    "stage": {"name": "new"},
    "commit_staged": {"name": "nightly"},
    "drop_unused_branches": {"unused_for": "0 s"},
    "create_policy": {"name": "db.new", "type": "system.snapshot-expiry", "content": '{"enable": true}'},
    "update_policy": {"name": "db.p", "description": "x"},
    "drop_policy": {"name": "db.p", "detach_all": True},
    "attach_policy": {"name": "db.p", "table": "db.t"},
    "detach_policy": {"name": "db.p"},
    "add_schedule": {"name": "new", "procedure": "trim", "every": "1 d"},
    "drop_schedule": {"name": "nightly"},
    "enqueue": {"procedure": "trim"},
    "retry_task": {"id": "TASK"},
    "drop_task": {"id": "TASK"},
}


"""Arguments of the procedures that cannot run without arguments."""


@pytest.mark.parametrize("procedure", OFFERED)
def test_every_procedure_that_is_offered_runs_without_spark(
    admin: Asking, local: Asking, tmp_path: Path, procedure: str
) -> None:
    local.send("POST", "v1/namespaces", {"namespace": ["db"]})
    schema = {"type": "struct", "fields": []}
    local.send("POST", "v1/namespaces/db/tables", {"name": "t", "schema": schema})
    local.send("DELETE", "v1/namespaces/db/tables/t")
    needed = NEEDED.get(procedure, {})
    if needed:
        for name in ("dropped", "t"):
            local.send("POST", "v1/namespaces/db/tables", {"name": name, "schema": schema})
        local.send("DELETE", "v1/namespaces/db/tables/dropped")
        create_materialized_view(local.session.catalog, "mv")
        for branch in ("dev", "dropped"):
            call(local.session, "create_branch", name=branch)
        call(local.session, "drop_branch", name="dropped")
        call(local.session, "stage", name="nightly")
        for tag in ("v1", "v2"):
            call(local.session, "create_tag", name=tag)
        call(local.session, "drop_tag", name="v2")
        for catalog in ("other", "gone"):
            call(local.session, "create_catalog", name=catalog, warehouse=str(tmp_path / catalog))
        call(local.session, "drop_catalog", name="gone")
        call(local.session, "create_policy", **{**NEEDED["create_policy"], "name": "db.p"})
        call(local.session, "attach_policy", name="db.p")
        call(local.session, "add_schedule", name="nightly", procedure="trim", every="1 d")
        task = call(local.session, "enqueue", procedure="trim")[0][0]
        needed = {name: task if value == "TASK" else value for name, value in needed.items()}
    if procedure == "create_catalog":
        needed = {"name": "new", "warehouse": str(tmp_path / "allowed" / "new")}
    status, run = admin.call(procedure, needed, **WAIT)
    assert (status, run["status"]) == (200, "succeeded")


def test_an_administrator_removes_orphans_below_the_warehouse(
    admin: Asking, local: Asking, tmp_path: Path
) -> None:
    folder = tmp_path / "warehouse" / "lost"
    folder.mkdir(parents=True)
    (folder / "orphan.parquet").write_bytes(b"x")
    arguments = {"location": str(folder), "older_than": "0 s", "force": True, "dry_run": False}
    status, run = admin.call("remove_orphans", arguments, **WAIT)
    assert (status, run["status"]) == (200, "succeeded"), run
    assert not (folder / "orphan.parquet").exists()


@pytest.mark.parametrize(
    "name", ["table-default.location", "table-override.write.metadata.path", "table-default.write.data.path"]
)
def test_properties_that_an_administrator_sets_lead_no_table_out_of_the_warehouse(
    admin: Asking, session: Session, tmp_path: Path, name: str
) -> None:
    outside = str(tmp_path / "outside")
    assert admin.call("set_catalog_properties", {"properties": {name: outside}}, **WAIT)[0] == 200
    for fixed in ("warehouse", "shared-locations", "procedure-variables"):
        assert admin.call("set_catalog_properties", {"properties": {fixed: outside}}, **WAIT)[0] == 400
    client = Asking(admin.session, Role.CLIENT)
    client.send("POST", "v1/namespaces", {"namespace": ["db"]})
    schema = {"type": "struct", "fields": []}
    status, body = client.send("POST", "v1/namespaces/db/tables", {"name": "t", "schema": schema})
    if name == "table-default.location":  # a property like any other, which places no table
        assert body["metadata"]["location"].startswith(session.catalog.context.warehouse)
    else:
        assert status == 403
    assert not (tmp_path / "outside").exists()


def test_an_administrator_checks_only_the_served_realm(admin: Asking, local: Asking, tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/store.db"
    with polaris_spark.connect(store=store, warehouse=str(tmp_path / "other"), realm="other") as other:
        realm = other.catalog.references.store.realm
        other.connection.backend.insert_reference(realm, "unknown", ReferenceRow(b"1", b"garbage"))
    assert {row[2] for row in local.call("fsck")[1]["rows"]} == {"other"}
    assert admin.call("fsck", **WAIT)[1]["rows"] == []
    assert admin.call("fsck", {"only": "default"}, **WAIT)[0] == 200
    status, body = admin.call("fsck", {"only": "other"}, **WAIT)
    assert (status, body["error"]["type"]) == (403, "ForbiddenException")


NEED_SPARK = ["create_materialized_view", "refresh", "refresh_stale"]


LOCAL_ONLY = [
    "adopt",
    "import_catalog",
    "load_imported",
    "migrate_realm",
    "purge_realm",
    "begin",
    "commit",
    "rollback",
    "savepoint",
    "use",
    *NEED_SPARK,
]


@pytest.mark.parametrize("procedure", LOCAL_ONLY)
def test_procedures_that_reach_beyond_the_served_catalog_are_refused(admin: Asking, procedure: str) -> None:
    status, body = admin.call(procedure, {"source": "pyiceberg", "options": {"py-catalog-impl": "os.system"}})
    assert (status, body["error"]["type"]) == (403, "ForbiddenException")


def test_only_the_procedures_listed_here_are_unavailable_over_http() -> None:
    assert [name for name, one in procedures().items() if not one.over_http] == LOCAL_ONLY


def test_a_procedure_of_another_package_is_unavailable_over_http_unless_it_allows_it(
    admin: Asking, add: Add
) -> None:
    add("theirs", lambda *_: [(1,)], over_http=False)
    assert admin.call("theirs")[0] == 403


def test_an_administrator_gives_no_spark_session(admin: Asking) -> None:
    driver = {"call": "x", "port": 9, "secret": "x"}
    assert admin.call("trim", driver=driver)[0] == 403


def test_an_administrator_names_no_variable_of_the_servers_environment(
    admin: Asking, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIDDEN", "open-sesame")
    add("takes", lambda *_: [(1,)], parameters=(Parameter("options", "MAP<STRING,STRING>", "any"),))
    status, body = admin.call("takes", {"options": {"password": "env:HIDDEN"}}, **WAIT)
    assert status == 400
    assert "open-sesame" not in json.dumps(body)
    status, body = admin.call("set_catalog_properties", {"properties": {"gc.enabled": "env:HIDDEN"}}, **WAIT)
    assert status == 400
    assert "open-sesame" not in json.dumps(body)


def test_a_procedure_that_needs_spark_says_so(admin: Asking, add: Add) -> None:
    add("on_spark", lambda call, _: [(call.spark().version,)])
    status, body = admin.call("on_spark", **WAIT)
    assert status == 400
    assert "Spark" in body["error"]["message"]


def test_storage_summary_runs_without_spark(admin: Asking) -> None:
    status, body = admin.call("storage_summary", **WAIT)
    assert status == 200
    assert body["rows"]


@pytest.mark.parametrize("path", ["procedures", "runs", "runs/x", "views", "views/tables"])
def test_a_client_is_refused_everything_of_the_extension(session: Session, path: str) -> None:
    client = Asking(session, Role.CLIENT, "ann")
    status, body = client.send("GET", path)
    assert (status, body["error"]["type"]) == (403, "ForbiddenException")
    assert client.send("GET", "v1/config")[0] == 200


def test_a_client_calls_no_procedure(session: Session, add: Add) -> None:
    called: list[int] = []
    add("counts", lambda *_: called.append(1) or [])
    assert Asking(session, Role.CLIENT).call("counts", **WAIT)[0] == 403
    assert not called
