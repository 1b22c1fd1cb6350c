"""Lost connections, threads that share and wait for connections, slow statements, and rows that others lock."""

from __future__ import annotations

import os
import signal
from typing import Any

import psycopg
import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, ObjectRow, Swapped
from polaris_spark.backends.postgresql import session as session_module
from polaris_spark.errors import (
    OutcomeUnknownError,
    StateError,
)
from polaris_spark.testing.processes import started
from polaris_spark.testing.stores import row
from polaris_spark.testing.waiting import until_it_works
from tests.backends.postgresql.support import blocked, held, schema_of

# Connections


def test_a_session_that_is_killed_in_mid_statement_leaves_a_write_in_doubt_and_the_pool_whole(
    uri: str, backend: Backend, admin: psycopg.Connection[Any]
) -> None:
    with held(uri, "INSERT INTO \"references\" VALUES ('realm', 'name', 'v', '')"):
        thread, outcome = started(lambda: backend.insert_reference("realm", "name", row()))
        admin.execute("SELECT pg_terminate_backend(%s)", (blocked(admin, uri),))
        thread.join()
    assert isinstance(outcome[0], OutcomeUnknownError)
    assert backend.insert_reference("realm", "name", row()) == Swapped()


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


# Locks and time-outs
