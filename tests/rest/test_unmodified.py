"""Responses 304 (Not Modified), and the versions that a session remembers for them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.commits.change import Operation
from polaris_spark.errors import InputError
from polaris_spark.rest import handler
from tests.rest.client import Answer, Client, rename, set_properties, table
from tests.rest.conftest import Open


def ask(client: Client, tag: str, name: str = "t", **query: str) -> Answer:
    """Load a table, with the tag of a known version."""
    return client.send("GET", table(name), query=query, headers={"If-None-Match": tag})


def tag_of(client: Client, name: str = "t") -> str:
    """Return the tag of the newest version."""
    return client.send("GET", table(name)).headers["ETag"]


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """Record the arguments of all later calls of a method."""
    calls: list[Any] = []
    called = getattr(owner, name)

    def noted(*arguments: Any) -> Any:
        calls.append(arguments)
        return called(*arguments)

    monkeypatch.setattr(owner, name, noted)
    return calls


def test_a_request_that_was_answered_with_304_takes_one_read_of_the_head_and_no_more(
    catalog: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.create()
    tag = tag_of(catalog)
    first = ask(catalog, tag)
    heads = counted(monkeypatch, catalog.session.catalog.references, "read")
    routes = counted(monkeypatch, catalog.session.router, "find")
    assert ask(catalog, tag) == first
    assert (first.status, len(heads), len(routes)) == (304, 1, 0)


def test_a_commit_elsewhere_costs_the_next_request_no_second_read_of_the_head(
    opened: Open, shared_store: str, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = opened(shared_store, warehouse), opened(shared_store, warehouse)
    writer.namespace("db")
    writer.create()
    writer.create("other")
    tag = tag_of(reader)
    assert ask(reader, tag).status == 304
    heads = counted(monkeypatch, reader.session.catalog.references, "read")
    writer.set("other", k="1")
    assert ask(reader, tag).status == 304
    assert len(heads) == 1
    writer.set("t", k="1")
    answer = ask(reader, tag)
    assert (answer.status, answer.body["metadata"]["properties"]["k"]) == (200, "1")
    assert len(heads) == 2
    assert ask(reader, tag).status == 200


def test_304_is_answered_exactly_when_a_session_without_a_memory_would_answer_it(
    opened: Open, shared_store: str, warehouse: Path
) -> None:
    sessions = [opened(shared_store, warehouse), opened(shared_store, warehouse)]
    sessions[0].namespace("db")
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng, tags = random.Random(seed), ["*"]

    def change(client: Client, name: str, round: int) -> None:
        body = {"updates": [set_properties(k=str(round))], "requirements": []}
        what = rng.choice(("create", "set", "set", "drop", "rename"))
        if what == "create":
            client.send("POST", "v1/namespaces/db/tables", {"name": name, "schema": handed})
        elif what == "set":
            client.send("POST", table(name), body)
        elif what == "drop":
            client.send("DELETE", table(name))
        else:
            client.send("POST", "v1/tables/rename", rename(name, "ab".replace(name, "")))

    sessions[0].create("a")
    handed = sessions[0].load("a")["metadata"]["schemas"][0]
    remembered = 0
    for round in range(40):
        change(rng.choice(sessions), rng.choice("ab"), round)
        for name in "ab":
            newest = sessions[0].send("GET", table(name)).headers.get("ETag")
            tags += [newest] if newest and newest not in tags else []
            for known in tags[-4:]:
                for _ in range(2):
                    asked = ask(sessions[1], known, name)
                    expected = 404 if newest is None else 304 if known in ("*", newest) else 200
                    assert asked.status == expected, (round, name, known)
                    remembered += asked.status == 304
    assert remembered


def test_responses_differ_by_table_version_and_query(catalog: Client) -> None:
    catalog.create()
    catalog.create("u")
    tag = tag_of(catalog)
    for _ in range(2):
        assert ask(catalog, tag).status == 304
        assert ask(catalog, tag, "u").status == 200
        assert ask(catalog, tag, snapshots="refs").status == 200
        assert ask(catalog, tag, snapshots="nope").status == 400
        assert catalog.send("GET", table("t"), query={"If-None-Match": tag}).status == 200
        assert catalog.send("HEAD", table("t"), headers={"If-None-Match": tag}).status == 204


def test_what_a_caller_does_to_a_response_does_not_change_the_next(catalog: Client) -> None:
    catalog.create()
    tag = tag_of(catalog)
    for _ in range(3):
        answer = ask(catalog, tag)
        assert answer.headers == {"ETag": tag}
        answer.headers.clear()


def test_a_closed_session_answers_nothing_that_it_remembers(catalog: Client) -> None:
    catalog.create()
    tag = tag_of(catalog)
    assert ask(catalog, tag).status == 304
    catalog.session.close()
    with pytest.raises(InputError, match="closed"):
        ask(catalog, tag)


def test_a_dropped_branch_is_answered_with_the_same_error_as_without_a_memory(
    opened: Open, shared_store: str, warehouse: Path
) -> None:
    main = opened(shared_store, warehouse)
    main.namespace("db")
    main.create()
    inner = main.session.catalog
    name = inner.reference.replace("/main", "/dev")
    operation = Operation(b"", "me")
    inner.references.create(name, operation, source=inner.head())
    branch = opened(shared_store, warehouse, branch="dev")
    tag = tag_of(branch)
    assert [ask(branch, tag).status for _ in range(2)] == [304, 304]
    inner.references.drop(name, operation)
    dropped = ask(branch, tag)
    assert dropped.kind == branch.send("GET", table("t")).kind == (404, "NotFoundException")
    inner.references.create(name, operation, source=inner.head())
    assert ask(branch, tag).status == 304
    main.set("t", k="1")
    inner.references.drop(name, operation)
    inner.references.create(name, operation, source=inner.head())
    assert ask(branch, tag).status == 200


def test_a_session_remembers_a_bounded_number_of_short_requests(
    catalog: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "REMEMBERED", 4)
    catalog.create()
    tag = tag_of(catalog)
    known = catalog.session._unmodified._known
    for number in range(20):
        assert ask(catalog, f'"{number}", {tag}').status == 304
        assert len(known) <= 4
    known.clear()
    assert ask(catalog, f'"{"x" * handler.SHORT}", {tag}').status == 304
    assert not known
