"""Sessions that are open when their realm is deactivated, moved, purged or reactivated learn of it within a stated
time."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

import polaris_spark
from polaris_spark.clock import ManualClock, SystemClock
from polaris_spark.errors import RealmMovedError, RealmStateError
from polaris_spark.jobs.procedure import Call
from polaris_spark.jobs.registry import call
from polaris_spark.maintenance.realm_purge import Purge
from polaris_spark.rest.session import Session
from polaris_spark.system.realms import MOVED_TO, SERVING_MS, RealmState
from tests.rest.client import Client


class Opened:
    """A realm that a session has open, whose clock stands still."""

    def __init__(self, folder: Path) -> None:
        self.store, self.folder = f"memory:{uuid.uuid4()}", folder
        self.clock = ManualClock(SystemClock().now_ms())
        self.session = self.open()
        self.client = Client(self.session)
        self.client.namespace("db")
        self.client.create("t")
        self.realms = self.session.connection.realms

    def open(self) -> Session:
        return polaris_spark.connect(
            store=self.store,
            warehouse=str(self.folder),
            clock=self.clock,
            create=True,
            metadata_files="never",
        )

    def move(self, *states: RealmState) -> None:
        for state in states:
            self.realms.move("default", state)

    def wait(self) -> None:
        self.clock.advance(SERVING_MS)

    def refusal(self, method: str = "GET", path: str = "v1/namespaces/db/tables/t") -> str:
        answer = self.client.send(method, path, {"namespace": ["x"]} if method == "POST" else None)
        assert answer.kind == (400, "BadRequestException")
        return str(answer.error["message"])


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    return Opened(tmp_path)


def test_an_open_session_is_refused_within_the_stated_time_and_then_serves_again(opened: Opened) -> None:
    opened.move(RealmState.INACTIVE)
    assert opened.client.load("t")  # known for at most SERVING_MS
    opened.clock.advance(SERVING_MS - 1)
    assert opened.client.load("t")
    opened.clock.advance(1)
    expected = "realm 'default' is INACTIVE; only an ACTIVE realm can be used"
    assert opened.refusal() == expected
    assert opened.refusal("POST", "v1/namespaces") == expected
    assert opened.refusal("POST", "polaris-spark/v1/procedures/fsck") == expected
    assert opened.refusal("POST", "polaris-spark/v1/views/tables/plan") == expected
    opened.move(RealmState.ACTIVE)
    assert opened.client.load("t")  # at once
    opened.client.namespace("x")


def test_an_answer_that_a_session_remembers_is_refused_too(opened: Opened) -> None:
    path = "v1/namespaces/db/tables/t"
    etag = opened.client.send("GET", path).headers["ETag"]
    known = {"If-None-Match": etag}
    for _ in range(2):
        assert opened.client.send("GET", path, headers=known).status == 304
    opened.move(RealmState.INACTIVE)
    opened.wait()
    assert opened.client.send("GET", path, headers=known).status == 400
    opened.move(RealmState.ACTIVE)
    assert opened.client.send("GET", path, headers=known).status == 304


USES: dict[str, Callable[[Session], object]] = {
    "properties": lambda session: session.catalog_properties(),
    "set properties": lambda session: session.set_catalog_properties({"gc.enabled": "false"}),
    "catalogs": lambda session: session.catalogs,
    "a transaction": lambda session: session.transaction().__enter__(),
    "a job": lambda session: call(session, "sweep"),
    "a procedure": lambda session: call(session, "create_branch", name="dev"),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_methods_of_a_session_and_jobs_are_refused(opened: Opened, use: Callable[[Session], object]) -> None:
    opened.move(RealmState.INACTIVE)
    opened.wait()
    with pytest.raises(RealmStateError, match="INACTIVE"):
        use(opened.session)
    opened.move(RealmState.ACTIVE)
    use(opened.session)


def test_a_transaction_is_not_committed_to_a_deactivated_realm(opened: Opened) -> None:
    def transact() -> None:
        with opened.session.transaction() as begun:
            Client(begun).namespace("x")
            opened.move(RealmState.INACTIVE)
            opened.wait()

    with pytest.raises(RealmStateError, match="INACTIVE"):
        transact()
    opened.move(RealmState.ACTIVE)
    assert opened.client.send("GET", "v1/namespaces/x").status == 404


def test_a_running_job_ends(opened: Opened) -> None:
    running = Call(opened.session)
    running.progress("working")
    opened.move(RealmState.INACTIVE)
    opened.wait()
    with pytest.raises(RealmStateError, match="INACTIVE"):
        running.progress("working")


def test_all_sessions_of_a_process_with_a_realm_read_its_record_once(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Client(opened.open())
    reads: list[str] = []
    find = opened.realms.find

    def counted(name: str) -> object:
        reads.append(name)
        return find(name)

    monkeypatch.setattr(opened.realms, "find", counted)
    opened.wait()
    for client in (opened.client, other) * 5:
        assert client.load("t")
    assert reads == ["default"]
    other.session.close()


def test_a_moved_realm_names_the_store_to_which_it_was_moved(opened: Opened) -> None:
    instance = opened.realms.active("default").instance
    opened.realms.describe("default", lambda _: {MOVED_TO: "sqlite:///new.db"}, instance=instance)
    opened.move(RealmState.INACTIVE)
    opened.wait()
    assert opened.refusal() == "realm 'default' was moved to sqlite:///new.db: open it there"
    with pytest.raises(RealmMovedError):
        call(opened.session, "sweep")


def test_a_purged_realm_is_refused_even_if_another_one_has_its_name(opened: Opened) -> None:
    backend, clock = opened.session.connection.backend, opened.clock
    Purge(backend, clock).realm("default", deactivate=True)
    opened.wait()
    assert opened.refusal() == "realm 'default' was purged"
    again = opened.open()
    assert Client(again).send("GET", "v1/namespaces").body["namespaces"] == []
    assert "a new realm has its name" in opened.refusal()
    assert Client(again).send("GET", "v1/namespaces").status == 200
    again.close()
