"""Delivery of OpenLineage events: cursors, dead letters, and refused options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polaris_spark.cli.cursor import Cursor
from tests.cli.catalogs import run
from tests.cli.lineage_receivers import SOURCE, TOKEN, LineageReceiver, commit, new_catalog
from tests.cli.receivers import CLOSE, Received, Reply
from tests.cli.test_watch import QUICK, Killer, distinct, watching
from tests.rest.materialized import SCHEMA
from tests.views.catalogs import Catalog


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """A catalog with the namespace `db` and the table `t`."""
    return new_catalog(tmp_path)


def sending(catalog: Catalog, folder: Path, receiver: LineageReceiver, *more: str) -> list[str]:
    """Arguments of a command that sends to a receiver, from the oldest change on."""
    cursor = ["--cursor", str(folder / "cursor"), "--after", "0"]
    return [catalog.store, "--openlineage", receiver.url, "--secret", "env:KEY", *cursor, *QUICK, *more]


def test_killed_senders_lose_no_event_and_keep_the_order(catalog: Catalog, tmp_path: Path) -> None:
    killer = Killer(0, kills=3)
    expected = ["ada.create-table.db.t", *[f"job{id}" for id in range(1, 13)]]
    for id in range(1, 13):
        commit(catalog, id, operation="append", job=f"job{id}")
    with LineageReceiver(reply=killer) as receiver:

        def arrived() -> bool:
            return len(set(receiver.completed())) == len(expected)

        while not arrived():
            with watching(*sending(catalog, tmp_path, receiver), KEY=TOKEN) as process:
                killer.process = process
                receiver.wait(lambda: arrived() or process.poll() is not None)
        assert distinct(receiver.completed()) == expected
        accepted = [event for one in receiver.accepted for event in one.events]
        begun: set[str] = set()
        for event in accepted:
            assert event["eventType"] == "START" or event["run"]["runId"] in begun
            begun.add(event["run"]["runId"])
        assert {one.content_type for one in receiver.accepted} == {"application/json"}


def test_a_refused_event_becomes_a_dead_letter_and_the_next_follow(catalog: Catalog, tmp_path: Path) -> None:
    commit(catalog, 1, operation="append", job="bad")
    commit(catalog, 2, operation="append", job="good")

    def reply(one: Received) -> Reply:
        return 422 if one.events[0]["job"]["name"] == "bad" else 200

    dead = tmp_path / "dead"
    with LineageReceiver(reply=reply) as receiver:
        arguments = sending(catalog, tmp_path, receiver, "--dead-letters", str(dead))
        with watching(*arguments, KEY=TOKEN):
            receiver.wait(lambda: receiver.completed() == ["ada.create-table.db.t", "good"])
    letters = [json.loads(line)["event"] for line in dead.read_text().splitlines()]
    assert [(one["job"]["name"], one["eventType"]) for one in letters] == [
        ("bad", "START"),
        ("bad", "COMPLETE"),
    ]


def test_only_wanted_changes_are_sent_after_failures(catalog: Catalog, tmp_path: Path) -> None:
    commit(catalog, 1, operation="append", job="other")
    catalog.request("POST", "v1/namespaces/db/tables", {"name": "u", "schema": SCHEMA})
    with LineageReceiver(500, CLOSE) as receiver:
        arguments = sending(catalog, tmp_path, receiver, "--table", "db.u", "--source", "urn:mine")
        with watching(*arguments, KEY=TOKEN):
            receiver.wait(lambda: bool(receiver.completed()))
        (event,) = receiver.accepted[-1].events
        assert (event["job"]["namespace"], event["job"]["name"]) == ("urn:mine", "ada.create-table.db.u")
        assert len(receiver.received) == 4


def test_a_cursor_of_a_webhook_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    Cursor(tmp_path / "cursor", SOURCE).write("1-a")
    with LineageReceiver() as receiver:
        answer = run("watch", *sending(catalog, tmp_path, receiver), KEY=TOKEN)
        assert (answer.code, "give another file" in answer.err) == (2, True)
        assert receiver.received == []


def test_a_cursor_comes_before_a_position_on_the_command_line(catalog: Catalog, tmp_path: Path) -> None:
    newest = catalog.session.catalog.head().head
    Cursor(tmp_path / "cursor", f"openlineage:{SOURCE}").write(f"{newest.number}-{newest.commit:x}")
    gone = f"{newest.number}-1"
    with (
        LineageReceiver() as receiver,
        watching(*sending(catalog, tmp_path, receiver, "--after", gone), KEY=TOKEN) as process,
    ):
        assert process.stderr is not None
        assert f"--after {gone} is for a new cursor" in process.stderr.readline()
        commit(catalog, 1, operation="append", job="new")
        receiver.wait(lambda: receiver.completed() == ["new"])


@pytest.mark.parametrize("key", ["geheim\nkey", "geheim key", "geheim€", "\x1bgeheim"])
def test_a_key_that_cannot_be_sent_is_refused_without_printing_it(
    store: str, tmp_path: Path, key: str
) -> None:
    receiver = ["--openlineage", "http://localhost:1", "--cursor", str(tmp_path / "cursor")]
    answer = run("watch", store, *receiver, "--secret", "env:KEY", KEY=key)
    assert (answer.code, "visible ASCII characters" in answer.err) == (2, True)
    assert "geheim" not in answer.err


def test_a_file_of_dead_letters_that_cannot_be_written_is_an_error_at_once(
    catalog: Catalog, tmp_path: Path
) -> None:
    with LineageReceiver() as receiver:
        arguments = sending(catalog, tmp_path, receiver, "--dead-letters", str(tmp_path / "no" / "dead"))
        answer = run("watch", *arguments, KEY=TOKEN)
        assert (answer.code != 0, "No such file" in answer.err) == (True, True)
        assert receiver.received == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--openlineage", "http://localhost:1"], "--openlineage needs --cursor"),
        (["--source", ""], "--source is ''"),
        (["--source", "my shop"], "--source is 'my shop'"),
        (
            ["--openlineage", "http://localhost:1", "--cursor", "x", "--dead-letters", "./x"],
            "--cursor and --dead-letters must be different files",
        ),
        (["--openlineage", "localhost", "--cursor", "x"], "--openlineage is 'localhost'"),
        (["--openlineage", "http://a:b@localhost", "--cursor", "x"], "must not contain a user or password"),
        (
            ["--openlineage", "http://localhost:1", "--cursor", "x", "--secret", "y"],
            "--secret takes env:NAME",
        ),
        (["--openlineage", "http://localhost:1", "--cursor", "x", "--secret", "env:NONE"], "is not set"),
        (
            ["--openlineage", "http://localhost:1", "--cursor", "x", "--batch", "2"],
            "--batch has no effect without --post",
        ),
        (
            ["--openlineage", "http://localhost:1", "--post", "http://localhost:1"],
            "give either --post or --openlineage",
        ),
        (
            ["--openlineage", "http://localhost:1", "--server", "http://localhost:2"],
            "give STORE, not --server",
        ),
    ],
    ids=str,
)
def test_bad_input_is_refused(store: str, arguments: list[str], message: str) -> None:
    answer = run("watch", store, *arguments, POLARIS_SPARK_TOKEN="x")
    assert answer.code == 2
    assert message in answer.err
