"""Lost connections, threads that share and wait for connections, locks, deadlocks, and slow statements."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, ObjectKey, ObjectRow, Swapped
from polaris_spark.backends.mariadb import session as session_module
from polaris_spark.errors import OutcomeUnknownError, TryAgainError
from polaris_spark.testing.processes import in_threads, increments, started
from polaris_spark.testing.stores import row, with_options
from polaris_spark.testing.waiting import PATIENCE_S, until_it_works, wait_until
from tests.backends.mariadb.support import Admin, database_of, held, place_of
from tests.servers.mariadb import MariaDB

_HOLD_ROW = "SELECT 1 FROM `references` WHERE name = 'name' FOR UPDATE"

# Connections


def test_an_interrupted_operation_leaves_no_open_transaction_for_the_next_one(
    uri: str, backend: Backend
) -> None:
    narrow = open_backend(with_options(uri, "pool=1"))

    def interrupted(session: session_module.MariaDBSession) -> None:
        session.run("START TRANSACTION")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        narrow._connections.change(interrupted)  # type: ignore[attr-defined]
    narrow.write_objects("realm", [ObjectRow(1, 0, b"x")])
    assert backend.read_objects("realm", [ObjectKey(1)]) == {ObjectKey(1): b"x"}
    narrow.close()


def test_a_user_without_free_connections_gets_a_retryable_error(
    uri: str, backend: Backend, admin: Admin
) -> None:
    backend.close()
    user = f"user_{database_of(uri)}"
    admin.run(f"CREATE USER {user}@'%' IDENTIFIED BY 'p' WITH MAX_USER_CONNECTIONS 1")
    admin.run(f"GRANT SELECT ON {database_of(uri)}.* TO {user}@'%'")
    first, second = (open_backend(f"mariadb://{user}:p@{place_of(uri)}") for _ in range(2))
    assert first.read_reference("realm", "name") is None
    with pytest.raises(TryAgainError, match="max_user_connections"):
        second.read_reference("realm", "name")
    first.close()
    wait_until(lambda: not admin.sessions(uri), "its sessions are gone")
    assert second.read_reference("realm", "name") is None
    second.close()


@pytest.mark.parametrize("rows_of_commit", [[], [ObjectRow(1, 0, b"x")]])
def test_a_session_that_is_killed_in_mid_swap_leaves_it_in_doubt_and_the_pool_whole(
    uri: str, backend: Backend, admin: Admin, server: MariaDB, rows_of_commit: list[ObjectRow]
) -> None:
    backend.insert_reference("realm", "name", current := row())
    with held(server, uri, _HOLD_ROW):
        swap = lambda: backend.write_and_swap("realm", rows_of_commit, "name", current.version, row())  # noqa: E731  # two of them
        thread, outcome = started(swap)
        admin.run(f"KILL {admin.blocked(uri, 'UPDATE')}")
        thread.join()
    assert isinstance(outcome[0], OutcomeUnknownError)
    assert backend.read_reference("realm", "name") == current
    assert swap() == Swapped()


def test_a_statement_that_an_operator_cancels_was_not_done(
    uri: str, backend: Backend, admin: Admin, server: MariaDB
) -> None:
    backend.insert_reference("realm", "name", current := row())
    commit = [ObjectRow(1, 0, b"x")]
    with held(server, uri, _HOLD_ROW):
        thread, outcome = started(
            lambda: backend.write_and_swap("realm", commit, "name", current.version, row())
        )
        admin.run(f"KILL QUERY {admin.blocked(uri, 'UPDATE')}")
        thread.join()
    assert isinstance(outcome[0], TryAgainError)
    assert backend.write_and_swap("realm", commit, "name", current.version, row()) == Swapped()


def test_a_silent_server_is_given_up_and_the_outcome_in_doubt(
    uri: str, backend: Backend, server: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "GRACE_MS", 100)
    backend.insert_reference("realm", "name", current := row())
    hasty = open_backend(with_options(uri, "timeout=500ms&connect_timeout=500ms"))
    assert until_it_works(lambda: hasty.read_reference("realm", "name")) == current
    os.kill(server.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: _stands_still(server.pid), "all threads of the server stand still")
        with pytest.raises(OutcomeUnknownError, match="timed out"):
            hasty.swap_reference("realm", "name", current.version, row())
        with pytest.raises(TryAgainError, match="cannot be reached"):
            hasty.read_reference("realm", "name")
    finally:
        os.kill(server.pid, signal.SIGCONT)
    until_it_works(lambda: hasty.read_reference("realm", "name"))
    hasty.close()


def _stands_still(process: int) -> bool:
    try:
        states = [
            path.read_text().rpartition(")")[2].split()[0]
            for path in Path(f"/proc/{process}/task").glob("*/stat")
        ]
    except OSError:  # a thread ended
        return False
    return set(states) == {"T"}


def _crash(server: MariaDB) -> None:
    server.kill()
    server.start()


@pytest.mark.parametrize("restart", [MariaDB.restart, _crash])
def test_a_restart_in_mid_work_loses_nothing_and_is_recovered_from(
    backend: Backend, server: MariaDB, restart: Callable[[MariaDB], None]
) -> None:
    backend.insert_reference("realm", "counter", row(b"0"))
    go_on, end = threading.Event(), time.monotonic() + 2 * PATIENCE_S

    def work(number: int) -> tuple[int, int]:
        if number == 0:
            try:
                restart(server)
            finally:
                go_on.set()
            return 0, 0
        done = perhaps = 0
        while not go_on.is_set() or done < 5:
            assert time.monotonic() < end
            tally = increments(backend, "realm", "counter", 1)
            done, perhaps = done + tally.done, perhaps + tally.perhaps
        return done, perhaps

    tallies = in_threads(5, work)
    found = backend.read_reference("realm", "counter")
    assert found is not None
    sure = sum(done for done, _ in tallies)
    assert sure <= int(found.value) <= sure + sum(perhaps for _, perhaps in tallies)


@pytest.mark.parametrize("how", ["KILL QUERY", "KILL"])
def test_the_reported_outcome_of_a_commit_is_true_at_whatever_moment_it_is_killed(
    uri: str, backend: Backend, admin: Admin, server: MariaDB, how: str
) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance, over, aim = random.Random(seed), threading.Event(), threading.Event()
    backend.insert_reference("realm", "name", current := row())

    def kill() -> None:
        while not over.is_set():
            aim.wait()
            for id in admin.sessions(uri, busy=chance.random() < 0.9):
                try:
                    admin.run(f"{how} {id}")
                except Exception as error:
                    assert "Unknown thread id" in str(error)  # noqa: PT017  # it ended by itself

    large = os.urandom(300_000)
    told = {"Swapped": 0, "TryAgainError": 0, "OutcomeUnknownError": 0}
    thread, end = threading.Thread(target=kill), time.monotonic() + PATIENCE_S
    thread.start()
    try:
        for id in count():
            assert thread.is_alive()
            assert time.monotonic() < end, told
            if id % 2:  # every other commit
                aim.set()
            new = row()
            commit = [ObjectRow(id, part, large) for part in range(3)]
            try:
                outcome: object = backend.write_and_swap("realm", commit, "name", current.version, new)
            except (TryAgainError, OutcomeUnknownError) as error:
                outcome = error
            aim.clear()
            if isinstance(outcome, OutcomeUnknownError):  # its session was the only one
                with Admin(server) as looking:
                    wait_until(lambda: not looking.sessions(uri), "the commit is over")
            found, written = until_it_works(lambda: _state(backend, id))  # noqa: B023  # it is called at once
            told[type(outcome).__name__] += 1
            assert found in (current, new)
            assert written == (3 if found == new else 0)
            if not isinstance(outcome, OutcomeUnknownError):
                assert (found == new) == (outcome == Swapped()), outcome
            current = found
            if told["Swapped"] >= 10 and told["TryAgainError"] + told["OutcomeUnknownError"] >= 10:
                break
    finally:
        over.set()
        aim.set()
        thread.join(PATIENCE_S)


def _state(backend: Backend, id: int) -> tuple[object, int]:
    """Return the reference, and the number of rows with an id."""
    found = backend.read_reference("realm", "name")
    return found, len(backend.read_objects("realm", [ObjectKey(id, part) for part in range(3)]))


# Locks and time-outs


def test_an_insert_waits_for_a_locked_row_with_a_time_limit(
    uri: str, backend: Backend, server: MariaDB
) -> None:
    backend.insert_reference("realm", "name", current := row())
    hasty = open_backend(with_options(uri, "timeout=1s"))
    until_it_works(lambda: hasty.read_reference("realm", "name"))
    with (
        held(server, uri, _HOLD_ROW),
        pytest.raises(TryAgainError, match=r"Lock wait|max_statement_time"),
    ):
        hasty.insert_reference("realm", "name", row())
    assert backend.read_reference("realm", "name") == current
    hasty.close()


def test_a_commit_whose_rows_wait_too_long_is_rolled_back_whole(
    uri: str, backend: Backend, server: MariaDB
) -> None:
    backend.insert_reference("realm", "name", current := row())
    hasty = open_backend(with_options(uri, "timeout=1s&pool=1"))
    until_it_works(lambda: hasty.read_reference("realm", "name"))
    commit = [ObjectRow(1, 0, b"x"), ObjectRow(2, 0, b"x")]
    with held(server, uri, "INSERT INTO objects VALUES ('realm', 2, 0, '')"):
        with pytest.raises(TryAgainError):
            hasty.write_and_swap("realm", commit, "name", current.version, row())
        assert until_it_works(lambda: hasty.read_reference("realm", "name")) == current
        assert backend.swap_reference("realm", "name", current.version, row()) == Swapped()
    assert backend.read_objects("realm", [ObjectKey(1), ObjectKey(2)]) == {}
    hasty.close()


def test_the_victim_of_a_deadlock_has_done_nothing(
    uri: str, backend: Backend, admin: Admin, server: MariaDB
) -> None:
    backend.insert_reference("realm", "name", current := row())
    many = ",".join(f"('other', {id}, 0, '')" for id in range(100))  # the lighter transaction is the victim
    with held(server, uri, f"INSERT INTO objects VALUES ('realm', 1, 0, ''), {many}") as other:
        thread, outcome = started(
            lambda: backend.write_and_swap(
                "realm", [ObjectRow(0, 0, b"x"), ObjectRow(1, 0, b"x")], "name", current.version, row()
            )
        )
        admin.blocked(uri, "INSERT")
        # The server makes this table anew only when nobody has read it for 0.1 s.
        waits = "SELECT 1 FROM information_schema.innodb_lock_waits"
        wait_until(lambda: admin.run(waits), "the commit waits for a lock", every_s=0.2)
        other.run("UPDATE `references` SET value = 'theirs' WHERE realm = 'realm' AND name = 'name'")
        thread.join()
    assert isinstance(outcome[0], TryAgainError)
    assert "Deadlock" in str(outcome[0])
    assert backend.read_reference("realm", "name") == current
    assert backend.read_objects("realm", [ObjectKey(0), ObjectKey(1)]) == {}
    assert admin.run(f"SELECT COUNT(*) FROM {database_of(uri)}.objects") == [(0,)]
