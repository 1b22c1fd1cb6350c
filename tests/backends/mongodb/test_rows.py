"""Rows in MongoDB, beyond the storage contract: keys in BSON's order, concerns, splits and scans."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from bson import encode
from pymongo import monitoring
from pymongo.database import Database

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, ObjectKey, ObjectRow, Swapped
from polaris_spark.backends.mongodb import keys
from polaris_spark.testing.processes import exit_status, rows
from polaris_spark.testing.proxy import NONE, FaultyProxy
from polaris_spark.testing.server import Server
from polaris_spark.testing.stores import HOSTILE_NAMES, MAX_ID, row
from tests.stores import ServerOf, StoreOn


class _Commands(monitoring.CommandListener):
    """Records the commands that drivers send."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.sent.append((event.command_name, dict(event.command)))

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        return

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        return


@pytest.fixture
def commands(uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Commands]:
    """The commands that the backends of this test send from now on."""
    listener = _Commands()
    registered = monitoring._LISTENERS
    monitoring.register(listener)
    yield listener
    registered.command_listeners.remove(listener)


@pytest.fixture
def server(server_of: ServerOf) -> Server:
    return server_of("mongodb")


# Keys


def test_the_keys_of_a_realm_lie_together_in_the_order_of_their_ids() -> None:
    ids = [0, 1, 255, 256, 2**32, MAX_ID]
    for realm in HOSTILE_NAMES:
        low, high = keys.objects_of(realm)
        made = [keys.object_id(realm.encode(), id, part) for id in ids for part in (0, 1, 300)]
        assert made == sorted(made, key=keys.order)
        assert [keys.object_key(one) for one in made] == [(id, part) for id in ids for part in (0, 1, 300)]
        assert {keys.realm_of(one) for one in made} == {realm}
        assert all(keys.order(low) <= keys.order(one) < keys.order(high) for one in made)
    everything = [
        (keys.order(keys.object_id(realm.encode(), id, 0)), realm) for realm in HOSTILE_NAMES for id in ids
    ]
    runs = [realm for _, realm in sorted(everything)][:: len(ids)]
    assert sorted(runs) == sorted(HOSTILE_NAMES)


def test_the_server_orders_keys_as_we_do(backend: Backend, database: Database[dict[str, Any]]) -> None:
    for realm in HOSTILE_NAMES:
        backend.write_objects(realm, [ObjectRow(id, 0, b"") for id in (0, 255, 256, MAX_ID)])
    found = [each["_id"] for each in database["objects"].find({}, {"_id": 1}, sort=[("_id", 1)])]
    assert found == sorted(found, key=keys.order)


def test_split_ranges_begin_at_samples_and_cover_the_same_keys() -> None:
    realms = ["r", "realm", "other"]
    samples = [keys.object_id(realm.encode(), id, 0) for realm in realms for id in range(1, 31)]
    ranges = [keys.objects_of("r"), keys.objects_of("realm")]
    cut = keys.cut(ranges, samples, 6)
    assert len(cut) == 6
    for low, high in ranges:
        own = [each for each in cut if keys.order(low) <= keys.order(each[0]) < keys.order(high)]
        assert own[0][0] == low
        assert own[-1][1] == high
        assert [each[1] for each in own[:-1]] == [each[0] for each in own[1:]]
    assert keys.cut(ranges, [], 6) == ranges
    assert keys.cut([keys.ALL_OBJECTS], samples, 1) == [keys.ALL_OBJECTS]


# Concerns


def test_writes_wait_for_a_majority_and_reads_use_the_read_concern_they_need(
    uri: str, commands: _Commands
) -> None:
    backend = open_backend(uri)
    backend.setup()
    commands.sent.clear()
    backend.insert_reference("realm", "name", first := row())
    backend.swap_reference("realm", "name", first.version, second := row())
    backend.write_objects("realm", [ObjectRow(1, 0, b"x")])
    backend.delete_objects("realm", [ObjectKey(1)])
    backend.delete_reference("realm", "name", second.version)
    changes = [command for name, command in commands.sent if name in ("insert", "update", "delete")]
    assert len(changes) == len(commands.sent) == 5
    assert all(command["writeConcern"] == {"w": "majority", "j": True} for command in changes)
    assert all(command["maxTimeMS"] > 0 for command in changes)
    commands.sent.clear()
    backend.read_reference("realm", "name")
    assert [command["readConcern"] for _, command in commands.sent] == [{"level": "linearizable"}]
    commands.sent.clear()
    for table in ("objects", "references"):
        rows(backend, backend.splits(table, ["realm"], 1))  # type: ignore[arg-type]  # names of tables
    scans = [command for _, command in commands.sent if command.get("sort")]
    assert [command["readConcern"] for command in scans] == [{"level": "majority"}] * 2
    backend.close()


