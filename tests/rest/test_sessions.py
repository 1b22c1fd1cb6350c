"""Opening catalogs: what is created, what is refused, and which changes other sessions see."""

from __future__ import annotations

import sqlite3
import threading
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import polaris_spark
import polaris_spark.errors
import polaris_spark.rest.opening
from polaris_spark.backends import open_backend
from polaris_spark.backends.base import ReferenceRow
from polaris_spark.commits.change import Operation
from polaris_spark.commits.log import entries
from polaris_spark.errors import (
    InputError,
    NewerFormatError,
    NoStoreError,
    NotFoundError,
    RealmStateError,
    ReferenceGoneError,
    StoreURIError,
)
from polaris_spark.store.cache import ObjectCache
from polaris_spark.store_uris import StoreURI
from polaris_spark.system.connections import connect_store
from polaris_spark.system.realms import RealmState
from polaris_spark.system.stores import SYSTEM_REALM, StoreRecord, system_references
from tests.forking import context, preload
from tests.names import unchecked_names
from tests.rest.client import Client, at_once, connect, path, set_properties, table, tables
from tests.rest.conftest import Open

preload(__name__)


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    """A store that several processes can open."""
    return f"sqlite://{tmp_path / 'store.db'}"


def in_processes(work: Callable[..., Any], arguments: list[tuple]) -> list:
    """Call a function with each tuple of arguments, in one process each, and return the results."""
    with context.Pool(len(arguments)) as pool:
        return pool.starmap(work, arguments, chunksize=1)


# Creation


def test_a_catalog_opened_again_is_the_same(opened: Open, shared_store: str, warehouse: Path) -> None:
    first = opened(shared_store, warehouse)
    first.namespace("db")
    created = first.create()
    first.session.close()
    again = opened(shared_store, None, create=False)
    assert again.load() == created
    assert again.create("u")["metadata"]["location"].startswith(f"file://{warehouse}/")


def test_catalogs_and_realms_are_apart(opened: Open, store: str, warehouse: Path) -> None:
    places = [{}, {"catalog": "other"}, {"realm": "other"}, {"realm": "other", "catalog": "other"}]
    clients = [opened(store, warehouse / str(number), **place) for number, place in enumerate(places)]
    for number, client in enumerate(clients):
        client.namespace(f"n{number}")
    for number, client in enumerate(clients):
        assert client.ok("GET", "v1/namespaces") == {"namespaces": [[f"n{number}"]]}


def test_nothing_is_created_where_that_is_forbidden(
    opened: Open, sqlite: str, warehouse: Path, tmp_path: Path
) -> None:
    with pytest.raises(StoreURIError, match="does not exist"):
        opened(sqlite, warehouse, create=False)
    with pytest.raises(NoStoreError, match="does not contain a store"):
        opened(f"memory:{uuid.uuid4()}", warehouse, create=False)
    assert not (tmp_path / "store.db").exists()
    opened(sqlite, warehouse)
    with pytest.raises(RealmStateError, match="'nope'"):
        opened(sqlite, warehouse, create=False, realm="nope")
    with pytest.raises(NotFoundError, match=r"'nope'.*'polaris'"):
        opened(sqlite, warehouse, create=False, catalog="nope")
    with pytest.raises(RealmStateError):
        opened(sqlite, warehouse, create=False, realm="nope")


def test_a_property_with_the_value_none_is_ignored(opened: Open, store: str, warehouse: Path) -> None:
    nothing = dict.fromkeys(("realm", "catalog", "branch", "principal", "create", "grace"))
    opened(store, warehouse).namespace("here")
    assert opened(store, warehouse, **nothing).ok("GET", "v1/namespaces") == {"namespaces": [["here"]]}


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host"])
def test_a_store_that_executors_of_a_cluster_could_not_read_is_refused_and_not_made(
    opened: Open, sqlite: str, warehouse: Path, tmp_path: Path, master: str
) -> None:
    with pytest.raises(InputError, match=f"one machine only, but Spark's master is '{master}'"):
        opened(sqlite, warehouse, **{"spark.master": master})
    with pytest.raises(InputError, match="one machine only"):
        opened(f"file://{tmp_path}/store", warehouse, **{"spark.master": master})
    with pytest.raises(InputError, match="one process only"):
        opened(f"memory:{uuid.uuid4()}", warehouse, **{"spark.master": master})
    assert not (tmp_path / "store.db").exists()
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("master", ["local", "local[*]", "local-cluster[2,1,1024]"])
def test_a_master_on_this_machine_may_have_any_store(
    opened: Open, sqlite: str, warehouse: Path, master: str
) -> None:
    client = opened(sqlite, warehouse, **{"spark.master": master})
    assert client.ok("GET", "v1/namespaces") == {"namespaces": []}


