"""Tables that are registered by their metadata files."""

from __future__ import annotations

import pytest

from tests.rest.client import (
    Client,
    path,
)

MODES = pytest.mark.parametrize("mode", ["every-commit", "never"])


def register(catalog: Client, location: str, name: str = "r", **rest: object) -> object:
    """Register a metadata file as a table of the namespace `db`."""
    return catalog.send(
        "POST", f"{path('db')}/register", {"name": name, "metadata-location": location, **rest}
    )


def metadata_of(catalog: Client, name: str = "t") -> dict:
    """Load a table, and return its metadata."""
    return catalog.load(name)["metadata"]
