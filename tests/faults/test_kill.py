"""Processes and servers that are killed at any moment, by SIGKILL, under a stream of commits."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.clock import SystemClock
from polaris_spark.system.leases import LEASE_MS, NodeLeases, NodeRecord
from polaris_spark.system.stores import system_references
from polaris_spark.testing.proxy import NONE, FaultyProxy
from polaris_spark.testing.servers import server_class
from polaris_spark.testing.servers.base import ProcessServer, Server
from polaris_spark.testing.stores import with_options
from tests.faults.checking import check
from tests.faults.workers import Workers
from tests.servers import NETWORKED, SHARED, StoreOn, databases, start


@pytest.fixture
def uri(request: pytest.FixtureRequest, store_on: StoreOn) -> str:
    """A store that does not exist yet, on the database that the test's parameter names."""
    return store_on(request.param)


@pytest.mark.parametrize("uri", databases(SHARED, ordinary=("sqlite", "postgresql", "s3")), indirect=True)
@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=pytest.mark.long)])
def test_nothing_is_lost_or_doubled_when_processes_are_killed(
    uri: str, kills: int, tmp_path: Path, workers: Callable[..., Workers]
) -> None:
    some = workers(uri, 1)
    some.wait_for(5)
    for _ in range(kills):
        some.kill_one()
        if some.rng.random() < 0.7:
            some.wait_for(some.rng.randrange(1, 8))
    some.wait_for(3)
    some.stop()
    told = check(uri, tmp_path)
    assert len(told.keys("done")) > 20
    print(told)


class LaterClock(SystemClock):
    """The clock of a machine on which more time has passed."""

    def now_ms(self) -> int:
        return super().now_ms() + LEASE_MS + 60_000


def test_leases_of_killed_processes_free_themselves(tmp_path: Path, workers: Callable[..., Workers]) -> None:
    uri = f"sqlite://{tmp_path}/store.db"
    some = workers(uri, 2, processes=1)
    some.wait_for(1)
    pid = some.running[1].pid
    some.kill_one()
    some.wait_for(1)
    some.stop()
    backend = open_backend(uri)
    references = system_references(backend)
    held = {}
    for node in range(1_024):
        found = references.read(f"node/{node}", NodeRecord)
        if found is not None and not found.value.released:
            held[node] = found.value
    (node,) = held
    assert str(pid) in held[node].holder
    later = NodeLeases(backend, LaterClock(), seed=seed_of_choice(node))
    lease = later.acquire(0)
    assert lease.node == node
    assert lease.start_ms >= held[node].end_ms
    backend.close()


def seed_of_choice(node: int) -> int:
    """A seed with which leases begin their search at a node."""
    return next(seed for seed in count() if random.Random(seed).sample(range(1_024), 16)[0] == node)


@pytest.fixture
def own_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of the test's own, for it is killed."""
    with start(server_class(request.param)) as server:
        yield server


DURABLE = [scheme for scheme in NETWORKED if server_class(scheme).durable]


@pytest.mark.parametrize("own_server", databases(DURABLE), indirect=True)
@pytest.mark.parametrize("kills", [2, pytest.param(12, marks=pytest.mark.long)])
def test_nothing_acknowledged_is_lost_when_the_server_is_killed(
    own_server: Server, kills: int, tmp_path: Path, workers: Callable[..., Workers]
) -> None:
    uri = own_server.uri("killed")
    some = workers(uri, 3)
    some.wait_for(5)
    for _ in range(kills):
        time.sleep(some.rng.uniform(0.0, 0.3))
        own_server.kill()
        time.sleep(some.rng.uniform(0.0, 0.5))
        own_server.start()
        some.wait_for(3)
    some.stop()
    print(check(uri, tmp_path))


@pytest.mark.parametrize(
    "own_server", databases([scheme for scheme in NETWORKED if scheme not in DURABLE]), indirect=True
)
@pytest.mark.parametrize("stops", [2, pytest.param(12, marks=pytest.mark.long)])
def test_nothing_is_lost_or_doubled_when_a_server_in_memory_stands_still_and_all_connections_break(
    own_server: Server, stops: int, tmp_path: Path, workers: Callable[..., Workers]
) -> None:
    """What such a server acknowledged ends with its process, so it is stopped for a while instead of being killed."""
    assert isinstance(own_server, ProcessServer)
    with FaultyProxy("127.0.0.1", own_server.port, seed=3, faults=NONE) as proxy:
        far_uri = with_options(own_server.uri("stopped", port=proxy.port), own_server.hasty)
        some = workers(far_uri, 3, calm_uri=own_server.uri("stopped"))
        some.wait_for(5)
        for _ in range(stops):
            os.kill(own_server.pid, signal.SIGSTOP)
            try:
                time.sleep(some.rng.uniform(0.0, 3.0))
                proxy.cut_all()
            finally:
                os.kill(own_server.pid, signal.SIGCONT)
            some.wait_for(3)
        some.stop()
    print(check(own_server.uri("stopped"), tmp_path))
