"""Opening a store of MariaDB: options, credentials, permissions, settings of the server, and users who may set up."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, ObjectRow, Swapped
from polaris_spark.backends.mariadb.settings import Settings
from polaris_spark.errors import StateError, StoreURIError, TryAgainError
from polaris_spark.store_uris import Secret, StoreURI
from polaris_spark.testing.processes import rows
from polaris_spark.testing.stores import row, with_options
from tests.backends.mariadb.support import Admin, database_of, globally, of_guest, place_of
from tests.servers.mariadb import GUEST, MariaDB
from tests.stores import unavailable


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("host", {"host": "host", "port": 3306}),
        ("user@host:1", {"host": "host", "port": 1}),
        ("[::1]", {"host": "::1", "port": 3306}),
        ("[fe80::1%25eth0]:2", {"host": "fe80::1%eth0", "port": 2}),
    ],
)
def test_a_host_may_leave_its_port_out(place: str, told: dict[str, object]) -> None:
    login = Settings.parse(StoreURI.parse(f"mariadb://{place}/db"), {}).login
    assert told.items() <= login.items()


def test_a_wrong_password_is_reported_and_not_shown(uri: str, server: MariaDB) -> None:
    wrong = uri.replace(server.password, "wrong%20battery")
    with pytest.raises(StoreURIError, match=r"Access denied.*store.password") as caught:
        open_backend(wrong).setup()
    assert "wrong battery" not in str(caught.value)
    with pytest.raises(StoreURIError, match=r"Access denied.*using password: NO.*store.password"):
        open_backend(uri.replace(f":{server.password}", "")).setup()


def test_passwords_of_any_script_come_from_uri_options_and_environment(
    uri: str, backend: Backend, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = f"user_{database_of(uri)}"
    admin.run(f"CREATE USER {user}@'%' IDENTIFIED BY 'grüße 表'")
    admin.run(f"GRANT SELECT ON {database_of(uri)}.* TO {user}@'%'")
    monkeypatch.setenv("STORE_PASSWORD", "grüße 表")
    place = place_of(uri)
    for opened in (
        open_backend(f"mariadb://{user}:gr%C3%BC%C3%9Fe%20%E8%A1%A8@{place}"),
        open_backend(f"mysql://{user}@{place}", {"password": Secret("grüße 表")}),
        open_backend(f"mariadb://{user}@{place}", {"password": Secret("env:STORE_PASSWORD")}),
    ):
        assert opened.read_reference("realm", "name") is None
        opened.close()


def test_a_unix_socket_opens_the_same_store(uri: str, backend: Backend, server: MariaDB) -> None:
    backend.insert_reference("realm", "name", current := row())
    place = uri.replace(f"127.0.0.1:{server.port}", "localhost")
    other = open_backend(f"{place}?socket={server.directory}/socket")
    assert other.read_reference("realm", "name") == current
    other.close()


def test_an_empty_database_is_not_a_store(uri: str, admin: Admin) -> None:
    admin.run(f"CREATE DATABASE {database_of(uri)}")
    with pytest.raises(StoreURIError, match=r"does not contain a store.*create=true"):
        open_backend(uri).read_reference("realm", "name")


def test_missing_permissions_are_reported_and_change_nothing(
    uri: str, backend: Backend, admin: Admin, server: MariaDB
) -> None:
    current = row()
    backend.insert_reference("realm", "name", current)
    other = open_backend(of_guest(uri, server))
    for use in (other.setup, lambda: other.read_reference("realm", "name")):
        with pytest.raises(StoreURIError, match="Access denied"):
            use()
    admin.run(f"GRANT SELECT ON {database_of(uri)}.* TO {GUEST}@'%'")
    assert other.read_reference("realm", "name") == current
    for change in (
        lambda: other.swap_reference("realm", "name", current.version, row()),
        lambda: other.write_and_swap("realm", [ObjectRow(1, 0, b"")], "name", current.version, row()),
        lambda: other.insert_reference("realm", "new", row()),
        lambda: other.delete_reference("realm", "name", current.version),
        lambda: other.write_objects("realm", [ObjectRow(1, 0, b"x")]),
        lambda: other.drop_realm("realm"),
    ):
        with pytest.raises(StoreURIError, match=r"denied.*grant"):
            change()
    other.close()
    assert backend.read_reference("realm", "name") == current


def test_rows_that_may_not_be_written_leave_the_swap_undone(
    uri: str, backend: Backend, admin: Admin, server: MariaDB
) -> None:
    backend.insert_reference("realm", "name", current := row())
    admin.run(f"GRANT SELECT ON {database_of(uri)}.* TO {GUEST}@'%'")
    admin.run(f"GRANT UPDATE ON {database_of(uri)}.`references` TO {GUEST}@'%'")
    other = open_backend(of_guest(uri, server))
    with pytest.raises(StoreURIError, match=r"denied.*grant"):
        other.write_and_swap("realm", [ObjectRow(1, 0, b"")], "name", current.version, row())
    assert backend.read_reference("realm", "name") == current
    assert other.swap_reference("realm", "name", current.version, row()) == Swapped()
    other.close()


def test_a_user_without_the_right_to_create_can_use_an_existing_store(
    uri: str, backend: Backend, admin: Admin, server: MariaDB
) -> None:
    admin.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {database_of(uri)}.* TO {GUEST}@'%'")
    other = open_backend(of_guest(uri, server))
    other.setup()
    other.insert_reference("realm", "name", current := row())
    other.write_objects("realm", [ObjectRow(1, 0, b"x")])
    assert other.write_and_swap("realm", [ObjectRow(2, 0, b"x")], "name", current.version, row()) == Swapped()
    assert len(rows(other, other.splits("objects", None, 4))) == 2
    assert other.drop_realm("realm")
    other.close()


def test_stores_with_similar_database_names_are_separate(uri: str) -> None:
    names = ["Stra%C3%9Fe", "%60quoted%60", "sp%20ace%27%3B--", "per%25cent%7Bbrace%7D", "CASE", "case"]
    for number, name in enumerate(names):
        backend = open_backend(uri.replace(database_of(uri), name))
        backend.setup()
        assert backend.insert_reference("realm", "name", row(b"%d" % number)) == Swapped()
        assert len(backend.splits("objects", None, 4)) <= 4
        backend.close()


@pytest.mark.parametrize(
    "variables",
    [
        {"sql_mode": "'ANSI,NO_BACKSLASH_ESCAPES'"},
        {"sql_mode": "''"},
        {"sql_mode": "'ORACLE'"},
        {"sql_select_limit": "1", "completion_type": "2"},
        {"tx_isolation": "'SERIALIZABLE'", "tx_read_only": "1"},
        {"autocommit": "0"},
        {"character_set_server": "'utf16'", "collation_server": "'utf16_bin'"},
        {"init_connect": "'SET autocommit = 0'"},
    ],
    ids=str,
)
def test_what_the_servers_settings_say_of_sessions_does_not_matter(
    uri: str, admin: Admin, variables: dict[str, str]
) -> None:
    with globally(admin, variables):
        backend = open_backend(uri)
        backend.setup()
        value = b"' \\ \" \x00 \xff"
        backend.insert_reference("r'\\", "n'\\", current := row(value))
        objects = [ObjectRow(id, 0, value) for id in range(3)]
        assert backend.write_and_swap("r'\\", objects, "n'\\", current.version, new := row()) == Swapped()
        assert backend.read_reference("r'\\", "n'\\") == new
        found = rows(backend, backend.splits("objects", None, 1))
        assert found == [("r'\\", id, 0, value) for id in range(3)]
        backend.close()


def test_a_server_that_is_read_only_is_refused(uri: str, backend: Backend, admin: Admin) -> None:
    with globally(admin, {"read_only": "1"}), pytest.raises(TryAgainError, match="read-only"):
        open_backend(uri).read_reference("realm", "name")
    assert open_backend(uri).read_reference("realm", "name") is None


def test_no_database_is_created_on_a_server_that_is_read_only(uri: str, admin: Admin) -> None:
    with globally(admin, {"read_only": "1"}), pytest.raises(TryAgainError, match="read-only"):
        open_backend(uri).setup()


def test_a_server_that_takes_no_large_rows_is_refused(uri: str, backend: Backend, admin: Admin) -> None:
    with (
        globally(admin, {"max_allowed_packet": "524288"}),
        pytest.raises(StateError, match="max_allowed_packet"),
    ):
        open_backend(uri).read_reference("realm", "name")


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\x00" * 64, b"\x04\x00\x00\x00\n5.5"], ids=repr
)
def test_a_server_of_another_kind_is_reported(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def serve() -> None:
            client, _ = other.accept()
            client.sendall(answer)
            client.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(TryAgainError, match=r"cannot be reached|does not answer like MariaDB"):
            open_backend(f"mariadb://127.0.0.1:{other.getsockname()[1]}/db").setup()
        thread.join()


# Encryption


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a server's `key.pem` and a self-signed `cert.pem` for 127.0.0.1."""
    if shutil.which("openssl") is None:
        unavailable("this test needs the program openssl")
    directory = tmp_path_factory.mktemp("certificate")
    subject = ["-subj", "/CN=polaris", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        "key.pem",
        "-out",
        "cert.pem",
    ]
    subprocess.run([*command, *subject], cwd=directory, check=True, capture_output=True)
    return directory


