"""Round trips between a catalog and its database: operations of the backend, and exchanges on the wire."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.catalogs import Ours
from benchmarks.measurement import Sample
from benchmarks.traffic import counted
from polaris_spark.store.cache import process_cache
from polaris_spark.testing.proxy import NONE, FaultyProxy
from polaris_spark.testing.server import Server

_CALLS = 20


def round_trips(uri: Callable[[str], str], server: Server | None) -> dict[str, Sample]:
    """Count round trips of a property commit and of loads of a table, in a new catalog with open connections.

    One operation may be several parallel exchanges if the database has no request for many rows. Some protocols send
    messages without a request (gRPC over HTTP/2). For these, the number of exchanges, as counted by a proxy, is an
    upper bound.

    Returns:
        sequential operations per call and exchanges per call, by workload.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store, proxy = uri("trips"), None
        if server is not None:
            proxy = stack.enter_context(FaultyProxy("127.0.0.1", server.port, faults=NONE))
            store = server.uri("trips", port=proxy.port)
        ours = Ours(folder, metadata_files="never", store=store)
        stack.callback(ours.close)
        handle = ours.create("table")
        works: dict[str, Callable[[int], None]] = {
            "commit": lambda number: ours.set_property(handle, str(number)),
            "warm load": lambda _: ours.load(handle),
            "cold load": lambda _: _cold(ours, handle),
        }
        found: dict[str, Sample] = {}
        with counted(ours.session.connection.backend) as traffic:
            for name, work in works.items():
                work(-1)
                traffic.clear()
                before = proxy.exchanges if proxy else 0
                for number in range(_CALLS):
                    work(number)
                found[f"{name}: operations"] = Sample((traffic.round_trips / _CALLS,))
                if proxy:
                    found[f"{name}: exchanges"] = Sample(((proxy.exchanges - before) / _CALLS,))
        return found


def _cold(ours: Ours, handle: object) -> None:
    process_cache().clear()
    ours.load(handle)
