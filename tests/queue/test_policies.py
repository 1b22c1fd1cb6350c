"""Policies: their contents, what they apply to, and what they make jobs and workers do."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from polaris_spark.clock import ManualClock
from polaris_spark.errors import (
    AlreadyExistsError,
    BadRequestError,
    CommitFailedError,
    NoSuchNamespaceError,
    NotFoundError,
)
from polaris_spark.jobs.registry import call
from polaris_spark.jobs.worker import Worker
from polaris_spark.maintenance.policies.types import TYPES
from polaris_spark.maintenance.queue import changes
from polaris_spark.pyiceberg import PolarisCatalog
from polaris_spark.rest.session import Session
from tests.queue.test_queue import history, rows

DAY = 86_400_000
EXPIRY, ORPHANS = "system.snapshot-expiry", "system.orphan-file-removal"


def send(session: Session, method: str, path: str, body: Any = None, **query: str) -> tuple[int, Any]:
    named = {name.replace("_", "-") if name != "policyType" else name: text for name, text in query.items()}
    text = None if body is None else json.dumps(body)
    status, _, answer = session.request(method, path, named, text)
    return status, json.loads(answer) if answer else None


@pytest.fixture
def shop(session: Session) -> Session:
    """A catalog with the tables `db.t`, `db.u` and `db.inner.t`."""
    schema = {"type": "struct", "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]}
    for namespace in (["db"], ["db", "inner"]):
        send(session, "POST", "v1/namespaces", {"namespace": namespace})
    for path in ("db/tables", "db%1Finner/tables"):
        send(session, "POST", f"v1/namespaces/{path}", {"name": "t", "schema": schema})
    send(session, "POST", "v1/namespaces/db/tables", {"name": "u", "schema": schema})
    return session


def create(session: Session, name: str, kind: str = EXPIRY, *, enable: bool = True, **config: Any) -> None:
    content = json.dumps({"enable": enable, "config": config})
    call(session, "create_policy", name=name, type=kind, content=content)


def applied(session: Session, **target: str) -> list[tuple[str, bool]]:
    return [(row["name"], row["inherited"]) for row in rows(session, "applicable_policies", **target)]


@pytest.mark.parametrize("kind", [one for one in TYPES if one != "system.access-control"])
def test_each_type_of_maintenance_takes_its_content(shop: Session, kind: str) -> None:
    content = '{"version": "2025-02-03", "enable": true, "config": {"a": "b", "n": 1}}'
    call(shop, "create_policy", name="db.p", type=kind, content=content, description="why")
    [row] = rows(shop, "show_policies")
    assert (row["name"], row["type"], row["content"], row["version"]) == ("db.p", kind, content, 0)


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("system.none", "{}", "there is no type of policies 'system.none'; the types are"),
        (EXPIRY, "", "does not fit the schema"),
        (EXPIRY, "{}", "missing required field `enable`"),
        (EXPIRY, '{"enable": "yes"}', "Expected `bool`"),
        (EXPIRY, '{"enable": null}', "Expected `bool`"),
        (EXPIRY, '{"enable": true, "other": 1}', "unknown field `other`"),
        (EXPIRY, '{"enable": true, "version": "2024-01-01"}', "Invalid enum value"),
        (EXPIRY, '{"enable": true, "config": {"a": [1]}}', "does not fit the schema"),
        (EXPIRY, '{"enable": true, "config": {"min_snapshot_to_keep": 0}}', ">= 1"),
        (EXPIRY, '{"enable": true, "config": {"max_snapshot_age_days": -1}}', ">= 0"),
        (EXPIRY, '{"enable": true, "config": {"interval": "often"}}', "interval is 'often'"),
        (EXPIRY, '{"enable": true, "config": {"interval": "59 s"}}', "at least 1 min"),
        (ORPHANS, '{"enable": true, "max_orphan_file_age_in_days": -3}', ">= 0"),
        (ORPHANS, '{"enable": true, "locations": "x"}', "Expected `array`"),
        (ORPHANS, '{"enable": true, "config": {"prefix_mismatch_mode": "x"}}', "Invalid enum value"),
        ("system.access-control", '{"principalRole": "r"}', "needs 'columnProjections' or 'rowFilters'"),
        (EXPIRY, '{"enable": true, "config": {"a": "' + "x" * 40_000 + '"}}', "more than 32768 bytes"),
    ],
)
def test_contents_that_do_not_fit_the_schema_are_refused(
    shop: Session, kind: str, content: str, message: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        call(shop, "create_policy", name="db.p", type=kind, content=content)
    assert message in str(caught.value)
    assert call(shop, "show_policies") == []


@pytest.mark.parametrize("name", ["db.a b", "db.`a.b`", "db.ü", f"db.{'x' * 201}"])
def test_names_of_policies_have_few_characters(shop: Session, name: str) -> None:
    with pytest.raises(BadRequestError, match="the name of a policy"):
        create(shop, name)


def test_a_policy_needs_a_namespace_that_exists(shop: Session) -> None:
    with pytest.raises(NoSuchNamespaceError):
        create(shop, "none.p")


def test_a_name_is_used_once_in_a_namespace(shop: Session) -> None:
    create(shop, "db.p")
    create(shop, "db.inner.p")
    with pytest.raises(AlreadyExistsError, match=r"policy db\.p already exists"):
        create(shop, "db.p")


def test_the_nearest_policy_of_a_type_applies(shop: Session) -> None:
    for name in ("db.whole", "db.space", "db.own"):
        create(shop, name)
    create(shop, "db.files", ORPHANS)
    call(shop, "attach_policy", name="db.whole")
    call(shop, "attach_policy", name="db.files")
    call(shop, "attach_policy", name="db.space", namespace="db.inner")
    call(shop, "attach_policy", name="db.own", table="db.t")
    assert applied(shop) == [("db.files", False), ("db.whole", False)]
    assert applied(shop, namespace="db") == [("db.files", True), ("db.whole", True)]
    assert applied(shop, table="db.t") == [("db.files", True), ("db.own", False)]
    assert applied(shop, table="db.u") == [("db.files", True), ("db.whole", True)]
    assert applied(shop, table="db.inner.t") == [("db.files", True), ("db.space", True)]
    assert applied(shop, table="db.inner.t", type=EXPIRY) == [("db.space", True)]
    call(shop, "detach_policy", name="db.own", table="db.t")
    assert applied(shop, table="db.t") == [("db.files", True), ("db.whole", True)]


def test_access_hints_are_not_inherited_and_there_can_be_several(shop: Session) -> None:
    for name in ("a", "b"):
        content = json.dumps({"principalRole": "r", "columnProjections": ["a"]})
        call(shop, "create_policy", name=f"db.{name}", type="system.access-control", content=content)
        call(shop, "attach_policy", name=f"db.{name}", table="db.t")
    call(shop, "attach_policy", name="db.a")
    assert applied(shop, table="db.t") == [("db.a", False), ("db.b", False)]
    assert applied(shop, table="db.u") == []


def test_one_inheritable_policy_of_a_type_is_attached_to_a_target(shop: Session) -> None:
    create(shop, "db.a")
    create(shop, "db.b")
    call(shop, "attach_policy", name="db.a", table="db.t")
    call(shop, "attach_policy", name="db.a", table="db.t", parameters={"x": "y"})
    with pytest.raises(AlreadyExistsError, match="policy 'a' of the same type"):
        call(shop, "attach_policy", name="db.b", table="db.t")
    with pytest.raises(NotFoundError, match=r"is not attached to table db.u"):
        call(shop, "detach_policy", name="db.a", table="db.u")


def test_an_attached_policy_is_dropped_only_if_it_is_detached_from_all(shop: Session) -> None:
    create(shop, "db.p")
    for target in ({}, {"table": "db.t"}):
        call(shop, "attach_policy", name="db.p", **target)
    with pytest.raises(BadRequestError, match="is attached to 2 targets"):
        call(shop, "drop_policy", name="db.p")
    call(shop, "drop_policy", name="db.p", detach_all=True)
    assert applied(shop, table="db.t") == []
    with pytest.raises(NotFoundError, match="Policy does not exist"):
        call(shop, "drop_policy", name="db.p")


def test_an_update_needs_the_version_that_it_names(shop: Session) -> None:
    create(shop, "db.p")
    call(shop, "update_policy", name="db.p", content='{"enable": false}', version=0)
    with pytest.raises(CommitFailedError, match="has the version 1, not 0"):
        call(shop, "update_policy", name="db.p", content='{"enable": true}', version=0)
    with pytest.raises(BadRequestError, match="does not fit the schema"):
        call(shop, "update_policy", name="db.p", content="{}")
    [row] = rows(shop, "show_policies")
    assert (row["content"], row["version"]) == ('{"enable": false}', 1)


def test_policies_survive_renames_and_end_with_their_targets(shop: Session) -> None:
    create(shop, "db.p")
    call(shop, "attach_policy", name="db.p", table="db.t")
    rename = {"source": {"namespace": ["db"], "name": "t"}, "destination": {"namespace": ["db"], "name": "v"}}
    assert send(shop, "POST", "v1/tables/rename", rename)[0] == 204
    assert applied(shop, table="db.v") == [("db.p", False)]
    send(shop, "DELETE", "v1/namespaces/db/tables/v")
    schema = {"type": "struct", "fields": []}
    send(shop, "POST", "v1/namespaces/db/tables", {"name": "v", "schema": schema})
    assert applied(shop, table="db.v") == []
    assert call(shop, "fsck") == []


def test_a_policy_whose_namespace_was_dropped_applies_to_nothing(shop: Session) -> None:
    send(shop, "POST", "v1/namespaces", {"namespace": ["rules"]})
    create(shop, "rules.p")
    call(shop, "attach_policy", name="rules.p")
    send(shop, "DELETE", "v1/namespaces/rules")
    assert applied(shop) == []
    assert call(shop, "show_policies") == []


# The routes of Polaris

P = "polaris/v1/namespaces/db/policies"
CONTENT = '{"enable": true}'


def test_polaris_routes_create_load_change_list_and_drop_policies(shop: Session) -> None:
    status, made = send(shop, "POST", P, {"name": "p", "type": EXPIRY, "content": CONTENT})
    assert (status, made) == (
        200,
        {
            "policy": {
                "policy-type": EXPIRY,
                "inheritable": True,
                "name": "p",
                "description": "",
                "content": CONTENT,
                "version": 0,
            }
        },
    )
    assert send(shop, "POST", P, {"name": "p", "type": EXPIRY, "content": CONTENT})[0] == 409
    assert send(shop, "GET", f"{P}/p") == (200, made)
    change = {"content": '{"enable": false}', "description": "off", "current-policy-version": 0}
    assert send(shop, "PUT", f"{P}/p", change)[1]["policy"]["version"] == 1
    assert send(shop, "PUT", f"{P}/p", change)[0] == 409
    send(shop, "POST", P, {"name": "q", "type": ORPHANS, "content": CONTENT})
    listed = send(shop, "GET", P, pageSize="1")[1]
    assert listed["identifiers"] == [{"namespace": ["db"], "name": "p"}]
    more = send(shop, "GET", P, pageSize="1", pageToken=listed["next-page-token"])[1]
    assert (more["identifiers"], more["next-page-token"]) == ([{"namespace": ["db"], "name": "q"}], None)
    only = send(shop, "GET", P, policyType=ORPHANS)[1]
    assert [one["name"] for one in only["identifiers"]] == ["q"]
    assert send(shop, "DELETE", f"{P}/p")[0] == 204
    assert send(shop, "GET", f"{P}/p")[0] == 404
    assert send(shop, "GET", "polaris/v1/namespaces/none/policies")[0] == 404
    assert send(shop, "GET", P, pageToken="x")[0] == 400


def test_clients_are_told_of_the_routes_of_policies(shop: Session) -> None:
    endpoints = send(shop, "GET", "v1/config")[1]["endpoints"]
    assert "POST /polaris/v1/{prefix}/namespaces/{namespace}/policies" in endpoints
    assert "GET /polaris/v1/{prefix}/applicable-policies" in endpoints


def test_polaris_routes_attach_detach_and_find_applicable_policies(shop: Session) -> None:
    send(shop, "POST", P, {"name": "p", "type": EXPIRY, "content": CONTENT})
    mappings = f"{P}/p/mappings"
    targets = [
        {"type": "catalog"},
        {"type": "namespace", "path": ["db", "inner"]},
        {"type": "table-like", "path": ["db", "t"]},
    ]
    for target in targets:
        assert send(shop, "PUT", mappings, {"target": target})[0] == 204
    found = send(shop, "GET", "polaris/v1/polaris/applicable-policies", namespace="db", target_name="t")
    assert [(one["name"], one["inherited"], one["namespace"]) for one in found[1]["applicable-policies"]] == [
        ("p", False, ["db"])
    ]
    assert send(shop, "DELETE", f"{P}/p")[0] == 400
    for target in targets:
        assert send(shop, "POST", mappings, {"target": target})[0] == 204
    assert send(shop, "POST", mappings, {"target": targets[0]})[0] == 404
    assert send(shop, "GET", "polaris/v1/applicable-policies")[1]["applicable-policies"] == []


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ({"type": "realm"}, 400),
        ({"type": "namespace"}, 400),
        ({"type": "catalog", "path": ["db"]}, 400),
        ({"type": "table-like", "path": ["t"]}, 400),
        ({"type": "table-like", "path": ["db", "none"]}, 404),
        ({"type": "namespace", "path": ["none"]}, 404),
    ],
)
def test_targets_that_do_not_exist_are_refused(shop: Session, target: Any, status: int) -> None:
    send(shop, "POST", P, {"name": "p", "type": EXPIRY, "content": CONTENT})
    assert send(shop, "PUT", f"{P}/p/mappings", {"target": target})[0] == status


# Jobs


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Session]:
    """A catalog whose tables `db.t` and `db.u` have five snapshots each."""
    store = f"sqlite://{tmp_path}/store.db?synchronous=off"
    with PolarisCatalog("polaris", store=store, warehouse=str(tmp_path / "w")) as known:
        known.create_namespace("db")
        for name in ("t", "u"):
            table = known.create_table(f"db.{name}", pa.schema([("a", pa.int64())]))
            for n in range(5):
                table.append(pa.table({"a": [n]}))
        yield known._opened


def snapshots(session: Session, table: str) -> int:
    loaded = send(session, "GET", f"v1/namespaces/db/tables/{table}", snapshots="all")[1]
    return len(loaded["metadata"]["snapshots"])


def keeping(session: Session, name: str, least: int) -> None:
    create(session, name, max_snapshot_age_days=0, min_snapshot_to_keep=least)


def test_expire_reads_policies(lake: Session) -> None:
    call(lake, "expire")
    assert snapshots(lake, "t") == 5
    keeping(lake, "db.all", 3)
    keeping(lake, "db.one", 2)
    call(lake, "attach_policy", name="db.all")
    call(lake, "attach_policy", name="db.one", table="db.u")
    assert {(row["table"], row["snapshots"]) for row in rows(lake, "expire", dry_run=True)} == {
        ("db.t", 2),
        ("db.u", 3),
    }
    call(lake, "expire")
    assert (snapshots(lake, "t"), snapshots(lake, "u")) == (3, 2)


def test_an_argument_takes_precedence_over_a_policy_and_a_policy_over_properties(lake: Session) -> None:
    call(lake, "set_catalog_properties", properties={"history.expire.min-snapshots-to-keep": "5"})
    updates = [{"action": "set-properties", "updates": {"history.expire.min-snapshots-to-keep": "5"}}]
    send(lake, "POST", "v1/namespaces/db/tables/t", {"requirements": [], "updates": updates})
    keeping(lake, "db.p", 3)
    call(lake, "attach_policy", name="db.p", table="db.t")
    call(lake, "expire", retain_last=4)
    assert snapshots(lake, "t") == 4
    call(lake, "expire")
    assert snapshots(lake, "t") == 3


def test_a_policy_that_is_not_enabled_leaves_a_table_alone(lake: Session) -> None:
    keeping(lake, "db.all", 1)
    create(lake, "db.off", enable=False)
    call(lake, "attach_policy", name="db.all")
    call(lake, "attach_policy", name="db.off", table="db.t")
    call(lake, "expire")
    call(lake, "expire", older_than="0 s", table="db.t")
    assert (snapshots(lake, "t"), snapshots(lake, "u")) == (5, 1)


def test_gc_enabled_false_forbids_what_a_policy_says(lake: Session) -> None:
    call(lake, "set_catalog_properties", properties={"gc.enabled": "false"})
    keeping(lake, "db.all", 1)
    call(lake, "attach_policy", name="db.all")
    call(lake, "expire")
    assert snapshots(lake, "t") == 5


def test_a_run_by_policy_leaves_tables_without_a_policy_alone(lake: Session) -> None:
    keeping(lake, "db.p", 1)
    call(lake, "attach_policy", name="db.p", table="db.u")
    call(lake, "set_catalog_properties", properties={"history.expire.max-snapshot-age-ms": "0"})
    call(lake, "expire", by_policy=True)
    assert (snapshots(lake, "t"), snapshots(lake, "u")) == (5, 1)


def orphan(session: Session, table: str | None, days: int) -> Path:
    """A file that no table needs, last changed some days ago; None means a folder of no table."""
    place = session.catalog.context.warehouse
    if table is not None:
        place = send(session, "GET", f"v1/namespaces/db/tables/{table}")[1]["metadata"]["location"]
    path = Path(place.removeprefix("file://")) / "data" / f"orphan-{days}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    old = session.connection.clock.now_ms() / 1_000 - days * 86_400 - 60
    os.utime(path, (old, old))
    return path


def removal(session: Session, name: str, *, enable: bool = True, **rest: Any) -> None:
    content = json.dumps({"enable": enable, **rest})
    call(session, "create_policy", name=name, type=ORPHANS, content=content)


def test_remove_orphans_reads_policies(lake: Session) -> None:
    files = {(table, days): orphan(lake, table, days) for table in ("t", "u", None) for days in (2, 8, 40)}
    removal(lake, "db.all", max_orphan_file_age_in_days=30)
    removal(lake, "db.one", max_orphan_file_age_in_days=7)
    call(lake, "attach_policy", name="db.all")
    call(lake, "attach_policy", name="db.one", table="db.u")
    call(lake, "remove_orphans", dry_run=False)
    left = {key for key, path in files.items() if path.exists()}
    assert left == {("t", 2), ("t", 8), ("u", 2), (None, 2), (None, 8)}
    call(lake, "remove_orphans", dry_run=False, older_than="7 d")
    left = {key for key, path in files.items() if path.exists()}
    assert left == {("t", 2), ("u", 2), (None, 2)}


def test_remove_orphans_leaves_tables_alone_whose_policy_is_not_enabled(lake: Session) -> None:
    kept, gone = orphan(lake, "t", 40), orphan(lake, "u", 40)
    removal(lake, "db.off", enable=False)
    call(lake, "attach_policy", name="db.off", table="db.t")
    call(lake, "remove_orphans", dry_run=False)
    call(lake, "remove_orphans", dry_run=False, older_than="7 d", table="db.t")
    assert (kept.exists(), gone.exists()) == (True, False)


def test_a_removal_by_policy_deletes_only_where_a_policy_applies(lake: Session) -> None:
    files = {table: orphan(lake, table, 40) for table in ("t", "u", None)}
    removal(lake, "db.one", max_orphan_file_age_in_days=0)
    young = orphan(lake, "u", 0)
    call(lake, "remove_orphans", by_policy=True, dry_run=False)
    assert all(path.exists() for path in files.values())
    call(lake, "attach_policy", name="db.one", table="db.u")
    call(lake, "remove_orphans", by_policy=True, dry_run=False)
    assert {table for table, path in files.items() if path.exists()} == {"t", None}
    assert young.exists()


def test_a_policy_can_name_the_locations_in_which_files_are_removed(lake: Session) -> None:
    inside, outside = orphan(lake, "u", 40), orphan(lake, "t", 40)
    removal(lake, "db.p", locations=[str(inside.parent)])
    call(lake, "attach_policy", name="db.p")
    call(lake, "remove_orphans", by_policy=True, dry_run=False)
    assert (inside.exists(), outside.exists()) == (False, True)


def place_of(session: Session, table: str) -> str:
    found: str = send(session, "GET", f"v1/namespaces/db/tables/{table}")[1]["metadata"]["location"]
    return found


@pytest.mark.parametrize("where", ["warehouse", "another table", "a folder of another table"])
def test_locations_of_a_policy_count_only_in_what_it_is_attached_to(lake: Session, where: str) -> None:
    other, stray, own = orphan(lake, "u", 40), orphan(lake, None, 40), orphan(lake, "t", 40)
    location = {
        "warehouse": lake.catalog.context.warehouse,
        "another table": place_of(lake, "u"),
        "a folder of another table": str(other.parent),
    }[where]
    removal(lake, "db.wide", locations=[location])
    call(lake, "attach_policy", name="db.wide", table="db.t")
    call(lake, "remove_orphans", by_policy=True, dry_run=False)
    assert (other.exists(), stray.exists()) == (True, True)
    assert own.exists() == (where != "warehouse")


def test_locations_of_a_policy_of_the_catalog_leave_a_table_alone_whose_policy_is_not_enabled(
    lake: Session,
) -> None:
    kept = orphan(lake, "t", 40)
    removal(lake, "db.all", locations=[str(kept.parent)])
    removal(lake, "db.off", enable=False)
    call(lake, "attach_policy", name="db.all")
    call(lake, "attach_policy", name="db.off", table="db.t")
    call(lake, "remove_orphans", by_policy=True, dry_run=False)
    assert kept.exists()


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (EXPIRY, {"enable": True, "config": {"interval": "100000 d"}}),
        (EXPIRY, {"enable": True, "config": {"min_snapshot_to_keep": 10**30}}),
        (ORPHANS, {"enable": True, "locations": [""]}),
    ],
)
def test_contents_that_no_job_can_use_are_refused(shop: Session, kind: str, content: Any) -> None:
    with pytest.raises(BadRequestError, match="does not fit the schema"):
        call(shop, "create_policy", name="db.p", type=kind, content=json.dumps(content))
    assert call(shop, "show_policies") == []


def test_a_content_that_is_nested_too_deeply_is_refused(shop: Session) -> None:
    content = '{"rowFilters": ' + "[" * 10_000 + "]" * 10_000 + "}"
    with pytest.raises(BadRequestError, match="does not fit the schema"):
        call(shop, "create_policy", name="db.p", type="system.access-control", content=content)


# Workers


def test_workers_do_what_enabled_policies_say(shop: Session, worker: Worker, clock: ManualClock) -> None:
    create(shop, "db.p", interval="6 h")
    assert worker.run_due() == 0
    assert call(shop, "show_schedules") == []
    call(shop, "attach_policy", name="db.p", table="db.t")
    assert worker.run_due() == 0
    [row] = rows(shop, "show_schedules")
    assert (row["name"], row["origin"], row["procedure"], row["due"]) == (
        EXPIRY,
        "policy",
        "expire",
        "every 6 h",
    )
    clock.advance(DAY / 4)
    assert worker.run_due() == 1
    [run] = history(shop)
    assert (run.origin, run.name, run.outcome, run.arguments) == (
        "policy",
        EXPIRY,
        "succeeded",
        '{"by_policy": true}',
    )
    call(shop, "update_policy", name="db.p", content='{"enable": true, "config": {"interval": "1 h"}}')
    worker.run_due()
    assert rows(shop, "show_schedules")[0]["due"] == "every 1 h"
    call(shop, "update_policy", name="db.p", content='{"enable": false}')
    clock.advance(DAY)
    assert worker.run_due() == 0
    assert call(shop, "show_schedules") == []


@pytest.mark.parametrize("restarts", [False, True])
def test_policies_of_a_restored_namespace_let_workers_work_again(
    shop: Session, worker: Worker, clock: ManualClock, restarts: bool
) -> None:
    send(shop, "POST", "v1/namespaces", {"namespace": ["rules"]})
    create(shop, "rules.p")
    call(shop, "attach_policy", name="rules.p")
    worker.run_due()
    send(shop, "DELETE", "v1/namespaces/rules")
    create(shop, "db.q", ORPHANS)
    worker.run_due()
    assert call(shop, "show_schedules") == []
    call(shop, "revert", commit=str(shop.catalog.head().head.number))
    if restarts:
        worker.stop()
        worker = Worker(shop)
    worker.run_due()
    assert [row["name"] for row in rows(shop, "show_schedules")] == [EXPIRY]
    clock.advance(DAY)
    assert worker.run_due() == 1
    assert worker.run_due() == 0
    if restarts:
        worker.stop()


def test_several_workers_do_what_policies_say_once(shop: Session, worker: Worker, clock: ManualClock) -> None:
    create(shop, "db.p")
    call(shop, "attach_policy", name="db.p")
    others = [Worker(shop) for _ in range(2)]
    for one in (worker, *others):
        one.run_due()
    assert len(call(shop, "show_schedules")) == 1
    clock.advance(DAY)
    assert sum(one.run_due() for one in (worker, *others)) == 1
    for one in others:
        one.stop()


def test_policies_of_a_catalog_with_a_full_queue_do_not_stop_its_tasks(
    shop: Session, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MAX_TASKS", 1)
    call(shop, "enqueue", procedure="expire")
    create(shop, "db.p")
    call(shop, "attach_policy", name="db.p")
    assert worker.run_due() == 1
    assert [row["name"] for row in rows(shop, "show_schedules")] == [EXPIRY]
