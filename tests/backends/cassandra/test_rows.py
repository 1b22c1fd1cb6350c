"""The statements for rows and references, statements that are never sent, and reads and writes without a quorum."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, Conflict, ObjectKey, ObjectRow
from polaris_spark.backends.cassandra.clusters import ClusterSession
from polaris_spark.backends.cassandra.partitions import token
from polaris_spark.backends.cassandra.statements import TEXTS
from polaris_spark.clock import EPOCH_MS
from polaris_spark.errors import InputError, StateError, TryAgainError
from polaris_spark.ids import IdParts, pack
from polaris_spark.testing.processes import exit_status, in_threads
from polaris_spark.testing.stores import row
from polaris_spark.testing.waiting import PATIENCE_S, until_it_works, wait_until
from tests.backends.cassandra.test_opening import keyspace_of
from tests.servers.cassandra import Cassandra


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Statements as they are sent."""
    statements: list[Any] = []
    send = ClusterSession.send

    def record(self: ClusterSession, statement: Any, *arguments: Any) -> Any:
        statements.append(statement)
        return send(self, statement, *arguments)

    monkeypatch.setattr(ClusterSession, "send", record)
    return statements


def test_references_are_only_written_by_transactions() -> None:
    writes = [text for text in TEXTS.values() if ".references" in text and not text.startswith("SELECT")]
    assert len(writes) == 3
    assert all(" IF " in text for text in writes)


def test_a_missing_version_is_never_used_in_a_condition(backend: Backend, sent: list[Any]) -> None:
    """`IF version = null` would be true for a missing row, and would create it."""
    for nothing in (None, b""):
        with pytest.raises(InputError, match="the expected version"):
            backend.swap_reference("realm", "name", nothing, row())  # type: ignore[arg-type]  # the mistake to be caught
        with pytest.raises(InputError, match="the expected version"):
            backend.delete_reference("realm", "name", nothing)  # type: ignore[arg-type]  # as above
    assert not sent


def test_a_conflict_contains_the_row_that_won(backend: Backend, sent: list[Any]) -> None:
    backend.insert_reference("realm", "name", first := row(b""))
    assert backend.insert_reference("realm", "name", row()) == Conflict(first)
    assert backend.swap_reference("realm", "name", os.urandom(16), row()) == Conflict(first)
    assert backend.delete_reference("realm", "name", os.urandom(16)) == Conflict(first)
    assert len(sent) == 4


