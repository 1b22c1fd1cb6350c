"""Changes after a position, in process: pages, positions, the archived log, recoveries, and waits."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

import polaris_spark
from polaris_spark.clock import ManualClock
from polaris_spark.commits.log import ancestor
from polaris_spark.errors import InputError
from polaris_spark.jobs.registry import call
from polaris_spark.rest import session as sessions
from polaris_spark.rest.request import PendingResponse
from polaris_spark.store.cache import process_cache
from polaris_spark.testing.waiting import PATIENCE_S
from tests.views.catalogs import Catalog

DAY = 86_400_000
PATH = "polaris-spark/v1/changes"
LONG = "60s"
"""Longer than any test waits for a change that comes."""


@pytest.fixture
def session(tmp_path: Path) -> Iterator[polaris_spark.Session]:
    with polaris_spark.connect(
        store=f"sqlite://{tmp_path}/s.db", warehouse=str(tmp_path / "w"), principal="ada"
    ) as session:
        yield session


def create(session: polaris_spark.Session, *names: str) -> None:
    """Create namespaces, in one commit each."""
    for name in names:
        status, _, body = session.request("POST", "v1/namespaces", body=json.dumps({"namespace": [name]}))
        assert status == 200, body


def create_together(session: polaris_spark.Session, *names: str) -> None:
    """Create namespaces in one commit."""
    with session.transaction() as transaction:
        create(transaction, *names)


def ask(
    session: polaris_spark.Session, path: str = PATH, headers: dict[str, str] | None = None, **query: str
) -> dict[str, Any]:
    """The answer to a request that succeeds."""
    status, _, body = session.request("GET", path, query, headers=headers)
    assert status == 200, body
    found: dict[str, Any] = json.loads(body)
    return found


def refusal(session: polaris_spark.Session, **query: str) -> tuple[int, str, str]:
    """Status, type and message of the answer to a request that is refused."""
    status, _, body = session.request("GET", PATH, query)
    error = json.loads(body)["error"]
    assert error["code"] == status
    return status, error["type"], error["message"]


def names(found: dict[str, Any]) -> list[str]:
    return [change["name"] for change in found["changes"]]


def test_changes_after_a_number_come_oldest_first_with_their_commits(session: polaris_spark.Session) -> None:
    create(session, "a", "b", "c")
    found = ask(session, after="1")
    assert (found["catalog"], found["branch"], names(found)) == ("polaris", "main", ["b", "c"])
    first = found["changes"][0]
    assert (first["action"], first["kind"], first["principal"]) == ("create-namespace", "namespace", "ada")
    assert first["commit"]["number"] == 2
    assert found["next"] == found["changes"][-1]["position"] == f"3-{found['changes'][-1]['commit']['id']}"


def test_without_a_position_the_answer_says_where_new_changes_begin(session: polaris_spark.Session) -> None:
    create(session, "a")
    begun = ask(session)
    assert begun["changes"] == []
    assert ask(session, after=begun["next"])["next"] == begun["next"]
    create(session, "b")
    assert names(ask(session, after=begun["next"])) == ["b"]
    assert names(ask(session, after="oldest")) == ["a", "b"]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 1_000_000])
def test_pages_of_any_size_have_each_change_once(session: polaris_spark.Session, limit: int) -> None:
    create(session, "a")
    create_together(session, *"bcdef")
    create(session, "g")
    create_together(session, *"hi")
    found, after = [], "0"
    while page := ask(session, after=after, limit=str(limit)):
        if not page["changes"]:
            break
        assert len(page["changes"]) <= limit
        found += names(page)
        after = page["next"]
    assert found == list("abcdefghi")


def test_a_reader_can_go_on_after_each_change_of_a_commit(session: polaris_spark.Session) -> None:
    create_together(session, *"abc")
    create(session, "d")
    everything = ask(session, after="oldest")["changes"]
    assert len({change["position"] for change in everything}) == 4
    for index, change in enumerate(everything):
        assert names(ask(session, after=change["position"])) == list("abcd")[index + 1 :]


def test_a_page_of_large_changes_is_bounded(
    session: polaris_spark.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polaris_spark.catalog.branches.change_log._PAGE_CHARACTERS", 30)
    create(session, *(letter * 20 for letter in "abcd"))
    assert len(ask(session, after="0")["changes"]) == 2


def test_changes_of_a_branch_are_those_of_the_branch(session: polaris_spark.Session) -> None:
    create(session, "a")
    call(session, "create_branch", name="dev")
    begun = ask(session, "polaris-spark/v1/polaris@dev/changes")
    create(session, "b")
    status, _, body = session.request(
        "POST", "v1/polaris@dev/namespaces", body=json.dumps({"namespace": ["c"]})
    )
    assert status == 200, body
    found = ask(session, "polaris-spark/v1/polaris@dev/changes", after=begun["next"])
    assert (found["branch"], names(found)) == ("dev", ["c"])
    assert names(ask(session, headers={"Polaris-State": "dev"}, after=begun["next"])) == ["c"]


@pytest.mark.parametrize(
    "query",
    [
        {"after": "x"},
        {"after": ""},
        {"after": "-1"},
        {"after": "1-"},
        {"after": "1-0"},
        {"after": "1-g"},
        {"after": "1-ffffffffffffffff"},
        {"after": "9" * 19},
        {"after": "9" * 200},
        {"after": "1\n"},
        {"after": "١"},
        {"limit": "0"},
        {"limit": "-1"},
        {"limit": "many"},
        {"limit": ""},
        {"wait": "30"},
        {"wait": "-1s"},
        {"wait": ""},
    ],
    ids=str,
)
def test_bad_input_is_refused(session: polaris_spark.Session, query: dict[str, str]) -> None:
    create(session, "a")
    status, _, message = refusal(session, **query)
    assert status in (400, 409)
    assert message


def test_a_state_that_is_no_branch_is_refused(session: polaris_spark.Session) -> None:
    create(session, "a", "b")
    for path in ("polaris-spark/v1/polaris@1/changes", "polaris-spark/v1/polaris@main%231/changes"):
        status, _, body = session.request("GET", path)
        assert (status, "is not a branch" in body) == (400, True)
    with session.transaction() as transaction:
        assert refusal(transaction)[0] == 400


def test_a_place_in_a_commit_that_it_does_not_have_is_refused(session: polaris_spark.Session) -> None:
    create(session, "a")
    status, _, message = refusal(session, after=ask(session)["next"] + "-5")
    assert (status, "does not exist" in message) == (400, True)


# Trimmed commits and recoveries


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def catalog(tmp_path: Path, clock: ManualClock) -> Iterator[Catalog]:
    catalog = Catalog(tmp_path / "c.db", clock=clock)
    catalog.namespace("db")
    catalog.table("db", "t")
    yield catalog
    catalog.session.close()


def days(catalog: Catalog, clock: ManualClock, n: int) -> None:
    """A change a day."""
    for day in range(n):
        catalog.set_property("db", "t", "day", str(day))
        clock.advance(DAY)


def test_the_archived_log_is_read_too(catalog: Catalog, clock: ManualClock) -> None:
    days(catalog, clock, 8)
    before = ask(catalog.session, after="0")
    call(catalog.session, "sweep")
    process_cache().clear()
    assert catalog.session.catalog.head().head.floor_number > 5
    assert ask(catalog.session, after="0") == before
    assert ask(catalog.session, after="oldest") == before
    for change in before["changes"]:
        expected = [one for one in before["changes"] if one["commit"]["number"] > change["commit"]["number"]]
        assert ask(catalog.session, after=change["position"])["changes"] == expected


def test_a_position_before_the_log_that_is_kept_is_gone(catalog: Catalog, clock: ManualClock) -> None:
    catalog.session.set_catalog_properties({"log-retention": "0 s"})
    days(catalog, clock, 8)
    before = ask(catalog.session, after="0")["changes"]
    call(catalog.session, "sweep")
    process_cache().clear()
    floor = catalog.session.catalog.head().head.floor_number
    status, kind, message = refusal(catalog.session, after="0", wait=LONG)
    assert (status, kind) == (410, "HistoryTrimmedException")
    assert f"commits 1 to {floor - 1} were trimmed" in message
    (last_gone,) = [one for one in before if one["commit"]["number"] == floor - 1]
    assert [
        one["commit"]["number"] for one in ask(catalog.session, after=last_gone["position"])["changes"]
    ] == [one["commit"]["number"] for one in before if one["commit"]["number"] >= floor]
    other = f"{floor - 1}-{before[0]['commit']['id']}"
    assert refusal(catalog.session, after=other)[:2] == (409, "HistoryReplacedException")


def test_a_position_in_commits_that_a_recovery_undid_is_refused(session: polaris_spark.Session) -> None:
    create(session, *"abcd")
    positions = [change["position"] for change in ask(session, after="0")["changes"]]
    references, name = session.catalog.references, session.catalog.reference
    head = references.read(name).head
    reset = msgspec.structs.replace(head, commit=ancestor(references.store, head, 2), number=2, recent=())
    references.open(name).amend(lambda _: reset)
    assert refusal(session, after=positions[3])[:2] == (409, "HistoryReplacedException")
    create(session, *"xyz")  # the numbers 3 to 5
    for position in positions[2:]:
        assert refusal(session, after=position, wait=LONG)[:2] == (409, "HistoryReplacedException")
    assert names(ask(session, after=positions[1])) == ["x", "y", "z"]


def test_a_recovery_during_a_wait_ends_the_wait(session: polaris_spark.Session, waiting: Waiting) -> None:
    create(session, *"abcd")
    after = ask(session)["next"]
    references, name = session.catalog.references, session.catalog.reference
    head = references.read(name).head
    reset = msgspec.structs.replace(head, commit=ancestor(references.store, head, 2), number=2, recent=())
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(refusal, session, after=after, wait=LONG)
        waiting.await_number(1)
        references.open(name).amend(lambda _: reset)
        assert answer.result(PATIENCE_S)[:2] == (409, "HistoryReplacedException")


# Waits


class Waiting:
    """Counts the requests that have begun to wait."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._number = 0

    def add(self) -> None:
        with self._condition:
            self._number += 1
            self._condition.notify_all()

    def await_number(self, number: int) -> None:
        with self._condition:
            assert self._condition.wait_for(lambda: self._number >= number, PATIENCE_S)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    found = Waiting()
    made = PendingResponse.of

    def of(*arguments: Any, **named: Any) -> PendingResponse:
        found.add()
        return made(*arguments, **named)

    monkeypatch.setattr(PendingResponse, "of", of)
    return found


