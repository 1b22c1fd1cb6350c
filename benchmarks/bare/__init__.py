"""The minimum cost of a swap: the same statement as the backend's, on the backend's tables, sent by the driver alone.

There is one module for each database, by the scheme of its stores. Rows are in the realm `bare`. The backend inserts
the rows, and these modules swap them.
"""

from __future__ import annotations

import importlib
from typing import Final, Protocol

from polaris_spark.backends.base import ReferenceRow

REALM: Final = "bare"


class Client(Protocol):
    """A client for the swaps of one thread."""

    def swap(self, name: str, expected: bytes, new: ReferenceRow) -> bool:
        """Swap the row `name` by the backend's statement for swaps; return whether the swap succeeded."""
        ...

    def version(self, name: str) -> bytes:
        """Read the row `name` by the backend's statement for reads; return its version."""
        ...


class Bare(Protocol):
    """A store that is opened by its driver alone. Its backend must have set it up before."""

    def client(self) -> Client:
        """Return a client for one thread, with its own connection, or with a shared one if this is best practice."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


def open_bare(uri: str) -> Bare:
    """Open the store of a URI.

    Raises:
        ImportError: there is no module for the URI's scheme.
    """
    module = importlib.import_module(f"{__name__}.{uri.partition(':')[0]}")
    opened: Bare = module.open_bare(uri)
    return opened
