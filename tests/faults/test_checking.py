"""The checker of the fault tests detects the errors that it checks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from polaris_spark.backends.base import ObjectKey
from tests.faults.checking import Told, check, check_log, check_references
from tests.faults.working import PRINCIPAL, Journal
from tests.rest.client import Client, connect, new_key, set_properties, table


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A store with two commits. In the journal, one of them is acknowledged, and the other one is refused, which is
    wrong."""
    uri = f"sqlite://{tmp_path}/store.db"
    client = connect(uri, tmp_path / "warehouse", metadata_files="never", principal=PRINCIPAL)
    client.namespace("db")
    client.create("t")
    journal = Journal(tmp_path / "journal-1")
    send(client, journal, "done", a="1")
    client.session.close()
    return uri


def send(client: Client, journal: Journal, verdict: str, **properties: str) -> None:
    """Send a commit, and write this verdict to the journal. The verdict `lost` means that the commit is not sent."""
    key, body = new_key(), {"requirements": [], "updates": [set_properties(**properties)]}
    journal.write(event="sent", key=key, path=table("t"), body=body)
    if verdict != "lost":
        assert client.send("POST", table("t"), body, key=key).status == 200
    journal.write(event="done" if verdict == "lost" else verdict, key=key)


def test_a_sound_store_passes(uri: str, tmp_path: Path) -> None:
    assert len(check(uri, tmp_path).keys("done")) == 1


@pytest.mark.parametrize(
    ("verdict", "message"),
    [("lost", "acknowledged operations are not in the log"), ("refused", "were carried out")],
)
def test_a_wrong_answer_is_noticed(uri: str, tmp_path: Path, verdict: str, message: str) -> None:
    client = connect(uri, None)
    send(client, Journal(tmp_path / "journal-2"), verdict, b="2")
    client.session.close()
    with pytest.raises(AssertionError, match=message):
        check(uri, tmp_path)


def test_an_operation_without_a_request_is_detected(uri: str, tmp_path: Path) -> None:
    client = connect(uri, None)
    client.commit("t", set_properties(c="3"), key=new_key())
    with pytest.raises(AssertionError, match="nobody sent"):
        check_log(client, Told(tmp_path))
    client.session.close()


def test_an_operation_that_was_carried_out_twice_is_noticed(uri: str, tmp_path: Path) -> None:
    told = Told(tmp_path)
    (key,) = told.keys("done")
    client = connect(uri, None, principal="somebody else, whose keys are not the worker's")
    client.ok("POST", table("t"), told.requests[key]["body"], key=key)
    with pytest.raises(AssertionError, match="carried out twice"):
        check_log(client, told)
    client.session.close()


def test_a_missing_object_is_noticed(uri: str) -> None:
    client = connect(uri, None)
    head = client.session.catalog.head()
    backend = client.session.connection.backend
    assert check_references(backend, head.store.realm) > 10
    backend.delete_objects(head.store.realm, [ObjectKey(head.commit.entries)])
    with pytest.raises(AssertionError, match=f"{head.commit.entries} is pointed to and missing"):
        check_references(backend, head.store.realm)
    client.session.close()