def test_the_rows_of_a_commit_are_one_request(backend: Backend, sent: list[Any]) -> None:
    rows = [
        ObjectRow(pack(IdParts(EPOCH_MS + 5_000 + number // 9, 77, number % 9)), 0, b"x" * 900)
        for number in range(60)
    ]
    backend.write_objects("realm", rows)
    assert len(sent) == 1
    keys = [ObjectKey(each.id) for each in rows]
    assert len(backend.read_objects("realm", keys)) == 60
    backend.delete_objects("realm", keys)
    assert len(sent) == 3
    assert backend.read_objects("realm", keys) == {}


def test_no_request_carries_more_than_the_server_takes(backend: Backend, sent: list[Any]) -> None:
    rows = [ObjectRow(number, 0, os.urandom(100_000)) for number in range(60)]
    backend.write_objects("realm", rows)
    assert max(sum(len(values) for values in statement._statements_and_parameters) for statement in sent) < 60
    assert len(sent) >= 12  # half a mebibyte each
    found = backend.read_objects("realm", [ObjectKey(each.id) for each in rows])
    assert found == {ObjectKey(each.id): each.value for each in rows}


def test_a_row_that_is_written_right_after_its_deletion_exists(backend: Backend) -> None:
    for _ in range(200):
        backend.delete_objects("realm", [ObjectKey(1)])
        backend.write_objects("realm", [ObjectRow(1, 0, b"x")])
        assert backend.read_objects("realm", [ObjectKey(1)]) == {ObjectKey(1): b"x"}


def test_a_scan_that_goes_on_knows_where_partitions_lie(
    cassandra: Cassandra, uri: str, backend: Backend
) -> None:
    """A scan would miss rows if the token were too high."""
    for realm in ("realm", "r\u00e9alm \u65e5\u672c", "r" * 300):
        backend.insert_reference(realm, f"{realm}/name", row())
        backend.write_objects(realm, [ObjectRow(id, 0, b"x") for id in (1, 5 << 40, 2**63 - 1)])
    for table, key in (("references", "name"), ("objects", "bucket")):
        found = cassandra.run(f"SELECT realm, {key}, token(realm, {key}) FROM {keyspace_of(uri)}.{table}")
        assert len(found) >= 3
        assert [token((realm, part)) for realm, part, _ in found] == [place for *_, place in found]  # type: ignore[arg-type]  # as the table has them


def test_running_requests_are_bounded_and_waits_have_a_time_limit(uri: str, backend: Backend) -> None:
    narrow = open_backend(f"{uri}&concurrency=2&timeout=2s")

    def write(number: int) -> None:
        until_it_works(lambda: narrow.write_objects("realm", [ObjectRow(number << 40, 0, b"x")]))

    in_threads(16, write)
    keys = [ObjectKey(number << 40) for number in range(16)]
    assert len(until_it_works(lambda: narrow.read_objects("realm", keys))) == 16
    noted = narrow._requests._under_way._noted  # type: ignore[attr-defined]
    wait_until(lambda: all(noted), "all are known to have ended")
    noted[:] = [[], []]
    with pytest.raises(TryAgainError, match="2 requests, the maximum, were in progress"):
        narrow.read_reference("realm", "name")
    noted[0].append(None)
    assert until_it_works(lambda: narrow.read_reference("realm", "name")) is None
    narrow.close()


def test_without_a_quorum_the_error_says_that_nothing_was_changed(cassandra: Cassandra, uri: str) -> None:
    keyspace = keyspace_of(uri)
    cassandra.run(
        f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 3}}"
    )
    backend = open_backend(f"{uri}&timeout=2s")
    until_it_works(backend.setup)
    for use in (
        lambda: backend.write_objects("realm", [ObjectRow(1, 0, b"x")]),
        lambda: backend.read_objects("realm", [ObjectKey(1)]),
        lambda: backend.delete_objects("realm", [ObjectKey(1)]),
    ):
        with pytest.raises(TryAgainError, match=r"1 of the 2 replicas.*nothing was changed"):
            use()
    cassandra.run(
        f"ALTER KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
    )
    assert backend.read_objects("realm", [ObjectKey(1)]) == {}
    backend.close()


def test_a_forked_child_must_open_the_store_itself(uri: str, backend: Backend) -> None:
    backend.insert_reference("realm", "name", row())
    child = os.fork()
    if child == 0:
        try:
            backend.read_reference("realm", "name")
            os._exit(1)
        except StateError as error:
            if "forked" not in str(error):
                os._exit(2)
            own = open_backend(uri)
            if own.read_reference("realm", "name") is None:
                os._exit(4)
            own.close()
        except BaseException:  # whatever it is, the child must not go on as if it were the test run
            os._exit(3)
        os._exit(0)
    assert exit_status(child) == 0
    assert backend.read_reference("realm", "name") is not None


_OPEN_AND_CLOSE = """
import sys, threading
from polaris_spark.backends import open_backend
from polaris_spark.testing.waiting import wait_until

def open_and_close():
    opened = open_backend(sys.argv[1])
    assert opened.read_reference("realm", "name") is None
    opened.close()

open_and_close()  # the driver's event loop runs until the process ends
before = set(threading.enumerate())
for _ in range(3):
    open_and_close()
wait_until(lambda: not set(threading.enumerate()) - before, "the driver's threads end")
"""


def test_a_closed_store_leaves_no_threads(uri: str, backend: Backend) -> None:
    # In a process of its own: here, the driver may start threads for other stores meanwhile.
    subprocess.run([sys.executable, "-c", _OPEN_AND_CLOSE, uri], check=True, timeout=2 * PATIENCE_S)
