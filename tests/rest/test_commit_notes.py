"""Notes on a change: a session or request gives a message and other texts, which the log entries of the change
contain."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.commits.log import entries
from polaris_spark.errors import InputError
from polaris_spark.jobs.registry import call
from tests.rest.client import Client, new_key, set_properties
from tests.rest.conftest import Open

MESSAGE = {"commit.message": "Backfill March", "commit.ticket": "OPS-12"}
PROPERTIES = {f"polaris.{name}": text for name, text in MESSAGE.items()}
HEADERS = {"X-Polaris-Commit-Message": "Backfill March", "X-Polaris-Commit-Ticket": "OPS-12"}


def notes(client: Client) -> list[dict[str, str]]:
    """Return the notes of each log entry, oldest first."""
    head = client.session.catalog.head()
    logged = [entry for _, _, _, entry in entries(head.store, head.head)][::-1]
    return [{k: v for k, v in entry.summary.items() if k.startswith("commit.")} for entry in logged]


def test_every_change_of_a_session_has_its_notes(opened: Open, warehouse: Path) -> None:
    client = opened(f"memory:{uuid.uuid4()}", warehouse, **PROPERTIES)
    client.namespace("db")
    client.create()
    client.set("t", a="1")
    client.ok("DELETE", "v1/namespaces/db/tables/t")
    client.session.set_catalog_properties({"gc.enabled": "false"})
    assert notes(client)[:4] == [MESSAGE] * 4


def test_branches_merges_and_transactions_have_the_notes_of_their_session(
    opened: Open, warehouse: Path
) -> None:
    client = opened(f"memory:{uuid.uuid4()}", warehouse, **PROPERTIES)
    client.namespace("db")
    call(client.session, "create_branch", name="dev")
    with client.session.transaction() as session:
        Client(session).create()
    call(client.session, "drop_branch", name="dev")
    assert notes(client)[-1] == MESSAGE
    root = client.session.catalog.references.root.read()
    logged = [entry for _, _, _, entry in entries(root.store, root.head) if b"/heads/dev" in entry.key]
    assert [(entry.action, entry.summary) for entry in logged] == [
        ("drop-reference", MESSAGE),
        ("create-reference", MESSAGE),
    ]


def test_a_header_gives_the_notes_of_one_request(catalog: Client) -> None:
    catalog.create()
    catalog.commit("t", set_properties(a="1"), headers=HEADERS)
    catalog.commit("t", set_properties(a="2"))
    assert notes(catalog)[-2:] == [MESSAGE, {}]


def test_a_header_replaces_or_removes_a_note_of_the_session(opened: Open, warehouse: Path) -> None:
    client = opened(f"memory:{uuid.uuid4()}", warehouse, **PROPERTIES)
    client.namespace("db")
    client.create()
    client.commit("t", set_properties(a="1"), headers={"x-polaris-commit-message": "Again"})
    client.commit("t", set_properties(a="2"), headers={"X-Polaris-Commit-Message": ""})
    assert notes(client)[-2:] == [
        {"commit.message": "Again", "commit.ticket": "OPS-12"},
        {"commit.ticket": "OPS-12"},
    ]


def test_a_repeated_request_may_have_other_notes(catalog: Client) -> None:
    catalog.create()
    key = new_key()
    catalog.commit("t", set_properties(a="1"), key=key, headers=HEADERS)
    assert catalog.commit("t", set_properties(a="1"), key=key).status == 200
    assert notes(catalog)[-1] == MESSAGE
    assert len(notes(catalog)) == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"polaris.commit.message": "x" * 1_001},
            r"polaris.commit.message has 1,001 bytes; the maximum is 1,000",
        ),
        ({"polaris.commit.ticket": "é" * 101}, r"polaris.commit.ticket has 202 bytes; the maximum is 200"),
        ({f"polaris.commit.k{i}": "v" for i in range(9)}, "a change has 9 commit notes; the maximum is 8"),
        ({"polaris.commit.my key": "v"}, "the key of the commit note polaris.commit.my key must have"),
        ({"polaris.commit.message": "a\x1b[31m"}, r"the text of polaris.commit.message contains U\+001B"),
    ],
)
def test_notes_that_the_log_cannot_keep_are_refused(
    given: dict[str, str], message: str, opened: Open, warehouse: Path, catalog: Client
) -> None:
    with pytest.raises(InputError, match=message):
        opened(f"memory:{uuid.uuid4()}", warehouse, **given)
    headers = {name.replace("polaris.commit.", "X-Polaris-Commit-"): text for name, text in given.items()}
    answer = catalog.send("POST", "v1/namespaces", {"namespace": ["other"]}, headers=headers)
    assert answer.status == 400
    assert "polaris.commit." in answer.error["message"] or "commit notes" in answer.error["message"]


def test_a_client_cannot_forge_notes_by_the_summary_of_a_snapshot(catalog: Client) -> None:
    catalog.create()
    snapshot: dict[str, Any] = {
        "snapshot-id": 1,
        "sequence-number": 1,
        "timestamp-ms": 1_800_000_000_000,
        "manifest-list": "/m.avro",
        "summary": {"operation": "append", "commit.message": "forged", "job": "nightly"},
        "schema-id": 0,
    }
    assert catalog.commit("t", {"action": "add-snapshot", "snapshot": snapshot}).status == 200
    assert notes(catalog)[-1] == {}
