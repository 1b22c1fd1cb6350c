"""Realms whose requests an external authorizer decides."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from polaris_spark.access.authorizers import AuthorizerError, Question, Securable
from polaris_spark.access.decisions import VARIABLE, Decisions, decisions_of
from polaris_spark.access.privileges import PRIVILEGES
from polaris_spark.catalog.branches.archived_log import stored_log
from polaris_spark.errors import ForbiddenError, NotFoundError
from polaris_spark.system.features import EXTERNAL_AUTHORIZERS
from tests.access import authorizing
from tests.access.authorizing import AUTHORIZERS, Deciding, Mirror
from tests.access.test_matrix import restore, wrong_procedures, wrong_routes
from tests.access.world import SCHEMA, User, World
from tests.rest.materialized import create_materialized_view

T = "v1/namespaces/db/tables"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "w")
    for namespace in ("db", "hidden"):
        made.namespace(namespace)
    for name in ("a", "b", "c"):
        made.table("db", name)
    made.table("hidden", "t")
    made.grant(["CATALOG_LIST"])
    yield made
    made.close()


class Given:
    """Lets a realm use authorizers of this process."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = folder, monkeypatch
        authorizing.installed(folder / "site", monkeypatch)

    def __call__(self, world: World, authorizer: Any, **settings: str) -> Switch:
        """Let an authorizer decide in a realm; by default, its decisions are not cached."""
        AUTHORIZERS["one"] = switch = Switch(authorizer)
        one = {"type": "given", "key": "one", "cache": "0 s", **settings}
        authorizing.settings(self._folder, self._monkeypatch, one=one)
        status, body = world.root.call("set_authorizer", name="one")
        assert status == 200, body
        return switch


class Switch:
    """An authorizer that asks another one."""

    def __init__(self, other: Any) -> None:
        self.other = other

    def decide(self, question: Question, timeout_seconds: float) -> Any:
        return self.other.decide(question, timeout_seconds)


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Given:
    return Given(tmp_path, monkeypatch)


def on_tables(*names: str) -> Deciding:
    """An authorizer that lets everybody see the catalog and `db`, and do everything with some tables of `db`."""

    def allows(question: Question, one: Securable) -> bool:
        if one.kind == "table":
            return one.namespace == ("db",) and one.name in names
        return question.privilege == "CATALOG_LIST" or one.namespace == ("db",)

    return Deciding(allows)


def names(answer: tuple[int, Any]) -> list[str]:
    assert answer[0] == 200, answer
    return [one["name"] for one in answer[1]["identifiers"]]


SOME = ("TABLE_READ_DATA", "VIEW_DROP", "NAMESPACE_LIST", "CATALOG_MANAGE_CONTENT")
"""Privileges that the check tries."""


@pytest.mark.parametrize(
    "privilege",
    [one if one in SOME else pytest.param(one, marks=pytest.mark.exhaustive) for one in PRIVILEGES],
)
def test_an_authorizer_that_says_what_grants_say_changes_nothing(
    tmp_path: Path, given: Given, privilege: str
) -> None:
    world = World(tmp_path / "mirrored")
    for one in ("db", "other"):
        world.namespace(one)
    restore(world)
    world.grant(["CATALOG_LIST"])
    ann = world.open(world.credentials)
    given(world, Mirror(world), timeout="1 min")
    assert wrong_routes(world, ann, privilege) == []
    assert wrong_procedures(world, ann, privilege) == []
    world.close()


def test_grants_and_owners_allow_nothing_where_an_authorizer_decides(world: World, given: Given) -> None:
    world.grant(["CATALOG_MANAGE_CONTENT"])
    ann = world.open(world.credentials)
    assert ann.status("POST", T, {"name": "own", "schema": {"type": "struct", "fields": []}}) == 200
    given(world, on_tables("a"))
    assert ann.status("GET", f"{T}/a") == 200
    assert ann.status("GET", f"{T}/own") == 404
    hidden, missing = ann.send("GET", f"{T}/own"), ann.send("GET", f"{T}/missing")
    assert str(hidden).replace("own", "missing") == str(missing)


