"""One worker runs the tasks of many realms."""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import polaris_spark
from polaris_spark.access import securables
from polaris_spark.backends.base import ObjectKey
from polaris_spark.cli import realms_worker
from polaris_spark.cli.realms_worker import RealmsWorker, WorkerThread
from polaris_spark.cli.stores import open_store
from polaris_spark.clock import Clock, SystemClock
from polaris_spark.config import Properties
from polaris_spark.jobs.procedure import Call
from polaris_spark.jobs.registry import call
from polaris_spark.rest.session import Session
from polaris_spark.store.cache import process_cache
from polaris_spark.store_uris import StoreURI
from polaris_spark.system.connections import connect_store
from polaris_spark.system.realms import REALM_FORMAT, RealmState
from polaris_spark.testing.waiting import PATIENCE_S, wait_until
from tests.access.world import World
from tests.cli.catalogs import run
from tests.queue.conftest import Counted
from tests.queue.test_access import ask
from tests.queue.test_policies import create
from tests.queue.test_queue import history
from tests.server.conftest import ADMINISTRATOR
from tests.server.servers import Remote, Server, token_file
from tests.server.test_open_realms import with_record


class Lake:
    """A store with realms without access control."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = f"sqlite://{folder}/store.db"

    def session(self, realm: str) -> Session:
        """Open the catalog of a realm, which is created if it is missing."""
        return polaris_spark.connect(
            store=self.store, warehouse=str(self.folder / f"w-{realm}"), realm=realm, principal="ann"
        )

    def enqueue(self, realm: str, **more: Any) -> None:
        """Add a task to the queue of a realm."""
        with self.session(realm) as session:
            call(session, "enqueue", procedure="counted", **more)

    def runs(self, realm: str) -> list[tuple[str, str, str]]:
        """Return procedure, principal and outcome of the runs of a realm."""
        with self.session(realm) as session:
            return [(one.procedure, one.principal, one.outcome) for one in history(session)]

    def properties(self) -> Properties:
        return Properties.parse({"store": self.store, "create": "false"})

    def run_due(self, clock: Clock | None = None) -> int:
        """Run what is due in all realms, and return the number of runs."""
        with open_store(self.store) as opened:
            worker = RealmsWorker(opened, self.properties(), clock=clock)
            return worker.run_due(threading.Event())


class Tomorrow(SystemClock):
    """A clock that is two days ahead."""

    def now_ms(self) -> int:
        return super().now_ms() + 2 * 86_400_000


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setattr(realms_worker, "LOOKS_PER_SECOND", 10_000)
    return Lake(tmp_path)


def test_the_tasks_of_all_realms_run_and_are_recorded_in_their_realm(lake: Lake, counted: Counted) -> None:
    for realm in ("a", "b", "c"):
        lake.enqueue(realm, arguments={"n": str(ord(realm))})
    lake.enqueue("b", arguments={"n": "1"})
    assert lake.run_due() == 4
    assert sorted(one["n"] for one in counted.calls) == [1, 97, 98, 99]
    assert lake.runs("a") == lake.runs("c") == [("counted", "ann", "succeeded")]
    assert len(lake.runs("b")) == 2
    assert lake.run_due() == 0


def test_a_realm_that_cannot_be_used_stops_no_other_and_is_logged_once(
    lake: Lake, counted: Counted, caplog: pytest.LogCaptureFixture
) -> None:
    for realm in ("damaged", "good", "inactive", "newer", "purged"):
        lake.enqueue(realm)
    assert run("realm", "create", lake.store, "empty").code == 0
    with closing(connect_store(StoreURI.parse(lake.store))) as connection:
        backend = connection.backend
        connection.realms.move("inactive", RealmState.INACTIVE)
        for state in (RealmState.INACTIVE, RealmState.PURGING, RealmState.PURGED, RealmState.GONE):
            connection.realms.move("purged", state)
        damaged = connection.realms.active("damaged").instance
        for split in backend.splits("objects", [damaged], 1):
            for batch in backend.scan(split):
                keys = zip(batch.column("id").to_pylist(), batch.column("part").to_pylist(), strict=True)
                backend.delete_objects(damaged, [ObjectKey(*key) for key in keys])
        process_cache().clear()
        with (
            caplog.at_level(logging.WARNING),
            with_record(backend, "newer", format=REALM_FORMAT + 1),
            open_store(lake.store) as opened,
            WorkerThread(RealmsWorker(opened, lake.properties()), poll_seconds=0.01),
        ):
            wait_until(lambda: len(counted.calls) == 1, "the task of the good realm has run")
            lake.enqueue("good")
            wait_until(lambda: len(counted.calls) == 2, "the next round has run")
    texts = [one.getMessage() for one in caplog.records if "the worker skips" in one.getMessage()]
    skipped = sorted(text.split("'")[1] for text in texts)
    assert skipped == ["damaged", "empty", "inactive", "newer"], texts


def test_a_realm_whose_task_takes_long_does_not_delay_the_others(lake: Lake, counted: Counted) -> None:
    released = threading.Event()

    def wait(call: Call) -> None:
        if call.session.properties.realm == "a":
            assert released.wait(60)

    counted.meanwhile = wait
    for realm in ("a", "a", "b", "c"):
        lake.enqueue(realm)
    with (
        open_store(lake.store) as opened,
        WorkerThread(RealmsWorker(opened, lake.properties()), poll_seconds=0.01),
    ):
        try:
            wait_until(lambda: bool(lake.runs("b") and lake.runs("c")), "the other realms had their turn")
            assert lake.runs("a") == []
        finally:
            released.set()
        wait_until(lambda: len(lake.runs("a")) == 2, "the slow realm had its turn")


def test_the_next_task_of_a_realm_does_not_wait_for_the_next_look(lake: Lake, counted: Counted) -> None:
    counted.meanwhile = lambda _: time.sleep(0.3)
    for _ in range(3):
        lake.enqueue("a")
    with (
        open_store(lake.store) as opened,
        WorkerThread(RealmsWorker(opened, lake.properties()), poll_seconds=10 * PATIENCE_S),
    ):
        wait_until(lambda: len(counted.calls) == 3, "all tasks have run")


@pytest.fixture
def world(tmp_path: Path) -> Any:
    with closing(World(tmp_path / "w", f"sqlite://{tmp_path}/store.db")) as made:
        yield made


def test_a_task_runs_with_the_privileges_of_its_principal_and_without_a_login(
    world: World, lake: Lake, counted: Counted
) -> None:
    world.grant(["CATALOG_MAINTAIN"])
    ann = world.open(world.credentials)
    assert ask(ann, "enqueue", procedure="counted")[0] == 200
    assert ask(ann, "enqueue", procedure="expire", attempts=1)[0] == 200
    world.revoke_all()
    assert lake.run_due() == 2
    assert counted.principals == ["ann"]
    found = {one.procedure: one for one in history(world.root.session)}
    assert (found["counted"].principal, found["counted"].outcome) == ("ann", "succeeded")
    assert found["expire"].outcome == "failed"
    assert "needs the privilege CATALOG_MAINTAIN" in found["expire"].error


def test_a_task_from_before_the_access_control_does_not_run_in_any_realm(
    lake: Lake, counted: Counted
) -> None:
    lake.enqueue("default", attempts=1)
    assert run("bootstrap", lake.store, "--principal", "root").code == 0
    assert lake.run_due() == 1
    assert counted.calls == []


def test_a_token_of_a_server_is_no_login_to_a_realm_that_gets_access_control_later(
    lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = token_file(tmp_path, {"root": f"{ADMINISTRATOR} administrator"})
    with Server(lake.store, "--warehouse", str(tmp_path / "w"), "--token-file", str(tokens)) as server:
        body = json.dumps({"arguments": {"procedure": "expire", "attempts": 1}})
        path = "polaris-spark/v1/procedures/enqueue"
        assert Remote(server.uri, ADMINISTRATOR).request("POST", path, body=body)[0] in (200, 202)
    assert run("bootstrap", lake.store, "--principal", "root").code == 0
    assert lake.run_due() == 1
    assert "the task was added before the realm had access control" in caplog.text


@pytest.mark.parametrize("kind", ["system.snapshot-expiry", "system.orphan-file-removal"])
def test_what_policies_require_is_done_in_a_realm_with_access_control(
    world: World, lake: Lake, kind: str
) -> None:
    session = world.root.session
    world.namespace("db")
    world.table("db", "t")
    create(session, "db.p", kind)
    call(session, "attach_policy", name="db.p", namespace="db")
    assert lake.run_due() == 0
    assert lake.run_due(Tomorrow()) == 1
    [ended] = history(session)
    assert (ended.outcome, ended.error, ended.origin) == ("succeeded", "", "policy")


def test_a_worker_of_an_operator_gives_tasks_no_rights_of_the_operator(
    world: World, lake: Lake, counted: Counted
) -> None:
    seen: list[bool] = []
    counted.meanwhile = lambda call: seen.append(call.session.is_operator)
    world.grant(["CATALOG_MAINTAIN"], securables.REALM)
    assert ask(world.open(world.credentials), "enqueue", procedure="counted")[0] == 200
    assert lake.run_due() == 1
    assert seen == [False]


def test_all_tasks_are_restricted_to_the_locations_of_their_realm(lake: Lake, tmp_path: Path) -> None:
    with lake.session("a") as session:
        outside = {"location": str(tmp_path / "elsewhere")}
        call(session, "enqueue", procedure="export_metadata", arguments=outside, attempts=1)
    assert lake.run_due() == 1
    with lake.session("a") as session:
        [ended] = history(session)
    assert ended.outcome == "failed"
    assert "elsewhere" in ended.error


def test_no_task_reaches_another_realm(lake: Lake) -> None:
    with lake.session("b"):
        pass
    other = {"name": "b", "deactivate": "true"}
    with lake.session("a") as session:
        call(session, "enqueue", procedure="purge_realm", arguments=other, attempts=1)
        call(session, "enqueue", procedure="fsck", arguments={"only": "b"}, attempts=1)
    assert lake.run_due() == 2
    with lake.session("a") as session:
        found = {one.procedure: one for one in history(session)}
    assert {name: one.outcome for name, one in found.items()} == {"purge_realm": "failed", "fsck": "failed"}
    assert "cannot be called over HTTP" in found["purge_realm"].error
    assert "only the served realm" in found["fsck"].error
    with open_store(lake.store) as opened:
        assert opened.state("b") is RealmState.ACTIVE


def test_the_command_works_for_the_named_realms(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    for realm in ("a", "b", "c"):
        with lake.session(realm) as session:
            call(session, "enqueue", procedure="expire")
    assert run("work", lake.store, "--realms", "a,b", "--once").out == "2 runs\n"
    assert run("work", lake.store, "--realms", "all", "--once").out == "1 runs\n"
    answer = run("work", lake.store, "--realms", "a,d", "--once")
    assert (answer.code, answer.out) == (0, "0 runs\n")
    assert "the worker skips the realm 'd': there is no realm 'd'" in caplog.text
    answer = run("work", lake.store, "--realms", "all", "--realm", "a", "--once")
    assert (answer.code, "either --realm or --realms" in answer.err) == (2, True)


def test_a_server_of_many_realms_works_and_ends_cleanly(lake: Lake) -> None:
    for realm in ("a", "b"):
        with lake.session(realm) as session:
            call(session, "enqueue", procedure="expire")
    assert run("realm", "create", lake.store, "empty").code == 0
    with Server(lake.store, "--realms", "all", "--insecure", "--work") as server:
        wait_until(lambda: bool(lake.runs("a") and lake.runs("b")), "the tasks have run")
        assert server.stop(signal.SIGTERM) == 0
    assert server.errors.count("the worker skips the realm 'empty'") == 1
    assert "Traceback" not in server.errors
    assert [one[0] for one in lake.runs("a") + lake.runs("b")] == ["expire", "expire"]
