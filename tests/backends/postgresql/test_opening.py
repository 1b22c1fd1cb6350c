"""Opening a store of PostgreSQL: options, credentials, permissions, and users who may set up."""

from __future__ import annotations

import socket
from operator import methodcaller
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, ObjectRow, Swapped
from polaris_spark.backends.postgresql.settings import Settings
from polaris_spark.errors import (
    StoreURIError,
)
from polaris_spark.store_uris import Secret, StoreURI
from polaris_spark.testing.stores import row
from tests.backends.postgresql.support import of_user, schema_of
from tests.servers.postgresql import PostgreSQL


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


def test_a_wrong_password_is_reported_and_not_shown(uri: str, user: str) -> None:
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


def test_a_missing_database_and_a_missing_user_are_reported(uri: str) -> None:
    with pytest.raises(StoreURIError, match=r'database "nowhere" does not exist.*create the database'):
        open_backend(uri.replace("/postgres?", "/nowhere?")).setup()
    with pytest.raises(StoreURIError, match='role "nobody" does not exist'):
        open_backend(of_user(uri, "nobody")).setup()


def test_missing_permissions_are_reported_and_change_nothing(
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


def test_a_user_without_the_right_to_create_can_use_an_existing_store(
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


def test_stores_with_similar_schema_names_in_one_database_are_separate(postgresql: PostgreSQL) -> None:
    names = ["Stra%C3%9Fe", "%22quoted%22", "sp%20ace%27%3B--", "per%25cent%7Bbrace%7D", "CASE", "case"]
    uris = [f"{postgresql.database}?schema={name}" for name in names]
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
    read = backend._connections.read  # type: ignore[attr-defined]
    for statement, value in (("SHOW synchronous_commit", b"remote_apply"), ("SHOW statement_timeout", b"7s")):
        assert read(methodcaller("script", statement)).get_value(0, 0) == value
    assert admin.execute(query, ("synchronous_commit",)).fetchone() == ("on",)
    assert admin.execute("SELECT 1 FROM pg_stat_activity WHERE application_name = 'mine'").fetchone()
    backend.close()
