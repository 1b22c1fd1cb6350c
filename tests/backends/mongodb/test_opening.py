"""Opening a store of MongoDB: the arguments of the driver, other servers, and documents of a store."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest
from pymongo.database import Database

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, ReferenceRow
from polaris_spark.backends.mongodb.settings import Settings
from polaris_spark.errors import InputError, StoreURIError, TryAgainError
from polaris_spark.store_uris import Secret, StoreURI


def _told(text: str, **options: str | Secret) -> dict[str, Any]:
    """Return the driver's arguments for a store URI."""
    uri = StoreURI.parse(text)
    given: dict[str, str | Secret] = {**uri.options}
    if uri.password is not None:
        given["password"] = uri.password
    return Settings.parse(uri, {**given, **options}).driver()


@pytest.mark.parametrize(
    "uri",
    [
        "mongodb://me@host/db?tls=perhaps",
        "mongodb://me@host/db?tls=true&tlsCAFile=/no/such/file",
        "mongodb://me@host/db?authMechanism=none",
        "mongodb://me@a,b/db?directConnection=true",
        "mongodb+srv://me@host:27017/db",
        "mongodb+srv://me@host/db",
    ],
)
def test_options_that_the_driver_refuses_are_reported_when_the_store_is_used(uri: str) -> None:
    with pytest.raises(StoreURIError, match="cannot be opened") as caught:
        open_backend(uri, {"password": Secret("correct horse")}).setup()
    assert "correct horse" not in str(caught.value)


def test_the_driver_gets_hosts_database_user_and_options() -> None:
    told = _told("mongodb://user:pass%20word@a:1,[::1]:2,c/db?replicaSet=rs&authSource=admin&tls=true&pool=3")
    assert told["host"] == "mongodb://a:1,[::1]:2,c/db"
    assert (told["username"], told["password"]) == ("user", "pass word")
    assert (told["replicaSet"], told["authSource"], told["tls"], told["maxPoolSize"]) == (
        "rs",
        "admin",
        "true",
        3,
    )
    assert _told("mongodb://host/a%2541+b")["host"] == "mongodb://host/a%2541%2Bb"
    assert _told("mongodb+srv://cluster.example.com/db")["host"] == "mongodb+srv://cluster.example.com/db"


def test_every_wait_of_the_driver_is_bounded_and_it_repeats_no_write() -> None:
    told = _told("mongodb://host/db?timeout=2s&connect_timeout=1500ms")
    assert told["timeoutMS"] == 2_000
    assert told["connectTimeoutMS"] == 1_500
    assert told["retryWrites"] is False


def test_a_password_from_the_environment_is_asked_for_when_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Settings.parse(
        StoreURI.parse("mongodb://user@host/db"), {"password": Secret("env:STORE_PASSWORD")}
    )
    with pytest.raises(InputError, match="STORE_PASSWORD"):
        settings.driver()
    monkeypatch.setenv("STORE_PASSWORD", "correct horse")
    assert settings.driver()["password"] == "correct horse"
    assert "correct horse" not in repr(settings)


def test_connections_are_as_many_as_the_uri_says(uri: str) -> None:
    backend = open_backend(f"{uri}&pool=3")
    backend.setup()
    driver = backend._connections._client()  # type: ignore[attr-defined]
    assert driver.options.pool_options.max_pool_size == 3
    backend.close()


def test_a_server_with_another_protocol_is_reported() -> None:
    def answer(server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as other:
        thread = threading.Thread(target=answer, args=(other,), daemon=True)
        thread.start()
        uri = f"mongodb://127.0.0.1:{other.getsockname()[1]}/db?connect_timeout=300ms"
        with pytest.raises(TryAgainError, match="cannot be reached"):
            open_backend(uri).setup()
        other.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_a_replica_set_of_another_name_is_not_used(uri: str) -> None:
    other = uri.replace("replicaSet=alone", "replicaSet=other&connect_timeout=300ms")
    with pytest.raises(TryAgainError, match="cannot be reached"):
        open_backend(other).setup()


def test_the_mark_of_a_store_is_not_a_reference(backend: Backend) -> None:
    assert [list(backend.scan(split)) for split in backend.splits("references", None, 2)] == [[]]
    with pytest.raises(InputError):
        backend.read_reference("realm", "")
    assert backend.drop_realm("realm")
    backend.setup()


def test_documents_have_the_documented_form(backend: Backend, database: Database[dict[str, Any]]) -> None:
    backend.insert_reference("realm", "name", ReferenceRow(b"v", b"x"))
    found = database["references"].find_one({"_id.realm": "realm"})
    assert found == {"_id": {"realm": "realm", "name": "name"}, "version": b"v", "value": b"x"}
