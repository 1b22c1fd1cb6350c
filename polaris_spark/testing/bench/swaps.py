"""What a database does by itself: clients that swap one row, by bare statements on connections of their own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from polaris_spark.testing.bench.measuring import Rate, run_for
from polaris_spark.testing.bench.processes import run_processes

_VALUE = bytes(200)
_READ = "SELECT version, value FROM swapped WHERE name = 'head'"
_SWAP = "UPDATE swapped SET version = %s, value = %s WHERE name = 'head' AND version = %s"


def prepare(uri: str) -> None:
    """Create the table and its one row."""
    import psycopg

    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS swapped")
        connection.execute("CREATE TABLE swapped (name text PRIMARY KEY, version bytea, value bytea)")
        connection.execute("INSERT INTO swapped VALUES ('head', %s, %s)", (bytes(16), _VALUE))


def by_threads(uri: str, clients: int, seconds: float) -> Rate:
    """Swaps per second of clients that are threads of one process. Failures are conflicts."""
    with swapper(uri, 0) as call:
        run_for(clients, seconds / 5, call)
        return run_for(clients, seconds, call)


def by_processes(uri: str, clients: int, seconds: float) -> Rate:
    """The same, each client a process of its own."""
    rates = run_processes(clients, 1, seconds, swapper, uri)
    return Rate(sum(rate.per_second for rate in rates), sum(rate.failures for rate in rates))


@contextmanager
def swapper(uri: str, _: int) -> Iterator[Callable[[int, int], None]]:
    """Swaps of the row, from the version that this client left behind; after a conflict it reads the row first.

    To read before every swap is the slower way: whoever has just swapped is the likeliest to swap next.
    """
    import psycopg

    connections: list[psycopg.Connection] = []
    own = threading.local()

    def swap(_: int, __: int) -> None:
        if not hasattr(own, "connection"):
            own.connection = psycopg.connect(uri, autocommit=True, prepare_threshold=0)
            own.version = None
            connections.append(own.connection)
        if own.version is None:
            own.version = own.connection.execute(_READ).fetchone()[0]
        new = os.urandom(16)
        done = own.connection.execute(_SWAP, (new, _VALUE, own.version))
        own.version = new if done.rowcount == 1 else None
        if own.version is None:
            raise RuntimeError("another client swapped first")

    try:
        yield swap
    finally:
        for connection in connections:
            connection.close()