def test_a_row_is_missing_only_if_the_primary_is_sure(uri: str, commands: _Commands) -> None:
    backend = open_backend(uri)
    backend.setup()
    backend.write_objects("realm", [ObjectRow(1, 0, b"x")])
    commands.sent.clear()
    assert backend.read_objects("realm", [ObjectKey(1)]) == {ObjectKey(1): b"x"}
    assert len(commands.sent) == 1
    assert backend.read_objects("realm", [ObjectKey(1), ObjectKey(2)]) == {ObjectKey(1): b"x"}
    name, command = commands.sent[-1]
    assert (name, command["filter"]) == ("find", {"_id": keys.object_id(b"realm", 2, 0)})
    assert command["readConcern"] == {"level": "linearizable"}
    assert len(commands.sent) == 3
    backend.close()


def test_commands_stay_below_the_size_of_a_message(uri: str, commands: _Commands) -> None:
    backend = open_backend(uri)
    backend.setup()
    commands.sent.clear()
    backend.write_objects("realm", [ObjectRow(id, 0, os.urandom(300_000)) for id in range(120)])
    inserts = [command["documents"] for name, command in commands.sent if name == "insert"]
    assert sum(len(each) for each in inserts) == 120
    assert all(sum(len(encode(one)) for one in each) < 17 * 2**20 for each in inserts)
    assert len(backend.read_objects("realm", [ObjectKey(id) for id in range(120)])) == 120
    backend.close()


# Splits and scans


def test_splits_of_many_rows_are_sampled_and_about_even(backend: Backend) -> None:
    for realm, count in (("large", 12_000), ("small", 500)):
        for first in range(0, count, 4_000):
            ids = range(first, min(first + 4_000, count))
            backend.write_objects(realm, [ObjectRow(id << 22, 0, b"x") for id in ids])
    splits = backend.splits("objects", ["large"], 4)
    sizes = [len(rows(backend, [split])) for split in splits]
    assert sum(sizes) == 12_000
    assert 3 <= len(sizes) <= 6
    assert max(sizes) < 6_000
    assert sum(len(rows(backend, [split])) for split in backend.splits("objects", None, 4)) == 12_500


def test_a_scan_whose_cursor_is_lost_goes_on_after_its_last_row(
    server: Server, backend: Backend, uri: str
) -> None:
    backend.write_objects("realm", [ObjectRow(id, 0, b"x" * 100) for id in range(5_000)])
    with FaultyProxy("127.0.0.1", server.port, faults=NONE) as proxy:
        store = uri.partition("?")[0].rpartition("/")[2]
        far = open_backend(server.uri(store, port=proxy.port))
        splits = far.splits("objects", ["realm"], 1)
        found: list[int] = []
        for split in splits:
            for batch in far.scan(split):
                found += batch.column("id").to_pylist()
                proxy.cut_all()
        assert found == list(range(5_000))
        far.close()


def test_a_realm_that_is_larger_than_one_batch_of_deletes_is_dropped(backend: Backend) -> None:
    for realm in ("realm", "other"):
        backend.write_objects(realm, [ObjectRow(id, 0, b"") for id in range(11_000)])
    assert backend.drop_realm("realm")
    assert rows(backend, backend.splits("objects", ["realm"], 1)) == []
    assert len(rows(backend, backend.splits("objects", ["other"], 1))) == 11_000


# Processes


def test_a_forked_child_has_a_client_of_its_own_and_hears_no_warning(backend: Backend) -> None:
    assert backend.read_reference("realm", "child") is None
    mine = backend._connections._client()  # type: ignore[attr-defined]
    child = os.fork()
    if child == 0:
        try:
            warnings.simplefilter("error")
            done = backend.insert_reference("realm", "child", row()) == Swapped()
            other = backend._connections._client()  # type: ignore[attr-defined]
            backend.close()
            os._exit(0 if done and other is not mine else 1)
        except BaseException:  # whatever it is, the child must not go on as if it were the test run
            os._exit(2)
    assert exit_status(child) == 0
    assert backend.read_reference("realm", "child") is not None
    assert backend._connections._client() is mine  # type: ignore[attr-defined]


def test_stores_of_one_server_are_separate(store_on: StoreOn) -> None:
    backends = [open_backend(store_on("mongodb")) for _ in range(2)]
    for number, backend in enumerate(backends):
        backend.setup()
        backend.write_objects("realm", [ObjectRow(number, 0, b"x")])
    for number, backend in enumerate(backends):
        assert list(backend.read_objects("realm", [ObjectKey(0), ObjectKey(1)])) == [ObjectKey(number)]
        backend.close()