def test_a_new_catalog_needs_a_warehouse_and_is_not_made_without(
    opened: Open, sqlite: str, warehouse: Path
) -> None:
    with pytest.raises(InputError, match="warehouse"):
        opened(sqlite, None)
    with pytest.raises(StoreURIError, match="does not exist"):
        opened(sqlite, warehouse, create=False)
    opened(sqlite, warehouse)
    with pytest.raises(InputError, match="warehouse"):
        opened(sqlite, None, catalog="other")
    with pytest.raises(NotFoundError):
        opened(sqlite, warehouse, create=False, catalog="other")


@pytest.mark.parametrize(
    "properties",
    [
        {"metadata_files": "sometimes"},
        {"create": "perhaps"},
        {"metadata_file": "never"},
        {"warehous": "/x"},
        {"realm": "::mine"},
        {"realm": "x" * 1_000},
        {"realm": "\ud800"},
        {"realm": "a\nb"},
        {"realm": "\x1b[31m"},
        {"catalog": "a\nb"},
        {"catalog": "\u202e"},
        {"catalog": ".."},
        {"principal": "a\nb"},
        {"principal": "\x9b31m"},
        {"catalog": ""},
        {"catalog": "a\x1fb"},
        {"catalog": "x" * 5_000},
        {"catalog": "\ud800"},
        {"principal": ""},
        {"principal": "x" * 5_000},
        {"principal": "\ud800"},
        {"idempotency_key_lifetime": "soon"},
        {"shared_locations": "yes"},
    ],
)
def test_properties_that_cannot_be_used_are_refused(
    opened: Open, warehouse: Path, properties: dict[str, str]
) -> None:
    with pytest.raises((InputError, polaris_spark.errors.BadRequestError)):
        opened(f"memory:{uuid.uuid4()}", warehouse, **properties)


def test_a_catalog_with_a_name_that_an_earlier_release_accepted_is_opened(
    opened: Open, sqlite: str, warehouse: Path
) -> None:
    with unchecked_names():
        opened(sqlite, warehouse, catalog="a\nb").namespace("here")
    again = opened(sqlite, warehouse, catalog="a\nb")
    assert again.ok("GET", "v1/namespaces") == {"namespaces": [["here"]]}


@pytest.mark.parametrize(
    "store", ["", "x", "nope:x", "sqlite:", "memory:a/b", "sqlite:///tmp/", "sqlite:////"]
)
def test_store_uris_that_name_no_store_are_refused(opened: Open, warehouse: Path, store: str) -> None:
    with pytest.raises(StoreURIError):
        opened(store, warehouse)


def test_a_branch_that_does_not_exist_is_refused(opened: Open, store: str, warehouse: Path) -> None:
    catalog = opened(store, warehouse)
    with pytest.raises(NotFoundError, match="'nope'"):
        opened(store, warehouse, branch="nope")
    catalog.namespace("db")
    inner = catalog.session.catalog
    name = inner.reference.replace("/main", "/dev")
    inner.references.create(name, Operation(b"", "me"), source=inner.head())
    branch = opened(store, warehouse, branch="dev")
    branch.create()
    assert branch.names("db") == ["t"]
    assert catalog.names("db") == []


def test_a_catalog_whose_head_was_dropped_is_not_replaced_by_an_empty_one(
    opened: Open, store: str, warehouse: Path
) -> None:
    catalog = opened(store, warehouse)
    catalog.namespace("db")
    inner = catalog.session.catalog
    inner.references.drop(inner.reference, Operation(b"", "me"))
    assert catalog.send("GET", "v1/namespaces").kind == (404, "NotFoundException")
    assert catalog.send("POST", "v1/namespaces", {"namespace": ["x"]}).kind == (404, "NotFoundException")
    with pytest.raises(ReferenceGoneError):
        opened(store, warehouse)
    inner.references.undrop(inner.reference, Operation(b"", "me"))
    assert catalog.ok("GET", "v1/namespaces") == {"namespaces": [["db"]]}