@pytest.fixture(scope="module")
def encrypted(certificate: Path) -> Iterator[MariaDB]:
    """A server with that certificate."""
    settings = {"ssl-cert": str(certificate / "cert.pem"), "ssl-key": str(certificate / "key.pem")}
    with MariaDB(settings) as server:
        yield server


def _cipher(uri: str) -> str:
    backend = open_backend(uri)
    backend.setup()
    read = backend._connections.read  # type: ignore[attr-defined]
    found: str = read(lambda session: session.run("SHOW STATUS LIKE 'Ssl_cipher'")[0].rows[0][1])
    backend.insert_reference("realm", "name", row())
    backend.close()
    return found


def test_connections_are_encrypted_as_the_options_say(encrypted: MariaDB, certificate: Path) -> None:
    uri, ca = encrypted.uri("store"), certificate / "cert.pem"
    for options in ("ssl_mode=required", f"ssl_ca={ca}", f"ssl_ca={ca}&ssl_mode=verify-ca"):
        assert _cipher(with_options(uri, options))
    assert not _cipher(with_options(uri, "ssl_mode=disabled"))


def test_a_server_that_cannot_prove_itself_is_refused(
    encrypted: MariaDB, certificate: Path, server: MariaDB
) -> None:
    uri, ca = encrypted.uri("store"), certificate / "cert.pem"
    for refused in (
        with_options(uri, "ssl_mode=verify-identity"),
        with_options(uri.replace("127.0.0.1", "localhost"), f"ssl_ca={ca}"),
        with_options(server.uri("store"), "ssl_mode=required"),
    ):
        with pytest.raises(StoreURIError, match=r"refuses the connection.*check ssl_mode"):
            open_backend(refused).setup()
