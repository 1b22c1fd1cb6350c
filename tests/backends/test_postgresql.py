"""What PostgreSQL adds to the storage contract: options, refusals, lost connections, locks, and its statistics."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, pairwise
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, Conflict, ObjectKey, ObjectRow, Swapped
from polaris_spark.backends.postgresql import session as session_module
from polaris_spark.backends.postgresql.settings import Settings
from polaris_spark.config import Secret, StoreURI
from polaris_spark.errors import (
    NewerFormatError,
    OutcomeUnknownError,
    PolarisError,
    StateError,
    StoreURIError,
    TryAgainError,
)
from polaris_spark.testing.postgresql import GUARDED, PostgreSQL
from polaris_spark.testing.processes import in_processes, in_threads, increments, rows
from polaris_spark.testing.stores import row

_numbers = count(1)


@pytest.fixture
def uri(postgresql_uri: str) -> str:
    return postgresql_uri


@pytest.fixture
def backend(uri: str) -> Iterator[Backend]:
    backend = open_backend(uri)
    backend.setup()
    yield backend
    backend.close()


@pytest.fixture
def admin(postgresql: PostgreSQL) -> Iterator[psycopg.Connection[Any]]:
    """A connection of the server's owner, in autocommit."""
    with psycopg.connect(postgresql.uri, autocommit=True) as connection:
        yield connection


@pytest.fixture
def user(admin: psycopg.Connection[Any]) -> str:
    """A new user who may log in with the password `correct horse`, and no more."""
    name = f"user_{next(_numbers)}"
    if admin.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (GUARDED,)).fetchone() is None:
        admin.execute(f"CREATE ROLE {GUARDED}")
    admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'correct horse' IN ROLE {GUARDED}")
    return name


def schema_of(uri: str) -> str:
    return StoreURI.parse(uri).options["schema"]


def of_user(uri: str, user: str) -> str:
    return uri.replace("postgres@", f"{user}@")


@contextmanager
def held(uri: str, statement: str, *parameters: object) -> Iterator[None]:
    """A transaction of another program that ran a statement on the store, and goes on until the block ends."""
    with psycopg.connect(uri.partition("?")[0]) as connection:
        connection.execute(f"SET search_path = {schema_of(uri)}")
        connection.execute(statement, parameters)
        yield
        connection.rollback()


def blocked(admin: psycopg.Connection[Any], uri: str) -> int:
    """Process of the store's session that waits for a lock, once there is one."""
    query = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    while (found := admin.execute(query, (f"%{schema_of(uri)}%",)).fetchone()) is None:
        pass
    return int(found[0])