def test_a_store_of_a_newer_format_is_refused(opened: Open, sqlite: str, warehouse: Path) -> None:
    opened(sqlite, warehouse).session.close()
    backend = open_backend(StoreURI.parse(sqlite))
    references = system_references(backend)
    found = references.read("store", StoreRecord)
    assert found is not None
    newer = msgspec.structs.replace(found.value, format=99, needs="polaris_spark 9.9")
    assert references.put("store", found.version, references.row(newer))
    backend.close()
    for create in (True, False):
        with pytest.raises(NewerFormatError, match=r"polaris_spark 9\.9"):
            opened(sqlite, warehouse, create=create)


@pytest.mark.parametrize("content", [b"garbage, garbage, garbage", b""])
def test_a_file_that_is_not_a_store_is_refused_or_made_one(
    opened: Open, sqlite: str, warehouse: Path, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "store.db").write_bytes(content)
    if content:
        with pytest.raises(polaris_spark.errors.PolarisError):
            opened(sqlite, warehouse)
        assert (tmp_path / "store.db").read_bytes() == content
    else:
        opened(sqlite, warehouse).namespace("db")


def test_a_realm_that_does_not_serve_is_refused(opened: Open, store: str, warehouse: Path) -> None:
    opened(store, warehouse)
    connection = connect_store(StoreURI.parse(store))
    connection.realms.move("default", RealmState.INACTIVE)
    with pytest.raises(RealmStateError, match="INACTIVE"):
        opened(store, warehouse)
    connection.close()


