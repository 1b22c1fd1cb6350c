"""Processes and servers that are killed by SIGKILL at random times while processes commit."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.clock import SystemClock
from polaris_spark.system.leases import LEASE_MS, NodeLeases, NodeRecord
from polaris_spark.system.stores import system_references
from polaris_spark.testing.server import Server
from tests.faults.checking import check, events
from tests.faults.killing import has_every_kill
from tests.faults.workers import Workers
from tests.faults.working import STEPS
from tests.releases import BEFORE_INTENTS, checkout, make_earlier
from tests.servers import server_class
from tests.sizes import TIMES
from tests.stores import NETWORKED, SHARED, StoreOn, databases, start


@pytest.fixture
def uri(request: pytest.FixtureRequest, store_on: StoreOn) -> str:
    """A store that does not exist yet, on the database that the test's parameter names."""
    return store_on(request.param)


@pytest.mark.parametrize("uri", databases(SHARED, ordinary=("sqlite",)), indirect=True)
def test_nothing_is_lost_or_doubled_when_processes_are_killed_or_paused(
    uri: str, tmp_path: Path, workers: Callable[..., Workers]
) -> None:
    some = workers(uri, 1, processes=3)
    some.wait_for(5)
    for step in range(2 * TIMES):
        some.kill_one(some.leader() if step % 2 else None)
        if some.rng.random() < 0.7:
            some.wait_for(some.rng.randrange(1, 8))
    for victim in (some.leader(), some.other()):
        with some.paused(victim):
            if uri.partition(":")[0] in NETWORKED:
                some.wait_for(3, but=victim)  # nobody waits for it
            else:  # it may hold a lock of the operating system
                time.sleep(1)
        some.wait_for(1)
    some.wait_for(3)
    some.stop()
    told = check(uri, tmp_path)
    assert len(told.keys("done")) > 20
    print(told)


MOST_WAIT_S = 20.0
"""Upper limit of the duration of a request while another process is dead or stopped, in seconds. By the
documentation, a request waits for at most a second if commits take at most 100 ms, but longer on a busy machine. A
process that waits for a dead one until its deadline needs more than 30 s."""


@pytest.mark.parametrize("uri", databases(SHARED, ordinary=("sqlite",)), indirect=True)
def test_a_process_that_dies_or_stops_in_any_role_delays_others_for_a_short_time(
    uri: str, tmp_path: Path, workers: Callable[..., Workers], pytestconfig: pytest.Config
) -> None:
    some = workers(uri, 5, processes=2)
    some.wait_for(2)
    scheme = uri.partition(":")[0]
    signals = (signal.SIGKILL, signal.SIGSTOP)
    for number, step in enumerate(STEPS):
        one = signals[(number + SHARED.index(scheme)) % 2]
        for by in signals if has_every_kill(scheme, pytestconfig) else (one,):
            victim = some.start(stops_at=step, by=by)
            since = some.wait_for_stop(victim)
            if by == signal.SIGSTOP and scheme not in NETWORKED:
                time.sleep(1)  # another thread of the process may hold a lock of the operating system
            else:
                some.wait_for(3, but=victim)
                longest = some.longest_request(since, but=victim)
                name = signal.Signals(by).name
                print(f"{name} {step}: the longest request of another process took {longest:.3f} s")
                assert longest < MOST_WAIT_S
            if by == signal.SIGSTOP:
                some.go_on(victim)
                some.wait_for(1)
                some.kill(victim)
    some.stop()
    told = check(uri, tmp_path)
    print(told)


@pytest.mark.parametrize("uri", databases(SHARED, ordinary=("sqlite",)), indirect=True)
def test_processes_of_a_release_without_intents_commit_beside_others(
    uri: str, tmp_path: Path, workers: Callable[..., Workers]
) -> None:
    some = workers(uri, 4, processes=2)
    earlier = [some.start(knows_intents=False) for _ in range(2)]
    some.wait_for(8)
    some.stop()
    told = check(uri, tmp_path)
    made = Counter(told.senders[key] for key in told.keys("done"))
    print(made)
    assert sum(made[number] for number in earlier) >= 16


@pytest.fixture
def release_without_intents(tmp_path: Path) -> Path:
    """A checkout of `BEFORE_INTENTS`."""
    return checkout(BEFORE_INTENTS, tmp_path / "checkout")


@pytest.mark.exhaustive
@pytest.mark.parametrize("uri", databases(SHARED), indirect=True)
def test_processes_of_the_real_release_without_intents_commit_beside_others(
    uri: str, tmp_path: Path, release_without_intents: Path, workers: Callable[..., Workers]
) -> None:
    some = workers(uri, 6, processes=2)
    make_earlier(uri)
    earlier = [some.start_earlier(release_without_intents) for _ in range(2)]
    some.wait_for(8)
    some.stop()
    for number in earlier:
        lines = list(events(tmp_path / f"journal-{number}"))
        assert not [line for line in lines if "at" in line]  # its journals had no times
    told = check(uri, tmp_path)
    made = Counter(told.senders[key] for key in told.keys("done"))
    print(made)
    assert sum(made[number] for number in earlier) >= 16


class LaterClock(SystemClock):
    """A clock that is ahead of this machine's clock."""

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
    """Return a seed with which a lease first tries this node."""
    return next(seed for seed in count() if random.Random(seed).sample(range(1_024), 16)[0] == node)


@pytest.fixture
def own_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server for this test alone, because the test kills it."""
    with start(server_class(request.param)) as server:
        yield server


@pytest.mark.parametrize("own_server", databases(NETWORKED), indirect=True)
def test_nothing_acknowledged_is_lost_when_the_server_is_killed(
    own_server: Server, tmp_path: Path, workers: Callable[..., Workers]
) -> None:
    uri = own_server.uri("killed")
    some = workers(uri, 3)
    some.wait_for(5)
    for _ in range(TIMES):
        time.sleep(some.rng.uniform(0.0, 0.3))
        own_server.kill()
        time.sleep(some.rng.uniform(0.0, 0.5))
        own_server.start()
        some.wait_for(3)
    some.stop()
    print(check(uri, tmp_path))
