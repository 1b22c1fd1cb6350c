"""Calls of procedures through routes: in process, and by an administrator over HTTP."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pytest

from polaris_spark.errors import InputError
from polaris_spark.extension import procedures as routes
from polaris_spark.extension import runs
from polaris_spark.jobs.procedure import Call, Column, Parameter
from polaris_spark.jobs.registry import procedures
from polaris_spark.rest.access import Role
from polaris_spark.rest.session import Session
from polaris_spark.testing.waiting import PATIENCE_S, wait_until
from tests.extension.callers import BASE, Asking
from tests.extension.conftest import Add

WAIT = {"wait_seconds": 10.0}


class Held:
    """A procedure that waits until the test releases it, and reports its progress meanwhile."""

    def __init__(self) -> None:
        self.begun, self.free = threading.Event(), threading.Event()

    def __call__(self, call: Call, _: Any) -> list[tuple[int]]:
        call.progress("holding", 1, 2)
        self.begun.set()
        while not self.free.wait(0.01):
            call.progress("holding", 1, 2)
        return [(1,)]


@pytest.fixture
def held(add: Add) -> Iterator[Held]:
    procedure = Held()
    add("held", procedure)
    yield procedure
    procedure.free.set()


def run_of(asking: Asking, id: str) -> runs.Run:
    """Return a run that the session remembers."""
    run = asking.session.resource(runs.Runs).find(id)
    assert run is not None
    return run


def listed(asking: Asking) -> list[str]:
    """Return the ids of all runs that the session remembers."""
    return [one["id"] for one in asking.send("GET", "runs")[1]["runs"]]


def ended(asking: Asking, id: str) -> Any:
    """Wait until the run has ended, and return it."""
    run = run_of(asking, id)
    assert run.ended.wait(PATIENCE_S)
    return asking.send("GET", f"runs/{id}")[1]


def test_a_session_lists_every_procedure_with_its_parameters(session: Session) -> None:
    status, _, text = session.request("GET", f"{BASE}/procedures")
    listed = {one["name"]: one for one in json.loads(text)["procedures"]}
    assert (status, list(listed)) == (200, list(procedures()))
    sweep = listed["sweep"]
    assert [one["name"] for one in sweep["parameters"]] == [p.name for p in procedures()["sweep"].parameters]
    assert [one["type"] for one in sweep["columns"]] == [c.type for c in procedures()["sweep"].columns]
    assert (sweep["over-http"], listed["migrate_realm"]["over-http"]) == (True, False)


def test_a_session_waits_for_a_procedure_and_gets_its_typed_rows(session: Session) -> None:
    body = json.dumps({"arguments": {"properties": {"gc.enabled": "false"}}})
    path = f"{BASE}/{session.catalog.name}/procedures/set_catalog_properties"
    status, _, text = session.request("POST", path, body=body)
    answer = json.loads(text)
    assert status == 200
    assert [column["name"] for column in answer["columns"]] == ["property", "value", "before"]
    assert ["gc.enabled", "false", None] in answer["rows"]


def test_an_administrator_gets_the_result_of_a_short_run_with_the_answer(admin: Asking) -> None:
    status, run = admin.call("set_catalog_properties", {"properties": {"gc.enabled": "false"}}, **WAIT)
    assert (status, run["status"], run["principal"]) == (200, "succeeded", "root")
    assert ["gc.enabled", "false", None] in run["rows"]


def test_a_call_is_logged_with_the_principal_of_its_token(admin: Asking, add: Add) -> None:
    seen: list[str] = []
    add("who", lambda call, _: seen.append(call.session.principal) or [])
    assert admin.call("who", **WAIT)[0] == 200
    assert seen == ["root"]


def test_every_type_keeps_its_values_both_ways(local: Asking, add: Add) -> None:
    given: dict[str, Any] = {}
    kinds = ("BIGINT", "DOUBLE", "TIMESTAMP", "ARRAY<STRING>", "MAP<STRING,STRING>", "BOOLEAN")
    names = ["big", "double", "time", "array", "map", "flag"]
    add(
        "kinds",
        lambda _, arguments: given.update(arguments) or [tuple(arguments[name] for name in names)],
        parameters=tuple(Parameter(name, kind, "any") for name, kind in zip(names, kinds, strict=True)),
        columns=tuple(Column(name, kind) for name, kind in zip(names, kinds, strict=True)),
    )
    values = [2**53 + 1, "NaN", 1_000_001, ["a", None], {"k": None}, True]
    status, answer = local.call("kinds", dict(zip(names, values, strict=True)))
    assert status == 200
    assert answer["rows"] == [values]
    assert given["time"] == datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=timezone.utc)


def test_a_long_run_reports_progress_and_its_result_comes_later(admin: Asking, held: Held) -> None:
    status, run = admin.call("held", id="one")
    assert (status, run["status"]) == (202, "running")
    assert "rows" not in run
    assert held.begun.wait(PATIENCE_S)
    progress = admin.send("GET", "runs/one")[1]["progress"]
    assert progress == {"step": "holding", "done": 1, "total": 2}
    assert [one["id"] for one in admin.send("GET", "runs")[1]["runs"]] == ["one"]
    held.free.set()
    assert ended(admin, "one")["rows"] == [[1]]


def test_a_repeated_request_does_not_start_a_second_run(admin: Asking, held: Held, add: Add) -> None:
    add("other", lambda *_: [])
    for _ in range(2):
        assert admin.call("held", id="one")[0] == 202
    assert len(admin.send("GET", "runs")[1]["runs"]) == 1
    assert admin.call("other", id="one")[0] == 409
    other = Asking(admin.session, Role.ADMINISTRATOR, "mallory")
    assert other.call("held", id="one")[0] == 409


def test_a_repeated_request_does_not_wait(admin: Asking, held: Held) -> None:
    admin.call("held", id="one")
    before = time.monotonic()
    assert admin.call("held", id="one", **WAIT)[0] == 202
    assert time.monotonic() - before < WAIT["wait_seconds"] / 2


def test_an_administrator_neither_sees_nor_cancels_the_runs_of_another_principal(
    admin: Asking, local: Asking, held: Held
) -> None:
    admin.call("held", id="one")
    other = Asking(admin.session, Role.ADMINISTRATOR, "mallory")
    assert other.send("GET", "runs")[1] == {"runs": []}
    assert other.send("GET", "runs/one")[0] == 404
    assert other.send("DELETE", "runs/one")[0] == 404
    assert [one["id"] for one in local.send("GET", "runs")[1]["runs"]] == ["one"]
    held.free.set()
    assert ended(admin, "one")["status"] == "succeeded"


def test_a_token_with_fewer_roles_does_not_see_the_runs_of_the_others(admin: Asking, held: Held) -> None:
    """Their results can contain what its own roles may not read."""
    some, fewer = (Asking(admin.session, Role.ADMINISTRATOR) for _ in range(2))
    some.caller = some.caller._replace(roles=frozenset({"reader", "writer"}))
    fewer.caller = fewer.caller._replace(roles=frozenset({"reader"}))
    assert some.call("held", id="one")[0] == 202
    for caller, seen in ((some, True), (fewer, False), (admin, True)):
        assert (caller.send("GET", "runs/one")[0] == 200) == seen
        assert (caller.send("GET", "runs")[1]["runs"] != []) == seen
    assert fewer.send("DELETE", "runs/one")[0] == 404
    assert fewer.call("held", id="one")[0] == 409
    assert admin.call("held", id="two")[0] == 202
    assert some.send("GET", "runs/two")[0] == 404
    held.free.set()


def test_a_run_is_cancelled(admin: Asking, held: Held) -> None:
    admin.call("held", id="one")
    assert held.begun.wait(PATIENCE_S)
    assert admin.send("DELETE", "runs/one")[0] == 204
    run = ended(admin, "one")
    assert run["status"] == "cancelled"
    assert "cancelled" in run["error"]["message"]
    assert admin.send("DELETE", "runs/two")[0] == 404


def test_a_call_that_a_request_waits_for_is_cancelled_by_its_id(local: Asking, held: Held) -> None:
    answers: list[tuple[int, Any]] = []
    thread = threading.Thread(target=lambda: answers.append(local.call("held", id="one")))
    thread.start()
    assert held.begun.wait(PATIENCE_S)
    assert local.send("GET", "runs/one")[1]["progress"]["step"] == "holding"
    local.send("DELETE", "runs/one")
    thread.join(PATIENCE_S)
    assert answers[0][0] == 503
    assert local.send("GET", "runs/one")[0] == 404


def test_only_a_few_runs_are_in_progress_at_once(admin: Asking, held: Held) -> None:
    for n in range(runs.MAX_RUNNING):
        assert admin.call("held", id=f"run-{n}")[0] == 202
    status, body = admin.call("held")
    assert (status, body["error"]["type"]) == (503, "ServiceUnavailableException")
    held.free.set()
    for n in range(runs.MAX_RUNNING):
        assert ended(admin, f"run-{n}")["status"] == "succeeded"


def test_closing_the_session_ends_its_runs_first(session: Session, admin: Asking, held: Held) -> None:
    admin.call("held", id="one")
    run = run_of(admin, "one")
    assert held.begun.wait(PATIENCE_S)
    session.close()
    assert run.ended.is_set()
    assert run.status == "cancelled"
    with pytest.raises(InputError, match="closed"):
        session.request("GET", f"{BASE}/procedures")


def test_a_served_catalog_starts_nothing_after_its_session_was_closed(
    session: Session, admin: Asking
) -> None:
    session.close()
    status, body = admin.call("trim", id="late")
    assert (status, body["error"]["message"]) == (400, "this catalog was closed; open it again")


def test_closing_the_session_waits_no_longer_than_a_call_in_a_request_takes(
    session: Session, local: Asking, held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[tuple[int, Any]] = []
    thread = threading.Thread(target=lambda: answers.append(local.call("held", id="one")))
    thread.start()
    assert held.begun.wait(PATIENCE_S)
    before = time.monotonic()
    session.close()
    assert time.monotonic() - before < runs.CLOSING_SECONDS / 2
    assert "has not ended" not in caplog.text
    thread.join(PATIENCE_S)
    assert answers[0][0] == 503


def test_closing_the_session_waits_for_all_runs_together(
    session: Session, admin: Asking, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "CLOSING_SECONDS", 0.5)
    free, begun = threading.Event(), threading.Semaphore(0)

    def run(*_: Any) -> list[tuple[int]]:
        begun.release()
        free.wait(PATIENCE_S)
        return []

    add("deaf", run)
    for n in range(runs.MAX_RUNNING):
        admin.call("deaf", id=str(n))
        assert begun.acquire(timeout=PATIENCE_S)
    running = admin.session.resource(runs.Runs).all()
    before = time.monotonic()
    session.close()
    took = time.monotonic() - before
    free.set()
    assert took < runs.MAX_RUNNING * 0.5
    assert all(one.ended.wait(PATIENCE_S) for one in running)


def test_a_result_comes_in_pages(admin: Asking, add: Add) -> None:
    add("many", lambda *_: [(n,) for n in range(25)])
    admin.call("many", id="one", **WAIT)
    found, query = [], {"pageSize": "10"}
    while True:
        page = admin.send("GET", "runs/one", **query)[1]
        assert len(page["rows"]) <= 10
        found += [row[0] for row in page["rows"]]
        if "next-page-token" not in page:
            break
        query["pageToken"] = page["next-page-token"]
    assert found == list(range(25))
    assert admin.send("GET", "runs/one", pageToken="x")[0] == 400
    assert admin.send("GET", "runs/one", pageToken="99")[1]["rows"] == []


def test_a_page_of_long_rows_is_bounded_by_its_size(
    admin: Asking, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "MAX_PAGE_CHARACTERS", 100)
    add("long", lambda *_: [("x" * 60,)] * 5, columns=(Column("text", "STRING"),))
    first = admin.call("long", id="one", **WAIT)[1]
    assert (len(first["rows"]), first["next-page-token"]) == (2, "2")


def test_a_result_that_is_too_large_to_keep_fails_its_run(
    admin: Asking, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "MAX_KEPT_BYTES", 1_000)
    add("many", lambda *_: [(1,)] * 100)  # 300 characters, but 100 objects
    status, body = admin.call("many", **WAIT)
    assert status == 413
    assert "100 rows" in body["error"]["message"]


def test_a_result_that_is_too_large_to_send_is_refused(
    local: Asking, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "MAX_RESULT_CHARACTERS", 100)
    add("long", lambda *_: [("x" * 60,)] * 5, columns=(Column("text", "STRING"),))
    status, body = local.call("long")
    assert status == 413
    assert body["error"]["message"].startswith("the result of long has 5 rows with 320 characters")


def test_old_results_are_forgotten(admin: Asking, add: Add, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "MAX_KEPT", 2)
    add("short", lambda *_: [(1,)])
    for n in range(5):
        admin.call("short", id=str(n), **WAIT)
    # The last run forgets others after it has answered.
    wait_until(lambda: listed(admin) == ["3", "4"], "two runs are remembered", every_s=0.01)


def test_a_long_run_is_remembered_after_shorter_ones_that_began_later(
    admin: Asking, held: Held, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "MAX_KEPT", 2)
    add("short", lambda *_: [(1,)])
    admin.call("held", id="long")
    long = run_of(admin, "long")
    for n in range(3):
        assert admin.call("short", id=str(n), **WAIT)[0] == 200
    held.free.set()
    assert long.ended.wait(PATIENCE_S)
    # The last run forgets others after it has answered.
    wait_until(lambda: listed(admin) == ["long", "2"], "two runs are remembered", every_s=0.01)
    assert admin.send("GET", "runs/long")[1]["rows"] == [[1]]


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (InputError("no such thing"), 400, "no such thing"),
        (ValueError("a bug\nTraceback"), 500, "fails failed: ValueError: a bug"),
        (SystemExit("gone"), 500, "fails failed: SystemExit: gone"),
    ],
)
def test_a_failure_is_the_answer(
    local: Asking, admin: Asking, add: Add, error: BaseException, status: int, said: str
) -> None:
    def run(*_: Any) -> list[tuple[int]]:
        raise error

    add("fails", run)
    for asking in (local, admin):
        answered, body = asking.call(
            "fails", id=f"by-{asking.caller.role}", **(WAIT if asking is admin else {})
        )
        assert (answered, body["error"]["message"]) == (status, said)
    kept = admin.send("GET", "runs/by-2")[1]
    assert (kept["status"], kept["error"]["message"]) == ("failed", said)


BODIES: list[Any] = [
    None,
    "",
    "[]",
    "{",
    '{"arguments": []}',
    '{"arguments": 1}',
    '{"id": 1}',
    '{"id": ""}',
    '{"id": "../../x"}',
    {"id": "x" * 81},
    '{"wait-seconds": "long"}',
    '{"wait-seconds": -1}',
    '{"wait-seconds": 1e999}',
    "[" * 100_000,
    '{"arguments": ' + '{"a":' * 10_000 + "1" + "}" * 10_000 + "}",
    {"arguments": {"retention": 1}},
    {"arguments": {"retention": "x" * 10_000_000}},
    {"arguments": {"retention": "env:HOME"}},
    {"arguments": {"nonsense": True}},
    {"arguments": {"dry_run": "yes"}},
    {"arguments": {"retention": "\ud800"}},
]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_bodies_that_cannot_be_used_are_refused_before_anything_runs(admin: Asking, body: Any) -> None:
    status, answer = admin.send("POST", "procedures/trim", body)
    assert status == 400 or (status == 202 and "arguments" in (body or {}))
    if status == 202:  # the value has the right type; the run itself refuses it
        answer = ended(admin, answer["id"])
        assert answer["status"] == "failed"
    assert len(json.dumps(answer)) < 2 * runs.MAX_MESSAGE


@pytest.mark.parametrize("value", ["x", [], {}, 2**80, -(2**80), 1e300, True])
def test_a_value_that_is_not_a_time_is_refused(admin: Asking, add: Add, value: Any) -> None:
    add("when", lambda *_: [(1,)], parameters=(Parameter("at", "TIMESTAMP", "any"),))
    assert admin.call("when", {"at": value}, **WAIT)[0] == (200 if value is True else 400)


def test_unknown_procedures_and_methods_are_refused(admin: Asking) -> None:
    status, body = admin.call("sweeep")
    assert (status, body["error"]["type"]) == (404, "NotFoundException")
    assert "did you mean 'sweep'?" in body["error"]["message"]
    assert admin.send("GET", "procedures/sweep")[0] == 406
    assert admin.send("GET", "nothing")[0] == 404
    assert admin.send("GET", "otherwise/procedures")[0] == 404  # no catalog of this name


def test_a_local_caller_may_wait_for_any_time(local: Asking, add: Add) -> None:
    add("short", lambda *_: [(1,)])
    assert local.call("short", wait_seconds=1e300)[1]["rows"] == [[1]]
