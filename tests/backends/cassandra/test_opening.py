"""The options of a `cassandra://` URI, the schema that `setup` creates, and the clients that are refused."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import Any

import pytest
from cassandra.protocol import ServerError

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, ObjectRow, Swapped
from polaris_spark.backends.cassandra.clusters import ClusterSession
from polaris_spark.backends.cassandra.settings import Settings
from polaris_spark.errors import NewerFormatError, StateError, StoreURIError, TryAgainError
from polaris_spark.store_uris import Secret, StoreURI
from polaris_spark.testing.stores import row
from tests.servers.cassandra import Cassandra


def use(uri: str, *, setup: bool = False) -> None:
    """Set up the store, or read from it."""
    with contextlib.closing(open_backend(uri)) as backend:
        if setup:
            backend.setup()
        else:
            backend.read_reference("realm", "name")


def keyspace_of(uri: str) -> str:
    return StoreURI.parse(uri).path


def without_replication(uri: str) -> str:
    return uri.replace("?replication=1", "")


@pytest.mark.parametrize(
    ("authority", "hosts"),
    [
        ("host", [("host", 9042)]),
        ("user@host:1", [("host", 1)]),
        ("a,b:3,[::1],[::2]:4", [("a", 9042), ("b", 3), ("::1", 9042), ("::2", 4)]),
    ],
)
def test_hosts_may_leave_their_ports_out(authority: str, hosts: list[tuple[str, int]]) -> None:
    assert Settings.parse(StoreURI.parse(f"cassandra://{authority}/store"), {}).hosts == tuple(hosts)


@pytest.mark.parametrize("text", ["1", "datacenter1:1"])
def test_a_keyspace_is_created_with_the_copies_that_are_stated(
    cassandra: Cassandra, uri: str, text: str
) -> None:
    backend = open_backend(uri.replace("replication=1", f"replication={text}"))
    backend.setup()
    backend.close()
    ((found,),) = cassandra.run(
        f"SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = '{keyspace_of(uri)}'"
    )
    assert dict(found) == {  # type: ignore[call-overload]  # a map of the driver
        "class": "org.apache.cassandra.locator.NetworkTopologyStrategy",
        "datacenter1": "1",
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("", "no keyspace.*without the option 'replication'.*replication=3"),
        ("?replication=3", "datacenter 'datacenter1' has 1"),
        ("?replication=datacenter1:1,dc7:1", "datacenter 'dc7' has 0.*datacenters are: datacenter1"),
        ("?replication=1&datacenter=dc7", "no datacenter 'dc7'; its datacenters are: datacenter1"),
    ],
)
def test_no_keyspace_is_created_that_rows_could_not_be_written_to(
    cassandra: Cassandra, uri: str, options: str, words: str
) -> None:
    with pytest.raises(StoreURIError, match=words):
        use(without_replication(uri) + options, setup=True)
    assert not cassandra.run(
        f"SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = '{keyspace_of(uri)}'"
    )


def test_a_keyspace_that_its_operator_made_is_used_as_it_is(cassandra: Cassandra, uri: str) -> None:
    cassandra.run(
        f"CREATE KEYSPACE {keyspace_of(uri)} WITH replication = "
        f"{{'class': 'SimpleStrategy', 'replication_factor': 1}}"
    )
    for backend in (open_backend(without_replication(uri)), open_backend(uri)):
        backend.setup()
        backend.write_objects("realm", [ObjectRow(1, 0, b"x")])
        backend.close()


def test_a_store_remembers_how_its_clients_agree_and_refuses_others(cassandra: Cassandra, uri: str) -> None:
    local = open_backend(f"{uri}&serial=LOCAL_SERIAL&datacenter=datacenter1")
    local.setup()
    local.close()
    other = open_backend(uri)
    assert other.insert_reference("realm", "name", current := row()) == Swapped()
    assert other.read_reference("realm", "name") == current
    other.close()
    for setup in (True, False):
        with pytest.raises(
            StateError, match="level LOCAL_SERIAL, and a client with serial=SERIAL would not see"
        ):
            use(f"{uri}&serial=SERIAL", setup=setup)
    for table in ("objects", "references"):
        mark = "polaris_spark store, format 1, LOCAL_SERIAL in dc7"
        cassandra.run(f"ALTER TABLE {keyspace_of(uri)}.{table} WITH comment = '{mark}'")
    with pytest.raises(StateError, match=r"within the datacenter 'dc7'.*set datacenter=dc7"):
        use(uri)


def test_an_incomplete_store_of_a_newer_release_is_not_completed(cassandra: Cassandra, uri: str) -> None:
    keyspace = keyspace_of(uri)
    cassandra.run(
        f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
    )
    mark = "polaris_spark store, format 2, SERIAL"
    cassandra.run(f"CREATE TABLE {keyspace}.objects (name text PRIMARY KEY) WITH comment = '{mark}'")
    for setup in (True, False):
        with pytest.raises(NewerFormatError, match="format 2"):
            use(uri, setup=setup)
    names = f"SELECT table_name FROM system_schema.tables WHERE keyspace_name = '{keyspace}'"
    assert cassandra.run(names) == [("objects",)]


def test_a_table_that_the_node_cannot_read_yet_is_waited_for(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, refused = ClusterSession.ask, list[str]()

    def not_yet(self: ClusterSession, query: str, *arguments: Any) -> Any:
        if "LIMIT 1" in query and len(refused) < 3:
            refused.append(query)
            raise ServerError(0, "java.lang.IllegalArgumentException: Unknown CF", {})
        return ask(self, query, *arguments)

    monkeypatch.setattr(ClusterSession, "ask", not_yet)
    use(uri, setup=True)
    assert len(refused) == 3
    use(uri)


def test_after_setup_a_user_needs_only_select_and_modify(
    cassandra: Cassandra, uri: str, backend: Backend
) -> None:
    keyspace = keyspace_of(uri)
    of_guest = StoreURI.parse(cassandra.unprivileged(keyspace))
    assert of_guest.password is not None
    other = open_backend(of_guest, {"password": Secret(of_guest.password.reveal())})
    with pytest.raises(StoreURIError, match=r"Unauthorized.*grant"):
        other.setup()
    with pytest.raises(StoreURIError, match=r"Unauthorized.*grant"):
        other.read_reference("realm", "name")
    with pytest.raises(StoreURIError, match=r"Unauthorized.*grant"):
        other.write_objects("realm", [ObjectRow(1, 0, b"x")])
    other.close()
    for permission in ("SELECT", "MODIFY"):
        cassandra.run(f"GRANT {permission} ON KEYSPACE {keyspace} TO guest")
    cassandra.run(f"CREATE ROLE {keyspace} WITH LOGIN = true AND PASSWORD = 'correct horse'")
    cassandra.run(f"GRANT guest TO {keyspace}")  # whose permissions nobody has cached
    member = open_backend(uri.replace(cassandra.user, keyspace, 1), {"password": "correct horse"})
    member.setup()
    assert member.insert_reference("realm", "name", row()) == Swapped()
    member.write_objects("realm", [ObjectRow(1, 0, b"x")])
    member.close()


def test_connections_are_encrypted_for_a_certificate_that_is_trusted(cassandra: Cassandra, uri: str) -> None:
    for how in ("verify-ca", "verify-full"):
        backend = open_backend(f"{uri}&tls={how}&tls_ca={cassandra.certificate}")
        backend.setup()
        assert backend.read_reference("realm", "name") is None
        backend.close()
        with pytest.raises(StoreURIError, match=r"untrusted.*tls_ca"):
            use(f"{uri}&tls={how}", setup=True)
    with pytest.raises(StoreURIError, match="cannot be read"):
        use(f"{uri}&tls=verify-ca&tls_ca=/no/such/file", setup=True)


def test_hosts_without_an_address_are_reported_as_temporary_errors() -> None:
    backend = open_backend("cassandra://nowhere.invalid,neither.invalid/keyspace")
    with pytest.raises(
        TryAgainError, match=r"the host names cannot be resolved: nowhere\.invalid, neither\.invalid"
    ):
        backend.setup()
    backend.close()


def test_a_driver_without_an_event_loop_is_reported() -> None:
    program = (
        "import sys\n"
        "sys.modules['cassandra.io.libevwrapper'] = None\n"
        "sys.modules['asyncore'] = None\n"
        "from polaris_spark.backends import open_backend\n"
        "from polaris_spark.errors import MissingLibraryError\n"
        "try:\n"
        "    open_backend('cassandra://host/store')\n"
        "except MissingLibraryError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "without an event loop that works here: install cassandra-driver from a wheel" in done.stdout, (
        done.stderr
    )


def test_a_program_that_does_not_close_its_store_ends_without_errors(uri: str, backend: Backend) -> None:
    program = (
        "from polaris_spark.backends import open_backend\n"
        f"print(open_backend({uri!r}).read_reference('realm', 'name'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "None\n", "")