def test_a_wait_ends_with_the_first_change(session: polaris_spark.Session, waiting: Waiting) -> None:
    after = ask(session)["next"]
    with ThreadPoolExecutor(20) as pool:
        answers = [pool.submit(ask, session, after=after, wait=LONG) for _ in range(20)]
        waiting.await_number(20)
        create(session, "a")
        assert [names(answer.result(PATIENCE_S)) for answer in answers] == [["a"]] * 20


def test_a_wait_without_a_position_begins_with_the_state_then(
    session: polaris_spark.Session, waiting: Waiting
) -> None:
    create(session, "a")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, session, wait=LONG)
        waiting.await_number(1)
        create(session, "b")
        assert names(answer.result(PATIENCE_S)) == ["b"]


def test_a_wait_without_changes_ends_in_time_with_the_same_position(session: polaris_spark.Session) -> None:
    create(session, "a")
    after = ask(session)["next"]
    assert ask(session, after=after, wait="10ms") == {
        "catalog": "polaris",
        "branch": "main",
        "changes": [],
        "next": after,
    }


def test_a_wait_does_not_begin_if_there_are_changes(session: polaris_spark.Session, waiting: Waiting) -> None:
    create(session, "a")
    assert names(ask(session, after="0", wait=LONG)) == ["a"]
    assert waiting._number == 0


