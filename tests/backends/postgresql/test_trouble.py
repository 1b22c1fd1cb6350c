"""Lost connections, threads that share and wait for connections, slow statements, and rows that others lock."""

from __future__ import annotations

import os
import signal
from typing import Any

import psycopg
import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, ObjectKey, ObjectRow, Swapped
from polaris_spark.backends.postgresql import session as session_module
from polaris_spark.errors import (
    OutcomeUnknownError,
    StateError,
    TryAgainError,
)
from polaris_spark.testing.processes import exit_status, in_threads, rows
from polaris_spark.testing.stores import row
from polaris_spark.testing.waiting import until_it_works, wait_until
from tests.backends.postgresql.support import blocked, held, schema_of, sessions
from tests.backends.waiting import started
from tests.servers.postgresql import PostgreSQL

# Connections


def test_many_threads_share_few_connections(uri: str, admin: psycopg.Connection[Any]) -> None:
    backend = open_backend(f"{uri}&pool=3&application_name=bounded")
    backend.setup()

    def work(number: int) -> int:
        for id in range(5):
            backend.write_objects("realm", [ObjectRow(number * 10 + id, 0, b"x")])
        return sessions(admin) if number == 0 else 0

    assert 1 <= max(in_threads(32, work)) <= 3
    assert len(rows(backend, backend.splits("objects", None, 2))) == 160
    backend.close()
    wait_until(lambda: not sessions(admin), "its sessions are gone")


def test_no_thread_waits_forever_for_a_connection(uri: str, backend: Backend) -> None:
    narrow = open_backend(f"{uri}&pool=1&timeout=200ms")
    until_it_works(lambda: narrow.read_reference("realm", "name"))

    def one_more(_: object) -> None:
        with pytest.raises(TryAgainError, match="all 1 connections"):
            narrow.read_reference("realm", "name")

    narrow._connections.read(one_more)  # type: ignore[attr-defined]
    assert until_it_works(lambda: narrow.read_reference("realm", "name")) is None
    narrow.close()


def test_idle_sessions_that_the_server_ended_cause_no_errors(
    backend: Backend, postgresql: PostgreSQL, uri: str
) -> None:
    current = row()
    backend.insert_reference("realm", "name", current)
    in_threads(8, lambda _: backend.read_reference("realm", "name"))
    postgresql.restart()
    assert backend.swap_reference("realm", "name", current.version, row()) == Swapped()


def test_a_session_that_is_killed_in_mid_statement_leaves_a_write_in_doubt_and_the_pool_whole(
    uri: str, backend: Backend, admin: psycopg.Connection[Any]
) -> None:
    with held(uri, "INSERT INTO \"references\" VALUES ('realm', 'name', 'v', '')"):
        thread, outcome = started(lambda: backend.insert_reference("realm", "name", row()))
        admin.execute("SELECT pg_terminate_backend(%s)", (blocked(admin, uri),))
        thread.join()
    assert isinstance(outcome[0], OutcomeUnknownError)
    assert backend.insert_reference("realm", "name", row()) == Swapped()


def test_idempotent_operations_are_repeated_on_a_new_connection(
    uri: str, backend: Backend, admin: psycopg.Connection[Any]
) -> None:
    for work in (
        lambda: backend.write_objects("realm", [ObjectRow(1, 0, b"x")]),
        lambda: backend.read_objects("realm", [ObjectKey(1)]),
    ):
        with held(uri, "LOCK TABLE objects IN ACCESS EXCLUSIVE MODE"):
            thread, outcome = started(work)
            first = blocked(admin, uri)
            admin.execute("SELECT pg_terminate_backend(%s)", (first,))
            wait_until(lambda: blocked(admin, uri) != first, "another session repeats it")  # noqa: B023  # it is called at once
        thread.join()
        assert outcome in ([None], [{ObjectKey(1): b"x"}])


