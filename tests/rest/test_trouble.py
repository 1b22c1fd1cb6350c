"""Failing databases and disks: no change is lost or made twice, and no request waits forever."""

from __future__ import annotations

import errno
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.backends.base import Conflict
from polaris_spark.catalog.files import confinement
from polaris_spark.errors import OutcomeUnknownError, StorageFullError, TryAgainError
from tests.rest.client import (
    Answer,
    Client,
    at_once,
    files_below,
    new_key,
    set_properties,
    table_request,
    tables,
)
from tests.rest.conftest import Open

Call = Callable[..., Any]


@pytest.fixture(autouse=True)
def _short_deadlines(catalog: Client) -> None:
    inner = catalog.session.catalog
    committer = inner.references.open(inner.reference)
    committer._settings = committer._settings._replace(deadline_ms=200.0)


@pytest.fixture
def swapping(
    catalog: Client, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[Call, Any], Any]], None]:
    """Return a function that wraps each swap of the database."""
    backend = catalog.session.connection.backend

    def put(around: Callable[[Call, Any], Any]) -> None:
        original = type(backend).write_and_swap.__get__(backend)
        monkeypatch.setattr(backend, "write_and_swap", lambda *args: around(original, args))

    return put


def create(catalog: Client, name: str = "t", key: str | None = None) -> Any:
    """Try to create a table."""
    return catalog.send("POST", tables("db"), table_request(name), key=key)


@pytest.mark.parametrize("happened", [True, False])
def test_a_swap_in_doubt_is_repeated_and_done_once(catalog: Client, swapping: Any, happened: bool) -> None:
    doubts = iter([True, True, False])

    def around(swap: Call, args: Any) -> Any:
        if next(doubts, False):
            if happened:
                swap(*args)
            raise OutcomeUnknownError("the connection broke")
        return swap(*args)

    swapping(around)
    before = catalog.session.catalog.head().head.number
    assert create(catalog).status == 200
    assert catalog.session.catalog.head().head.number == before + 1
    assert catalog.names("db") == ["t"]


@pytest.mark.parametrize("happened", [True, False])
def test_an_unknown_outcome_is_reported_and_repeating_the_request_resolves_it(
    catalog: Client, swapping: Any, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    done: list[bool] = []

    def around(swap: Call, args: Any) -> Any:
        if happened and not done:
            done.append(True)
            swap(*args)
        raise OutcomeUnknownError("the connection broke")

    swapping(around)
    key, before = new_key(), catalog.session.catalog.head().head.number
    assert create(catalog, key=key).kind == (504, "CommitStateUnknownException")
    monkeypatch.undo()
    assert create(catalog, key=key).status == 200
    assert catalog.names("db") == ["t"]
    assert catalog.session.catalog.head().head.number == before + 1


def test_endless_contention_is_reported_and_nothing_is_changed(catalog: Client, swapping: Any) -> None:
    swapping(lambda _swap, _args: Conflict(None))
    version = catalog.session.catalog.head().version
    assert create(catalog).kind == (503, "ServiceUnavailableException")
    assert catalog.session.catalog.head().version == version
    assert catalog.names("db") == []


def test_an_unavailable_database_is_reported(catalog: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise TryAgainError("the database is away")

    monkeypatch.setattr(catalog.session.connection.backend, "read_reference", away)
    for request in (("GET", "v1/namespaces"), ("HEAD", f"{tables('db')}/t")):
        assert catalog.send(*request).kind == (503, "ServiceUnavailableException")
    monkeypatch.undo()
    assert catalog.names("db") == []


@pytest.mark.parametrize("error", [RuntimeError("bug"), MemoryError()])
def test_after_any_failure_others_go_on(catalog: Client, swapping: Any, error: Exception) -> None:
    failures = iter([True] * 3)

    def around(swap: Call, args: Any) -> Any:
        if next(failures, False):
            raise error
        return swap(*args)

    swapping(around)
    names = [f"t{i}" for i in range(12)]
    answers = at_once([partial(create, catalog, name) for name in names])
    failed = [name for name, answer in zip(names, answers, strict=True) if answer.status != 200]
    assert failed
    assert {answer.status for answer in answers} <= {200, 500, 503}
    assert catalog.names("db") == sorted(set(names) - set(failed))
    again = [create(catalog, name) for name in failed * 3]
    assert {answer.status for answer in again[-len(failed) :]} == {409}
    assert catalog.names("db") == sorted(names)


def test_a_full_disk_is_reported_and_the_request_can_be_repeated(
    catalog: Client, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(confinement, "_write_new", full)
    assert create(catalog).kind == (507, "InsufficientStorageException")
    assert catalog.names("db") == []
    monkeypatch.undo()
    assert create(catalog).status == 200
    assert len(files_below(warehouse)) == 1


@pytest.mark.parametrize(
    "request_of", [create, lambda one: one.send("POST", "v1/namespaces", {"namespace": ["n"]})]
)
def test_a_request_to_a_full_store_is_not_retried(
    catalog: Client, swapping: Any, monkeypatch: pytest.MonkeyPatch, request_of: Callable[[Client], Answer]
) -> None:
    asked = []

    def full(_swap: Call, args: Any) -> Any:
        asked.append(args)
        raise StorageFullError("the disk of the store is full")

    swapping(full)
    for number in range(1, 4):
        assert request_of(catalog).kind == (507, "InsufficientStorageException")
        assert len(asked) == number
    monkeypatch.undo()
    assert request_of(catalog).status == 200


def test_a_commit_in_doubt_is_not_reported_as_failed_if_the_store_is_full_afterwards(
    catalog: Client, swapping: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.create()
    outcomes: list[Exception] = [
        StorageFullError("full"),
        StorageFullError("full"),
        OutcomeUnknownError("lost"),
    ]

    def lost_then_full(swap: Call, args: Any) -> Any:
        if not outcomes:
            return swap(*args)
        raise outcomes.pop()

    swapping(lost_then_full)
    assert catalog.set("t", a="1")["metadata"]["properties"]["a"] == "1"
    assert outcomes == []


def test_a_process_that_died_before_its_swap_leaves_nothing_but_a_file(
    opened: Open, catalog: Client, swapping: Any, monkeypatch: pytest.MonkeyPatch, warehouse: Path
) -> None:
    def died(_swap: Call, _args: Any) -> Any:
        raise KeyboardInterrupt

    created = catalog.create()
    swapping(died)
    with pytest.raises(KeyboardInterrupt):
        catalog.commit("t", set_properties(a="1"))
    monkeypatch.undo()
    assert catalog.load() == created
    assert len(files_below(warehouse)) == 2
    assert catalog.set("t", a="2")["metadata"]["properties"]["a"] == "2"
    assert len(files_below(warehouse)) == 3


def test_requests_of_one_batch_each_get_their_own_answer(catalog: Client) -> None:
    catalog.create("taken")
    wanted = [uuid.uuid4().hex if i % 2 else "taken" for i in range(24)]
    answers = at_once([partial(create, catalog, name) for name in wanted])
    assert [answer.status for answer in answers] == [409 if name == "taken" else 200 for name in wanted]
    for name, answer in zip(wanted, answers, strict=True):
        if answer.status == 200:
            assert catalog.load(name) == answer.body
