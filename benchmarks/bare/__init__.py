"""What a swap costs at least: the same statement as a backend's, on its own tables, by its driver and nothing else.

One module for each database, by the scheme of its stores. Rows are in the realm `bare`; they are inserted by the
backend, and swapped here.
"""

from __future__ import annotations

import importlib
from typing import Final, Protocol

from polaris_spark.backends.base import ReferenceRow

REALM: Final = "bare"

MODULES: Final = {
    "bigtable": "benchmarks.bare.bigtable",
    "cassandra": "benchmarks.bare.cassandra",
    "dynamodb": "benchmarks.bare.dynamodb",
    "mariadb": "benchmarks.bare.mariadb",
    "mongodb": "benchmarks.bare.mongodb",
    "mysql": "benchmarks.bare.mariadb",
    "postgresql": "benchmarks.bare.postgresql",
    "rocksdb": "benchmarks.bare.rocksdb",
    "s3": "benchmarks.bare.s3",
    "sqlite": "benchmarks.bare.sqlite",
}
"""Scheme to the module that has `open_bare(uri)`."""


class Client(Protocol):
    """What one thread swaps with."""

    def swap(self, name: str, expected: bytes, new: ReferenceRow) -> bool:
        """The backend's own statement for a swap of the row `name`; whether it took place."""
        ...

    def version(self, name: str) -> bytes:
        """The version of the row `name`, by the backend's own statement for reading it."""
        ...


class Bare(Protocol):
    """A store opened by its driver alone, set up by its backend before."""

    def client(self) -> Client:
        """For one thread: a connection of its own, or the driver's shared one where experts would share it."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


def open_bare(uri: str) -> Bare:
    """The store of a URI.

    Raises:
        KeyError: its scheme has no module.
    """
    module = importlib.import_module(MODULES[uri.partition(":")[0]])
    opened: Bare = module.open_bare(uri)
    return opened