def test_a_realm_that_is_not_finished_is_finished_only_by_who_may_create(
    opened: Open, store: str, warehouse: Path
) -> None:
    opened(store, warehouse)
    connection = connect_store(StoreURI.parse(store))

    def died(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        connection.realms.create("half", connection.ids, died, revisions={})
    with pytest.raises(RealmStateError, match="INITIALIZING"):
        opened(store, warehouse, realm="half", create=False)
    opened(store, warehouse, realm="half").namespace("db")
    connection.close()


def test_a_corrupt_reference_is_named_and_not_overwritten(opened: Open, store: str, warehouse: Path) -> None:
    catalog = opened(store, warehouse)
    inner = catalog.session.catalog
    head = inner.head()
    realm, backend = head.store.realm, head.store.backend
    row_name = inner.references.open(inner.reference).name
    backend.swap_reference(realm, row_name, head.version, ReferenceRow(b"v" * 16, b"garbage"))
    for request in (("GET", "v1/namespaces"), ("POST", "v1/namespaces", {"namespace": ["x"]})):
        answer = catalog.send(*request)
        assert answer.status == 500
        assert row_name in answer.error["message"]
    row = backend.read_reference(realm, row_name)
    assert row is not None
    assert row.value == b"garbage"


# Closing


def test_a_closed_session_refuses_requests_and_may_be_closed_again(
    opened: Open, store: str, warehouse: Path
) -> None:
    one, other = opened(store, warehouse), opened(store, warehouse)
    at_once([one.session.close for _ in range(8)])
    one.session.close()
    with pytest.raises(InputError, match="closed"):
        one.send("GET", "v1/config")
    other.namespace("db")
    other.session.close()
    with pytest.raises(InputError, match="closed"):
        other.send("GET", "v1/namespaces")


def test_a_session_is_a_context(store: str, warehouse: Path) -> None:
    with polaris_spark.connect(store=store, warehouse=str(warehouse)) as session:
        assert session.request("GET", "v1/namespaces")[0] == 200
    with pytest.raises(InputError):
        session.request("GET", "v1/namespaces")


def test_sessions_that_open_and_close_all_the_time_do_not_disturb_others(
    opened: Open, sqlite: str, warehouse: Path
) -> None:
    catalog = opened(sqlite, warehouse)
    catalog.namespace("db")
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            client = connect(sqlite, warehouse)
            assert client.send("GET", path("db")).status == 200
            client.session.close()

    def work() -> None:
        for i in range(30):
            catalog.namespace("db", f"n{i}")
        stop.set()

    at_once([churn, churn, work])
    assert len(catalog.ok("GET", "v1/namespaces", query={"parent": "db"})["namespaces"]) == 30


def test_a_refused_connection_leaves_nothing_open(opened: Open, sqlite: str, warehouse: Path) -> None:
    for _ in range(3):
        with pytest.raises(InputError):
            opened(sqlite, warehouse, principal="x" * 5_000)
        with pytest.raises(NotFoundError):
            opened(sqlite, warehouse, branch="nope")
    client = opened(sqlite, warehouse)
    assert client.session.connection.users == 1


# Several at once


def test_sessions_see_one_anothers_changes_at_once(opened: Open, store: str, warehouse: Path) -> None:
    one, other = opened(store, warehouse), opened(store, warehouse, idempotency_key_lifetime="1 h")
    for i in range(10):
        one.namespace(f"a{i}")
        assert other.send("HEAD", path(f"a{i}")).status == 204
        other.ok("DELETE", path(f"a{i}"))
        assert one.send("HEAD", path(f"a{i}")).status == 404


def test_of_concurrent_openings_all_get_the_same_catalog(opened: Open, store: str, warehouse: Path) -> None:
    clients = at_once([partial(opened, store, warehouse, realm="r", catalog="c") for _ in range(8)])
    assert len({client.session.catalog.row.entity_id for client in clients}) == 1
    for number, client in enumerate(clients):
        client.namespace(f"n{number}")
    assert len(clients[0].ok("GET", "v1/namespaces")["namespaces"]) == 8


def _open_and_work(store: str, warehouse: str, number: int, n: int) -> tuple[int, int]:
    """Open a catalog, and create it if it does not exist. Commit to a common table, and create namespaces."""
    client = connect(store, warehouse, metadata_files="never")
    try:
        client.send("POST", "v1/namespaces", {"namespace": ["db"]})
        client.send("POST", tables("db"), {"name": "t", "schema": {"type": "struct", "fields": []}})
        for i in range(n):
            answer = client.commit("t", set_properties(**{f"p{number}-{i}": "1"}))
            assert answer.status == 200, answer
            answer = client.send("POST", "v1/namespaces", {"namespace": ["db", f"n{number}-{i}"]})
            assert answer.status == 200, answer
        return client.session.catalog.row.entity_id, client.session.catalog.head().head.number
    finally:
        client.session.close()


def test_processes_that_create_and_change_one_catalog_lose_nothing(
    opened: Open, shared_store: str, warehouse: Path
) -> None:
    n = 25
    results = in_processes(_open_and_work, [(shared_store, str(warehouse), number, n) for number in range(3)])
    assert len({entity for entity, _ in results}) == 1
    catalog = opened(shared_store, None, create=False)
    metadata = catalog.load()["metadata"]
    assert sum(name.startswith("p") for name in metadata["properties"]) == 3 * n
    assert len(catalog.ok("GET", "v1/namespaces", query={"parent": "db"})["namespaces"]) == 3 * n
    head = catalog.session.catalog.head()
    assert (
        sum(1 for _ in entries(head.store, head.head)) == 2 + 6 * n
    )  # one commit may contain several changes


def _change(store: str) -> str:
    client = connect(store, None)
    try:
        client.set("t", by="another process")
        return str(client.load()["metadata-location"])
    finally:
        client.session.close()


def test_a_change_by_another_process_is_seen_at_once(
    opened: Open, shared_store: str, warehouse: Path
) -> None:
    catalog = opened(shared_store, warehouse)
    catalog.namespace("db")
    catalog.create()
    tag = catalog.send("GET", table("t")).headers["ETag"]
    (location,) = in_processes(_change, [(shared_store,)])
    answer = catalog.send("GET", table("t"), headers={"If-None-Match": tag})
    assert answer.status == 200
    assert answer.body["metadata-location"] == location
    assert catalog.set("t", by="this")["metadata"]["metadata-log"][-1]["metadata-file"] == location


def _hold(path_: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path_, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN IMMEDIATE")
    return connection


def test_a_change_waits_for_a_locked_database_and_is_then_done(
    opened: Open, sqlite: str, warehouse: Path, tmp_path: Path
) -> None:
    catalog = opened(sqlite, warehouse)
    lock = _hold(str(tmp_path / "store.db"))
    timer = threading.Timer(0.3, lock.rollback)
    timer.start()
    catalog.namespace("db")
    timer.join()
    lock.close()
    assert catalog.ok("GET", "v1/namespaces") == {"namespaces": [["db"]]}


def test_reserved_rows_of_the_store_are_apart_from_realms(opened: Open, warehouse: Path) -> None:
    client: Client = opened(f"memory:{uuid.uuid4()}", warehouse)
    assert client.session.catalog.head().store.realm != SYSTEM_REALM


def test_the_cache_is_as_small_as_asked_for(
    opened: Open, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ObjectCache()
    monkeypatch.setattr(polaris_spark.rest.opening, "process_cache", lambda: cache)
    opened(f"memory:{uuid.uuid4()}", warehouse, cache_bytes="1 MiB")
    assert cache.capacity == 2**20