def test_a_list_asks_once_about_all_its_names(world: World, given: Given) -> None:
    ann = world.open(world.credentials)
    authorizer = on_tables("a", "c")
    given(world, authorizer)
    authorizer.questions.clear()
    assert names(ann.send("GET", T)) == ["a", "c"]
    lists = [one for one in authorizer.questions if one.privilege == "TABLE_LIST"]
    assert [len(one.securables) for one in lists] == [3]
    question = lists[0]
    assert (question.principal, question.roles) == ("ann", ("one",))
    assert question.securables[0] == Securable("table", "polaris", "main", ("db",), "a")


def test_the_list_of_catalogs_asks_once_about_all_of_them(world: World, given: Given, tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        world.root.session.catalogs.create(name, {"warehouse": str(tmp_path / name)})
    ann = world.open(world.credentials)
    authorizer = Deciding(
        lambda question, one: one.catalog != "two" and question.privilege != "CATALOG_READ_PROPERTIES"
    )
    given(world, authorizer)
    authorizer.questions.clear()
    found = ann.session.catalogs.all()
    assert [one.row.name for one in found] == ["one", "polaris", "three"]
    assert [one.row.properties for one in found] == [{}] * 3
    asked = [(one.privilege, len(one.securables)) for one in authorizer.questions]
    assert asked == [("CATALOG_LIST", 4), ("CATALOG_READ_PROPERTIES", 3)]


def test_the_authorizer_learns_the_realm_the_branch_and_the_active_roles(world: World, given: Given) -> None:
    world.root.call("create_branch", name="dev")
    authorizer = on_tables("a")
    given(world, authorizer)
    dev = world.open(world.credentials, branch="dev")
    authorizer.questions.clear()
    assert dev.status("GET", f"{T}/a") == 200
    assert {one.realm for one in authorizer.questions} == {"default"}
    assert authorizer.questions[-1].securables[0].branch == "dev"


def test_an_earlier_state_is_asked_about_by_present_names(world: World, given: Given) -> None:
    then = f"main#{world.root.session.catalog.head().head.number}"
    moved = {
        "source": {"namespace": ["db"], "name": "a"},
        "destination": {"namespace": ["hidden"], "name": "a"},
    }
    assert world.root.status("POST", "v1/tables/rename", moved) == 204
    given(world, on_tables("a", "b"))
    ann = world.open(world.credentials)
    statuses = [ann.status("GET", f"{T}/{name}", polaris_state=then) for name in ("a", "b", "c")]
    assert statuses == [404, 200, 404]
    assert names(ann.send("GET", T, polaris_state=then)) == ["b"]


def test_a_withdrawn_privilege_is_not_read_from_a_cache_of_responses(world: World, given: Given) -> None:
    allowed = {"a"}
    ann = world.open(world.credentials)
    given(world, Deciding(lambda _, one: one.kind != "table" or one.name in allowed))
    for _ in range(3):
        assert ann.status("GET", f"{T}/a") == 200
    allowed.clear()
    assert ann.status("GET", f"{T}/a") == 404


def _fails(_: Question, __: Securable) -> bool:
    raise ValueError("the secret of the database")


class Short:
    """An authorizer whose answers lack the last decision."""

    def decide(self, question: Question, timeout_seconds: float) -> list[bool]:
        return [True] * (len(question.securables) - 1)


@pytest.mark.parametrize(
    "wrong", [Deciding(_fails), Deciding(lambda *_: "yes"), Deciding(lambda *_: 1), Short()]
)
def test_a_request_is_refused_if_the_authorizer_makes_no_decision(
    world: World, given: Given, wrong: Any
) -> None:
    ann = world.open(world.credentials)
    given(world, on_tables("a")).other = wrong
    for method, path in (("GET", T), ("GET", f"{T}/a"), ("HEAD", f"{T}/a"), ("DELETE", f"{T}/a")):
        status, body = ann.send(method, path)
        assert status == 503
        if body is not None:
            assert "is refused" in str(body)
            assert "secret" not in str(body)
    assert world.root.status("GET", f"{T}/a") == 503


def test_a_process_without_settings_refuses_requests(
    world: World, given: Given, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ann = world.open(world.credentials)
    given(world, on_tables("a"))
    assert ann.status("GET", f"{T}/a") == 200
    for setting in ("", str(tmp_path / "missing.json")):
        monkeypatch.setenv(VARIABLE, setting)
        status, body = ann.send("GET", f"{T}/a")
        assert status == 403
        assert "this process cannot use it" in str(body)


def test_only_a_granted_access_manager_changes_the_authorizer(world: World, given: Given) -> None:
    given(world, Deciding(lambda *_: True))
    ann = world.open(world.credentials)
    status, body = ann.call("set_authorizer")
    assert status == 403
    assert "a grant of SERVICE_MANAGE_ACCESS" in str(body)
    assert world.root.status("GET", f"{T}/a") == 200


def test_an_access_manager_ends_an_authorizer_that_refuses_everything(world: World, given: Given) -> None:
    given(world, Deciding(lambda *_: False))
    assert world.root.status("GET", f"{T}/a") == 404
    with pytest.raises(NotFoundError, match="existing catalogs: none"):
        world.open(world.credentials)
    again = world.open(world.administrator)  # as a new process
    status, body = again.call("set_authorizer")
    assert (status, body["rows"]) == (200, [["one", None]])
    assert world.root.status("GET", f"{T}/a") == 200


def test_an_authorizer_that_cannot_be_asked_is_not_set(world: World, given: Given) -> None:
    assert world.root.call("set_authorizer", name="unknown")[0] == 403
    with pytest.raises(AssertionError, match="made no decision"):
        given(world, Deciding(_fails))
    assert world.root.status("GET", f"{T}/a") == 200


def test_a_realm_that_earlier_releases_may_use_gets_no_authorizer(
    world: World, given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    realms = world.root.session.connection.realms
    record = realms.active("default")
    features = {name: release for name, release in record.features.items() if name != EXTERNAL_AUTHORIZERS}
    assert features != record.features
    earlier = msgspec.structs.replace(record, features=features)
    monkeypatch.setattr(realms, "active", {"default": earlier}.__getitem__)
    with pytest.raises(AssertionError, match="polaris-spark upgrade"):
        given(world, Deciding(lambda *_: True))
    assert world.root.session.access.newest().authorizer is None  # type: ignore[union-attr]  # it has rules


def test_the_log_has_the_changes_of_the_authorizer(world: World, given: Given) -> None:
    given(world, Deciding(lambda *_: True))
    assert world.root.call("set_authorizer")[1]["rows"] == [["one", None]]
    head = world.root.session.access.required().head
    log = stored_log(head.store, head.head, head.head.number - 1, head.head.number)
    entries = [entry for commit in log for entry in commit.entries]
    assert [(one.action, one.principal) for one in entries] == [("set-authorizer", "root")] * 2
    assert entries[-1].summary == {"authorizer": "", "before": "one"}


def test_the_answers_of_an_authorizer_are_explained(world: World, given: Given) -> None:
    given(world, Deciding(lambda question, one: question.principal == "root" or one.kind == "catalog"))
    wanted = {"privilege": "TABLE_READ_DATA", "on": "table", "name": "db.a"}
    rows = world.root.call("who_can", **wanted)[1]["rows"]
    assert [row[:2] for row in rows] == [["root", "authorizer one"]]
    rows = world.root.call("explain_access", **wanted, principal="ann")[1]["rows"]
    assert rows[0][0] == "refused"
    assert "authorizer one" in rows[1][1]


def test_the_changes_of_a_branch_are_filtered(world: World, given: Given) -> None:
    given(world, on_tables("a"))
    ann = world.open(world.credentials)
    status, body = ann.send("GET", "polaris-spark/v1/changes", None, {"after": "oldest"})
    assert status == 200
    assert {one["name"] for one in body["changes"]} == {"db", "db.a"}


def test_decisions_are_used_again_for_the_stated_time() -> None:
    now = [0.0]
    authorizer = Deciding(lambda *_: True)
    decisions = Decisions("one", authorizer, timeout_ms=1_000, cache_ms=2_000, monotonic=lambda: now[0])
    question = Question("r", "ann", (), "TABLE_LIST", (Securable("table", "c", "main", ("db",), "a"),))
    for moment, asked in ((0.0, 1), (1.9, 1), (2.1, 2)):
        now[0] = moment
        assert decisions.of(question) == [True]
        assert len(authorizer.questions) == asked
    decisions.of(question._replace(roles=("other",)))
    assert len(authorizer.questions) == 3


def test_a_late_decision_is_no_decision() -> None:
    times = iter((0.0, 0.0, 5.0, 5.0, 5.0))
    decisions = Decisions(
        "one", Deciding(lambda *_: True), timeout_ms=1_000, cache_ms=0, monotonic=lambda: next(times, 5.0)
    )
    question = Question("r", "ann", (), "TABLE_LIST", (Securable("realm"),))
    with pytest.raises(AuthorizerError, match="longer than its timeout of 1 s"):
        decisions.of(question)


def test_an_authorizer_that_does_not_answer_occupies_few_threads() -> None:
    released, entered = threading.Event(), threading.Semaphore(0)

    def hang(question: Question, _: Securable) -> bool:
        if question.principal == "ann":
            entered.release()
            assert released.wait(60)
        return True

    decisions = Decisions("one", Deciding(hang), timeout_ms=60_000, cache_ms=0, calls=2)
    question = Question("r", "ann", (), "TABLE_LIST", (Securable("realm"),))
    with ThreadPoolExecutor(2) as threads:
        try:
            hanging = [threads.submit(decisions.of, question) for _ in range(2)]
            for _ in hanging:
                assert entered.acquire(timeout=60)
            begun = time.monotonic()
            for _ in range(20):
                with pytest.raises(
                    AuthorizerError, match="2 calls to the authorizer are already in progress, the maximum"
                ):
                    decisions.of(question._replace(principal="bob"))
            assert time.monotonic() - begun < 30  # half of the timeout of one call
        finally:
            released.set()
        assert [one.result(60) for one in hanging] == [[True], [True]]
    assert decisions.of(question._replace(principal="bob")) == [True]


def test_calls_that_are_quick_wait_for_each_other() -> None:
    decisions = Decisions("one", Deciding(lambda *_: True), timeout_ms=60_000, cache_ms=0, calls=1)
    question = Question("r", "ann", (), "TABLE_LIST", (Securable("realm"),))
    with ThreadPoolExecutor(8) as threads, patch("polaris_spark.access.decisions.SLOW_SECONDS", 60):
        assert all(one == [True] for one in threads.map(decisions.of, [question] * 200))


def test_more_securables_than_a_question_may_have_are_asked_in_parts() -> None:
    authorizer = Deciding(lambda _, one: one.name != "t1500")
    decisions = Decisions("one", authorizer, timeout_ms=60_000, cache_ms=60_000)
    some = tuple(Securable("table", "c", "main", ("db",), f"t{one}") for one in range(2_500))
    found = decisions.of(Question("r", "ann", (), "TABLE_LIST", some))
    assert [len(one.securables) for one in authorizer.questions] == [1_000, 1_000, 500]
    assert [at for at, allowed in enumerate(found) if not allowed] == [1_500]


def test_the_storage_of_a_materialized_view_is_asked_about_as_the_view(world: World, given: Given) -> None:
    create_materialized_view(world.root.session.catalog, "m", "SELECT a FROM a", namespace=("db",))
    ann = world.open(world.credentials)
    authorizer = Deciding(lambda _, one: one.kind in ("catalog", "namespace", "table"))
    given(world, authorizer)
    authorizer.questions.clear()
    path = "v1/namespaces/db%1Fm/tables/storage"
    assert ann.status("GET", path) == 404
    asked = {one for question in authorizer.questions for one in question.securables}
    assert Securable("view", "polaris", "main", ("db",), "m") in asked
    assert not [one for one in asked if one.kind == "table"]
    given(
        world,
        Deciding(lambda question, one: one.kind != "view" or question.privilege == "TABLE_READ_PROPERTIES"),
    )
    assert ann.status("GET", path) == 200


def test_an_id_of_no_table_is_missing(world: World, given: Given) -> None:
    given(world, Deciding(lambda *_: True))
    ann = world.open(world.credentials)
    for id in ("zzz", "0", "7fffffffffffffff"):
        assert ann.status("GET", f"v1/tables/{id}/versions/1/snapshots") == 404


def test_a_listed_table_that_is_gone_is_asked_about_by_its_name(world: World, given: Given) -> None:
    authorizer = Deciding(lambda _, one: one.name != "c")
    given(world, authorizer)
    ann = world.open(world.credentials)
    status, first = ann.send("GET", T, None, {"pageSize": "1"})
    assert (status, [one["name"] for one in first["identifiers"]]) == (200, ["a"])
    assert world.root.status("DELETE", f"{T}/b") == 204
    authorizer.questions.clear()
    status, _ = ann.send("GET", T, None, {"pageSize": "10", "pageToken": first["next-page-token"]})
    assert status == 200
    asked = [one for q in authorizer.questions if q.privilege == "TABLE_LIST" for one in q.securables]
    assert {one.kind for one in asked} == {"table"}


def test_the_commit_of_a_transaction_asks_about_what_it_creates(world: World, given: Given) -> None:
    lost: set[str] = set()
    given(world, Deciding(lambda question, one: question.privilege not in lost or one.name != "own"))
    ann = world.open(world.credentials)
    sets = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]}

    def work() -> None:
        with ann.session.transaction() as begun:
            user = User(begun)
            assert user.status("POST", T, {"name": "own", "schema": SCHEMA}) == 200
            assert user.status("POST", f"{T}/own", sets) == 200
            lost.update(will_be_lost)

    will_be_lost = {"TABLE_WRITE_PROPERTIES"}
    with pytest.raises(ForbiddenError, match=r"TABLE_WRITE_PROPERTIES on table db\.own"):
        work()
    lost.clear()
    will_be_lost.clear()
    work()
    assert ann.status("GET", f"{T}/own") == 200


def test_an_administrator_by_the_authorizer_is_protected(world: World, given: Given) -> None:
    """Whoever may only reset credentials could otherwise log in as this administrator."""
    world.principal("boss", "bosses")
    help_desk = {
        "CATALOG_LIST",
        "PRINCIPAL_RESET_CREDENTIALS",
        "PRINCIPAL_DROP",
        "PRINCIPAL_WRITE_PROPERTIES",
    }
    given(world, Deciding(lambda question, _: "bosses" in question.roles or question.privilege in help_desk))
    ann = world.open(world.credentials)
    world.principal("eve", "staff")
    for name, expected in (("boss", 403), ("root", 403), ("eve", 200)):
        assert ann.call("alter_principal", name=name, expires_after="1 d")[0] == expected
        assert ann.call("reset_credentials", name=name)[0] == expected
        assert ann.call("drop_principal", name=name)[0] == expected


@pytest.mark.parametrize("is_set", [True, False])
def test_an_access_manager_ends_an_authorizer_that_makes_no_decision(
    world: World, given: Given, monkeypatch: pytest.MonkeyPatch, is_set: bool
) -> None:
    given(world, on_tables("a")).other = Deciding(_fails)
    if not is_set:
        monkeypatch.delenv(VARIABLE)
    again = world.open(world.administrator)  # as a new process
    assert again.status("GET", f"{T}/a") == (503 if is_set else 403)
    assert again.call("set_authorizer")[0] == 200
    assert again.status("GET", f"{T}/a") == 200


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"type": "given", "key": "none"}, "could not be created (KeyError)"),
        ({"type": ["given"]}, "known types are given, opa"),
        ({"type": "given", "key": "one", "timeout": "0 s"}, "must be longer than 0 s"),
        ({"type": "given", "key": "one", "cache": 5}, "write a duration"),
    ],
)
def test_settings_that_cannot_be_used_refuse_requests(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], said: str
) -> None:
    AUTHORIZERS["one"] = Deciding(lambda *_: True)
    authorizing.settings(tmp_path, monkeypatch, one=settings)
    with pytest.raises(ForbiddenError, match=re.escape(said)):
        decisions_of("one")
