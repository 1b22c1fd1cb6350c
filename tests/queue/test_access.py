"""Schedules, tasks and workers in a realm with access control, and over HTTP."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import polaris_spark
from polaris_spark.access import securables
from polaris_spark.access.bootstrap import bootstrap
from polaris_spark.access.control import changed
from polaris_spark.access.principal_changes import AlterPrincipal
from polaris_spark.clock import ManualClock
from polaris_spark.errors import ForbiddenError
from polaris_spark.jobs.procedure import Call
from polaris_spark.jobs.registry import call, find
from polaris_spark.jobs.worker import Worker
from polaris_spark.rest.access import Role
from polaris_spark.rest.session import Session
from tests.access.world import User, World
from tests.extension.callers import Asking
from tests.queue.conftest import Counted
from tests.queue.test_queue import history, rows

WAIT = {"wait_seconds": 10.0}


def ask(user: User, name: str, /, **arguments: Any) -> tuple[int, Any]:
    """Call a procedure as a request."""
    return user.send("POST", f"polaris-spark/v1/procedures/{name}", {"arguments": arguments})


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def ann(world: World) -> User:
    world.grant(["CATALOG_MAINTAIN"])
    return world.open(world.credentials)


def test_a_schedule_needs_the_privileges_of_its_procedure(world: World, ann: User) -> None:
    status, body = ask(ann, "add_schedule", name="a", procedure="trim", every="1 d")
    assert (status, body["error"]["type"]) == (403, "ForbiddenException")
    assert "CATALOG_MAINTAIN on the realm" in body["error"]["message"]
    assert ask(ann, "add_schedule", name="a", procedure="expire", every="1 d")[0] == 200


def test_a_task_runs_with_the_privileges_that_its_principal_has_then(
    world: World, ann: User, counted: Counted
) -> None:
    assert ask(ann, "enqueue", procedure="counted")[0] == 200
    assert ask(ann, "enqueue", procedure="expire", attempts=1)[0] == 200
    world.revoke_all()
    worker = Worker(world.root.session)
    assert worker.run_due() == 2
    assert counted.principals == ["ann"]
    found = {run.procedure: run for run in history(world.root.session)}
    assert (found["counted"].principal, found["counted"].outcome) == ("ann", "succeeded")
    assert found["expire"].outcome == "failed"
    assert "needs the privilege CATALOG_MAINTAIN" in found["expire"].error
    worker.stop()


def test_a_task_cannot_grant_what_its_principal_may_not(world: World, ann: User) -> None:
    given = {"privileges": "CATALOG_MANAGE_CONTENT", "role": "one"}
    assert ask(ann, "enqueue", procedure="grant", arguments=given, attempts=1)[0] == 200
    worker = Worker(world.root.session)
    worker.run_due()
    worker.stop()
    [run] = history(world.root.session)
    assert (run.principal, run.outcome) == ("ann", "failed")
    assert "CATALOG_MANAGE_ACCESS" in run.error


def test_a_task_of_a_revoked_principal_does_not_run(world: World, ann: User, counted: Counted) -> None:
    assert ask(ann, "enqueue", procedure="counted", attempts=1)[0] == 200
    world.change(AlterPrincipal, "ann", state="revoked")
    worker = Worker(world.root.session)
    worker.run_due()
    assert [run.outcome for run in history(world.root.session)] == ["failed"]
    assert counted.calls == []
    worker.stop()


def test_a_worker_needs_a_privilege_on_the_realm(world: World, ann: User) -> None:
    with pytest.raises(ForbiddenError, match="CATALOG_MAINTAIN on the realm"):
        Worker(ann.session)
    world.grant(["CATALOG_MAINTAIN"], securables.REALM)
    Worker(world.open(world.credentials).session).stop()


@pytest.fixture
def admin(session: Session, tmp_path: Path) -> Asking:
    restricted = session.catalog.restricted([str(tmp_path / "allowed")])
    return Asking(session.derive(catalog=restricted), Role.ADMINISTRATOR)


@pytest.mark.parametrize("procedure", ["migrate_realm", "purge_realm", "import_catalog"])
def test_procedures_that_cannot_be_called_over_http_cannot_be_scheduled_over_http(
    admin: Asking, session: Session, procedure: str
) -> None:
    status, body = admin.call("enqueue", {"procedure": procedure}, **WAIT)
    assert status in (400, 403), body
    assert call(session, "show_queue") == []


@pytest.mark.parametrize("location", ["/etc", "{tmp}", "{tmp}/w/../x"])
def test_a_task_that_came_over_http_names_only_allowed_locations(
    admin: Asking, session: Session, tmp_path: Path, location: str
) -> None:
    given = {"procedure": "export_metadata", "arguments": {"location": location.format(tmp=tmp_path)}}
    status, body = admin.call("enqueue", given, **WAIT)
    assert status in (400, 403), body
    assert call(session, "show_queue") == []


def test_a_location_is_checked_again_when_the_task_runs(
    admin: Asking, session: Session, tmp_path: Path
) -> None:
    warehouse, outside = tmp_path / "w", tmp_path / "outside"
    outside.mkdir()
    given = {"procedure": "export_metadata", "arguments": {"location": str(warehouse / "out")}, "attempts": 1}
    assert admin.call("enqueue", given, **WAIT)[1]["status"] == "succeeded"
    warehouse.mkdir(exist_ok=True)
    (warehouse / "out").symlink_to(outside)
    worker = Worker(session)
    assert worker.run_due() == 1
    worker.stop()
    [run] = history(session)
    assert (run.outcome, list(outside.iterdir())) == ("failed", [])


def test_a_task_that_came_over_http_names_no_variable_of_the_worker(
    admin: Asking, session: Session, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIDDEN", "open-sesame")
    given = {"procedure": "counted", "arguments": {"options": '{"password": "env:HIDDEN"}'}}
    assert admin.call("enqueue", given, **WAIT)[0] == 400
    assert rows(session, "show_queue") == []


@pytest.mark.parametrize("listed", [(), ("HIDDEN",)])
def test_a_task_names_only_variables_that_the_properties_of_the_worker_list(
    session: Session, counted: Counted, monkeypatch: pytest.MonkeyPatch, listed: tuple[str, ...]
) -> None:
    monkeypatch.setenv("HIDDEN", "open-sesame")
    given = {"procedure": "counted", "attempts": 1, "arguments": {"options": '{"password": "env:HIDDEN"}'}}
    find("enqueue").rows(Call(session, by_operator=True), given)  # as a command of another machine
    session.properties = dataclasses.replace(session.properties, procedure_variables=listed)
    worker = Worker(session)
    worker.run_due()
    worker.stop()
    assert bool(counted.calls) == bool(listed)
    assert [run.outcome for run in history(session)] == ["succeeded" if listed else "failed"]


def test_a_task_from_before_the_access_control_does_not_run(
    session: Session, counted: Counted, clock: ManualClock
) -> None:
    call(session, "enqueue", procedure="counted", attempts=1)
    made = bootstrap(session.catalog.references, session.operation(), "ann", None).credentials
    changed()
    assert made is not None
    given = f"{made.client_id}:{made.secret.reveal()}"
    with polaris_spark.connect(store=session.properties.store, credential=given, clock=clock) as ann:
        worker = Worker(ann)
        worker.run_due()
        assert counted.calls == []
        [run] = history(ann)
        assert (run.principal, run.outcome) == ("ann", "failed")
        assert "was added before the realm had access control" in run.error
        call(ann, "enqueue", procedure="counted")
        worker.run_due()
        worker.stop()
        assert counted.principals == ["ann"]