def test_closing_the_session_ends_a_wait(tmp_path: Path, waiting: Waiting) -> None:
    session = polaris_spark.connect(store=f"sqlite://{tmp_path}/s.db", warehouse=str(tmp_path / "w"))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(session.request, "GET", PATH, {"wait": LONG})
        waiting.await_number(1)
        session.close()
        with pytest.raises(InputError, match="was closed"):
            answer.result(PATIENCE_S)


def test_readers_that_wait_see_every_change_of_competing_writers_once(
    session: polaris_spark.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "POLL_SECONDS", 0.001)
    expected = {f"{writer}{n}" for writer in "abc" for n in range(15)}

    def read() -> list[str]:
        found: list[str] = []
        after = "0"
        while len(found) < len(expected):
            page = ask(session, after=after, wait=LONG, limit="2")
            found += names(page)
            after = page["next"]
        return found

    with ThreadPoolExecutor(7) as pool:
        readers = [pool.submit(read) for _ in range(4)]
        writers = [pool.submit(create, session, *(f"{w}{n}" for n in range(15))) for w in "abc"]
        for writer in writers:
            writer.result(PATIENCE_S)
        found = [reader.result(PATIENCE_S) for reader in readers]
    assert all(one == found[0] for one in found)
    assert len(found[0]) == len(expected)
    assert set(found[0]) == expected