def started(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """A thread, and what its work gave or raised once it ended."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(work())
        except PolarisError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


# Opening


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("postgresql://host/db?schem=x", "did you mean 'schema'"),
        ("postgresql://host/db?sslmod=require", "did you mean 'sslmode'"),
        ("postgresql://host", "names no database"),
        ("postgresql://host:port/db", "no host:port"),
        ("postgresql://host:0/db", "no host:port"),
        ("postgresql://host:/db", "no host:port"),
        ("postgresql://:5432/db", "no host:port"),
        ("postgresql://host/db%00", "dbname.*holds a NUL"),
        ("postgresql://user%00@host/db", "user.*holds a NUL"),
        ("postgresql://host/db?application_name=a%00", "application_name.*holds a NUL"),
        ("postgresql://host/db?target_session_attrs=any", "read-write or primary"),
        ("postgresql://host/db?timeout=soon", "duration"),
        ("postgresql://host/db?timeout=0s", "longer than nothing"),
        ("postgresql://host/db?pool=0", "1 to 256"),
        ("postgresql://host/db?pool=many", "1 to 256"),
        ("postgresql://host/db?schema=", "no name of a PostgreSQL schema"),
        ("postgresql://host/db?synchronous_commit=maybe", "remote_apply"),
        ("postgresql://user:secret@host/db?timeout=soon", "duration"),
    ],
)
def test_bad_uris_and_options_are_refused(uri: str, words: str) -> None:
    with pytest.raises(StoreURIError, match=words) as caught:
        open_backend(uri)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("authority", "hosts", "ports"),
    [
        ("host", "host", "5432"),
        ("user@host", "host", "5432"),
        ("host:1", "host", "1"),
        ("[::1]", "::1", "5432"),
        ("[::1]:2", "::1", "2"),
        ("a,b:3,[fe80::1%25eth0]", "a,b,fe80::1%eth0", "5432,3,5432"),
    ],
)
def test_a_host_may_leave_its_port_out(authority: str, hosts: str, ports: str) -> None:
    uri = StoreURI.parse(f"postgresql://{authority}/db")
    told = conninfo_to_dict(Settings.parse(uri, {}).connection)
    assert (told["host"], told["port"], told["dbname"]) == (hosts, ports, "db")


def test_several_hosts_ports_and_addresses_are_understood(uri: str, postgresql: PostgreSQL) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        first = (
            f"postgresql://postgres@127.0.0.1:{closed.getsockname()[1]},127.0.0.1:{postgresql.port}/postgres"
        )
        backend = open_backend(f"{first}?schema={schema_of(uri)}")
        backend.setup()
        assert backend.read_reference("realm", "name") is None
        backend.close()


def test_a_wrong_password_is_told_and_not_shown(uri: str, user: str) -> None:
    backend = open_backend(of_user(uri, user), {"password": Secret("wrong battery")})
    with pytest.raises(StoreURIError, match=r"password authentication failed.*store.password") as caught:
        backend.setup()
    assert "wrong battery" not in str(caught.value)
    with pytest.raises(StoreURIError, match=r"no password supplied.*store.password"):
        open_backend(of_user(uri, user)).setup()


def test_the_right_password_opens_from_the_uri_the_options_and_the_environment(
    uri: str, user: str, backend: Backend, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.execute(f"GRANT USAGE ON SCHEMA {schema_of(uri)} TO {user}")
    admin.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema_of(uri)} TO {user}")
    monkeypatch.setenv("STORE_PASSWORD", "correct horse")
    for opened in (
        open_backend(of_user(uri, f"{user}:correct%20horse")),
        open_backend(of_user(uri, user), {"password": Secret("correct horse")}),
        open_backend(of_user(uri, user), {"password": Secret("env:STORE_PASSWORD")}),
    ):
        assert opened.read_reference("realm", "name") is None
        opened.close()


def test_a_missing_database_and_a_missing_user_are_told(uri: str) -> None:
    with pytest.raises(StoreURIError, match=r'database "nowhere" does not exist.*create the database'):
        open_backend(uri.replace("/postgres?", "/nowhere?")).setup()
    with pytest.raises(StoreURIError, match='role "nobody" does not exist'):
        open_backend(of_user(uri, "nobody")).setup()


def test_an_unreachable_server_is_worth_another_try() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(TryAgainError, match="cannot be reached"):
            open_backend(f"postgresql://postgres@127.0.0.1:{closed.getsockname()[1]}/postgres").setup()


def test_a_server_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"postgresql://postgres@127.0.0.1:{silent.getsockname()[1]}/postgres?connect_timeout=1s"
        with pytest.raises(TryAgainError, match=r"cannot be reached.*timeout"):
            open_backend(uri).setup()


def test_missing_permissions_are_told_and_change_nothing(
    uri: str, user: str, backend: Backend, admin: psycopg.Connection[Any]
) -> None:
    current = row()
    backend.insert_reference("realm", "name", current)
    other = open_backend(of_user(uri, user), {"password": Secret("correct horse")})
    with pytest.raises(StoreURIError, match=r"permission denied.*grant"):
        other.read_reference("realm", "name")
    admin.execute(f"GRANT USAGE ON SCHEMA {schema_of(uri)} TO {user}")
    admin.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema_of(uri)} TO {user}")
    assert other.read_reference("realm", "name") == current
    for change in (
        lambda: other.swap_reference("realm", "name", current.version, row()),
        lambda: other.write_and_swap("realm", [ObjectRow(1, 0, b"")], "name", current.version, row()),
        lambda: other.insert_reference("realm", "new", row()),
        lambda: other.delete_reference("realm", "name", current.version),
        lambda: other.write_objects("realm", [ObjectRow(1, 0, b"x")]),
    ):
        with pytest.raises(StoreURIError, match="permission denied"):
            change()
    other.close()
    assert backend.read_reference("realm", "name") == current
    elsewhere = open_backend(
        of_user(uri, user).replace("schema=test", "schema=other"), {"password": Secret("correct horse")}
    )
    with pytest.raises(StoreURIError, match="permission denied for database"):
        elsewhere.setup()


def test_a_user_who_may_not_create_needs_only_use_of_what_was_set_up(
    uri: str, user: str, backend: Backend, admin: psycopg.Connection[Any]
) -> None:
    admin.execute(f"GRANT USAGE ON SCHEMA {schema_of(uri)} TO {user}")
    admin.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema_of(uri)} TO {user}")
    other = open_backend(of_user(uri, user), {"password": Secret("correct horse")})
    other.setup()
    other.insert_reference("realm", "name", current := row())
    rows_of_commit = [ObjectRow(1, 0, b"x")]
    assert other.write_and_swap("realm", rows_of_commit, "name", current.version, row()) == Swapped()
    assert other.drop_realm("realm")
    other.close()


def test_what_was_never_set_up_is_no_store(uri: str, admin: psycopg.Connection[Any]) -> None:
    with pytest.raises(StoreURIError, match=r"holds no store.*create=true"):
        open_backend(uri).read_reference("realm", "name")
    assert (
        admin.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema_of(uri),)).fetchone() is None
    )


def test_a_store_that_is_dropped_while_it_is_open_is_told(
    uri: str, backend: Backend, admin: psycopg.Connection[Any]
) -> None:
    backend.read_reference("realm", "name")
    admin.execute(f"DROP SCHEMA {schema_of(uri)} CASCADE")
    with pytest.raises(StoreURIError, match="holds no store"):
        backend.insert_reference("realm", "name", row())


def test_tables_of_others_are_left_alone(uri: str, admin: psycopg.Connection[Any]) -> None:
    admin.execute(f"CREATE SCHEMA {schema_of(uri)}")
    admin.execute(f"CREATE TABLE {schema_of(uri)}.objects (name text)")
    for use in (lambda backend: backend.setup(), lambda backend: backend.read_reference("realm", "name")):
        with pytest.raises(StoreURIError, match="another program"):
            use(open_backend(uri))


def test_a_store_of_a_newer_release_is_refused(
    uri: str, backend: Backend, admin: psycopg.Connection[Any]
) -> None:
    admin.execute(f"COMMENT ON TABLE {schema_of(uri)}.objects IS 'polaris_spark store, format 2'")
    for use in (lambda backend: backend.setup(), lambda backend: backend.read_reference("realm", "name")):
        with pytest.raises(NewerFormatError, match="format 2"):
            use(open_backend(uri))


def _set_up(uri: str) -> bool:
    backend = open_backend(uri)
    backend.setup()
    found = backend.read_reference("realm", "name") is None
    backend.close()
    return found


def test_processes_may_set_up_at_once(uri: str) -> None:
    assert in_processes(_set_up, [(uri,)] * 4) == [True] * 4


def test_stores_of_one_database_are_apart_whatever_their_schemas_are_called(postgresql: PostgreSQL) -> None:
    names = ["Stra%C3%9Fe", "%22quoted%22", "sp%20ace%27%3B--", "per%25cent%7Bbrace%7D", "CASE", "case"]
    uris = [f"{postgresql.uri}?schema={name}" for name in names]
    for number, uri in enumerate(uris):
        backend = open_backend(uri)
        backend.setup()
        assert backend.insert_reference("realm", "name", row(b"%d" % number)) == Swapped()
        assert len(backend.splits("objects", None, 4)) <= 4
        backend.close()
    assert len({StoreURI.parse(uri).key for uri in uris}) == len(uris)


def test_sessions_have_the_settings_that_the_uri_asks_for(uri: str, admin: psycopg.Connection[Any]) -> None:
    backend = open_backend(f"{uri}&synchronous_commit=remote_apply&timeout=7s&application_name=mine&pool=3")
    backend.setup()
    query = "SELECT current_setting(%s)"
    with backend._connections._lent() as session:  # type: ignore[attr-defined]
        for name, value in (("synchronous_commit", b"remote_apply"), ("statement_timeout", b"7s")):
            assert session.script(f"SHOW {name}").get_value(0, 0) == value
    assert admin.execute(query, ("synchronous_commit",)).fetchone() == ("on",)
    assert admin.execute("SELECT 1 FROM pg_stat_activity WHERE application_name = 'mine'").fetchone()
    backend.close()


# Connections


def sessions(admin: psycopg.Connection[Any]) -> int:
    found = admin.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'bounded'"
    ).fetchone()
    assert found is not None
    return int(found[0])


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
    while sessions(admin):
        pass


def test_nobody_waits_for_ever_for_a_connection(uri: str, backend: Backend) -> None:
    narrow = open_backend(f"{uri}&pool=1&timeout=200ms")
    with narrow._connections._lent(), pytest.raises(TryAgainError, match="all 1 connections"):  # type: ignore[attr-defined]
        narrow.read_reference("realm", "name")
    assert narrow.read_reference("realm", "name") is None
    narrow.close()


def test_a_server_that_ended_idle_sessions_costs_nobody_an_error(
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


def test_what_may_be_repeated_is_repeated_on_a_new_connection(
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
            while blocked(admin, uri) == first:
                pass
        thread.join()
        assert outcome in ([None], [{ObjectKey(1): b"x"}])


def test_a_silent_server_is_given_up_and_the_outcome_in_doubt(
    uri: str, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "_GRACE_S", 0.2)
    backend.insert_reference("realm", "name", current := row())
    hasty = open_backend(f"{uri}&timeout=300ms")
    assert hasty.read_reference("realm", "name") == current
    connections = hasty._connections  # type: ignore[attr-defined]
    with connections._lent() as session:
        server = int(session.script("SELECT pg_backend_pid()").get_value(0, 0))
    os.kill(server, signal.SIGSTOP)
    try:
        with pytest.raises(OutcomeUnknownError, match="no answer"):
            hasty.swap_reference("realm", "name", current.version, row())
        assert hasty.read_reference("realm", "name") == current
    finally:
        os.kill(server, signal.SIGCONT)
        hasty.close()


def _crash(server: PostgreSQL) -> None:
    server.kill()
    server.start()


@pytest.mark.parametrize("restart", [PostgreSQL.restart, _crash])
def test_a_restart_in_mid_work_loses_nothing_and_is_recovered_from(
    backend: Backend, postgresql: PostgreSQL, restart: Callable[[PostgreSQL], None]
) -> None:
    backend.insert_reference("realm", "counter", row(b"0"))
    go_on = threading.Event()

    def work(number: int) -> tuple[int, int]:
        if number == 0:
            restart(postgresql)
            go_on.set()
            return 0, 0
        done = perhaps = 0
        while not go_on.is_set() or done < 5:
            try:
                tally = increments(backend, "realm", "counter", 1)
            except (TryAgainError, OutcomeUnknownError):  # of a read
                continue
            done, perhaps = done + tally.done, perhaps + tally.perhaps
        return done, perhaps

    tallies = in_threads(5, work)
    found = backend.read_reference("realm", "counter")
    assert found is not None
    sure = sum(done for done, _ in tallies)
    assert sure <= int(found.value) <= sure + sum(perhaps for _, perhaps in tallies)


def test_a_child_leaves_its_parents_sessions_alone(uri: str, admin: psycopg.Connection[Any]) -> None:
    backend = open_backend(f"{uri}&application_name=forked")
    backend.setup()
    query = "SELECT array_agg(pid ORDER BY pid) FROM pg_stat_activity WHERE application_name = 'forked'"
    before = admin.execute(query).fetchone()
    child = os.fork()
    if child == 0:
        done = backend.insert_reference("realm", "child", row()) == Swapped()
        backend.close()
        os._exit(0 if done else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert backend.read_reference("realm", "child") is not None
    while admin.execute(query).fetchone() != before:
        pass
    backend.close()


# Locks and time-outs


def test_a_statement_that_takes_too_long_was_not_done(uri: str, backend: Backend) -> None:
    backend.insert_reference("realm", "name", current := row())
    hasty = open_backend(f"{uri}&timeout=200ms")
    hasty.read_reference("realm", "name")
    with (
        held(uri, 'LOCK TABLE "references" IN ACCESS EXCLUSIVE MODE'),
        pytest.raises(TryAgainError, match="57014"),
    ):
        hasty.swap_reference("realm", "name", current.version, row())
    assert hasty.read_reference("realm", "name") == current
    hasty.close()


def test_a_row_that_another_transaction_holds_is_waited_for_but_not_for_ever(
    uri: str, backend: Backend
) -> None:
    backend.insert_reference("realm", "name", current := row())
    hasty = open_backend(f"{uri}&timeout=200ms")
    new = row()
    with held(uri, 'SELECT FROM "references" WHERE name = %s FOR UPDATE', b"name"):
        for attempt in (
            lambda: hasty.swap_reference("realm", "name", current.version, row()),
            lambda: hasty.write_and_swap("realm", [ObjectRow(1, 0, b"x")], "name", current.version, row()),
            lambda: hasty.delete_reference("realm", "name", current.version),
        ):
            with pytest.raises(TryAgainError, match="another transaction"):
                attempt()
        thread, outcome = started(lambda: backend.swap_reference("realm", "name", current.version, new))
    thread.join()
    assert outcome == [Swapped()]
    assert backend.read_reference("realm", "name") == new
    assert backend.read_objects("realm", [ObjectKey(1)]) == {}
    hasty.close()


def test_a_conflict_carries_the_row_that_won(backend: Backend) -> None:
    backend.insert_reference("realm", "name", current := row())
    new = [ObjectRow(1, 0, b"x")]
    assert backend.swap_reference("realm", "name", b"stale", row()) == Conflict(current)
    assert backend.write_and_swap("realm", new, "name", b"stale", row()) == Conflict(current)
    assert backend.insert_reference("realm", "name", row()) == Conflict(current)
    assert backend.delete_reference("realm", "name", b"stale") == Conflict(current)


# Tables


def test_swaps_move_no_row_to_another_page(
    uri: str, backend: Backend, admin: psycopg.Connection[Any]
) -> None:
    backend.insert_reference("realm", "name", current := row(b"x" * 1_000))
    for _ in range(200):
        new = row(b"x" * 1_000)
        assert backend.swap_reference("realm", "name", current.version, new) == Swapped()
        current = new
    size = admin.execute(f"SELECT pg_relation_size('{schema_of(uri)}.references')").fetchone()
    assert size is not None
    assert size[0] <= 4 * 8_192


def test_splits_follow_the_servers_statistics_and_cover_all_rows_once(
    uri: str, backend: Backend, admin: psycopg.Connection[Any]
) -> None:
    dense = [ObjectRow(1_000_000 + id, 0, b"x") for id in range(3_000)]
    backend.write_objects("realm", [*dense, ObjectRow(0, 0, b"x"), ObjectRow(2**62, 0, b"x")])
    admin.execute(f"ANALYZE {schema_of(uri)}.objects")
    backend.write_objects("realm", [ObjectRow(2**61 + id, 0, b"late") for id in range(10)])
    splits = backend.splits("objects", ["realm"], 6)
    counts = [len(rows(backend, [split])) for split in splits]
    assert sum(counts) == 3_012
    assert max(counts) < 1_000
    ends = sorted(part for split in splits for part in split.detail)
    assert all(before[2] + 1 == after[1] for before, after in pairwise(ends))  # type: ignore[index]


def test_a_closed_store_has_no_sessions_left(uri: str, backend: Backend) -> None:
    in_threads(4, lambda _: backend.read_reference("realm", "name"))
    backend.close()
    with pytest.raises(StateError, match="closed"):
        backend.splits("objects", None, 1)