def test_a_silent_server_is_given_up_and_the_outcome_in_doubt(
    uri: str, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "_GRACE_S", 0.2)
    backend.insert_reference("realm", "name", current := row())
    hasty = open_backend(f"{uri}&timeout=300ms")
    assert until_it_works(lambda: hasty.read_reference("realm", "name")) == current
    connections = hasty._connections  # type: ignore[attr-defined]
    asked = until_it_works(
        lambda: connections.read(lambda session: session.script("SELECT pg_backend_pid()"))
    )
    server = int(asked.get_value(0, 0))
    os.kill(server, signal.SIGSTOP)
    try:
        with pytest.raises(OutcomeUnknownError, match="did not answer"):
            hasty.swap_reference("realm", "name", current.version, row())
        assert until_it_works(lambda: hasty.read_reference("realm", "name")) == current
    finally:
        os.kill(server, signal.SIGCONT)
        hasty.close()


@pytest.mark.parametrize("code", ["08006", "40003", "08P01"])
def test_errors_that_do_not_tell_whether_a_change_was_made_have_an_unknown_outcome(
    uri: str, backend: Backend, admin: psycopg.Connection[Any], code: str
) -> None:
    """A pooler sends these errors if its own connection ended, and so does a cluster of several servers. 08P01 refuses
    a message."""
    schema = schema_of(uri)
    backend.insert_reference("realm", "name", current := row())
    admin.execute(
        f"CREATE FUNCTION {schema}.lose() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = '{code}'; END $$"
    )
    for table in ("references", "objects"):
        admin.execute(
            f'CREATE TRIGGER lose BEFORE INSERT OR UPDATE ON {schema}."{table}" EXECUTE FUNCTION {schema}.lose()'
        )
    for change in (
        lambda: backend.swap_reference("realm", "name", current.version, row()),
        lambda: backend.insert_reference("realm", "other", row()),
        lambda: backend.write_objects("realm", [ObjectRow(1, 0, b"x")]),
    ):
        with pytest.raises(StateError if code == "08P01" else OutcomeUnknownError, match="lost"):
            change()
    assert backend.read_reference("realm", "name") == current


def test_a_child_leaves_its_parents_sessions_alone(uri: str, admin: psycopg.Connection[Any]) -> None:
    backend = open_backend(f"{uri}&application_name=forked")
    backend.setup()
    query = "SELECT array_agg(pid ORDER BY pid) FROM pg_stat_activity WHERE application_name = 'forked'"
    before = admin.execute(query).fetchone()
    child = os.fork()
    if child == 0:
        done = False
        try:
            done = backend.insert_reference("realm", "child", row()) == Swapped()
            backend.close()
        finally:  # whatever it is, the child must not go on as if it were the test run
            os._exit(0 if done else 1)
    assert exit_status(child) == 0
    assert backend.read_reference("realm", "child") is not None
    wait_until(lambda: admin.execute(query).fetchone() == before, "the child's sessions are gone")
    backend.close()


# Locks and time-outs


def test_a_statement_that_takes_too_long_was_not_done(uri: str, backend: Backend) -> None:
    backend.insert_reference("realm", "name", current := row())
    hasty = open_backend(f"{uri}&timeout=200ms")
    until_it_works(lambda: hasty.read_reference("realm", "name"))
    with (
        held(uri, 'LOCK TABLE "references" IN ACCESS EXCLUSIVE MODE'),
        pytest.raises(TryAgainError, match="57014"),
    ):
        hasty.swap_reference("realm", "name", current.version, row())
    assert until_it_works(lambda: hasty.read_reference("realm", "name")) == current
    hasty.close()


def test_a_wait_for_a_locked_row_has_a_time_limit(uri: str, backend: Backend) -> None:
    backend.insert_reference("realm", "name", current := row())
    hasty = open_backend(f"{uri}&timeout=1s")
    until_it_works(lambda: hasty.read_reference("realm", "name"))
    new = row()
    with held(uri, 'SELECT FROM "references" WHERE name = %s FOR UPDATE', b"name"):
        for attempt in (
            lambda: hasty.swap_reference("realm", "name", current.version, row()),
            lambda: hasty.write_and_swap("realm", [ObjectRow(1, 0, b"x")], "name", current.version, row()),
            lambda: hasty.delete_reference("realm", "name", current.version),
        ):
            with pytest.raises(TryAgainError, match="other transactions"):
                attempt()
        thread, outcome = started(lambda: backend.swap_reference("realm", "name", current.version, new))
    thread.join()
    assert outcome == [Swapped()]
    assert backend.read_reference("realm", "name") == new
    assert backend.read_objects("realm", [ObjectKey(1)]) == {}
    hasty.close()
