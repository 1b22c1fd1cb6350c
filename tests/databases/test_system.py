"""Leases and realms on every database, with several processes."""

from __future__ import annotations

from polaris_spark.backends import open_backend
from polaris_spark.clock import SystemClock
from polaris_spark.ids import IdGenerator
from polaris_spark.system.leases import NodeLeases
from polaris_spark.system.stores import open_store
from polaris_spark.testing.processes import in_threads


def test_processes_that_lease_at_the_same_time_make_different_ids(store: str) -> None:
    clock = SystemClock()
    backends = [open_backend(store), open_backend(store)]
    open_store(backends[0], clock)

    def make(number: int) -> list[int]:
        ids = IdGenerator(NodeLeases(backends[number % 2], clock, nodes=12), clock)
        made = ids.next_ids(50)
        if number % 3:
            ids.release()
        return made

    made = [id for ids in in_threads(8, make) for id in ids]
    made += [id for ids in in_threads(6, make) for id in ids]
    assert len(set(made)) == len(made) == 14 * 50
    for backend in backends:
        backend.close()
