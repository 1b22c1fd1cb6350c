"""Backends of databases whose servers take long to install or to start are tested when asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

ASKED_FOR = ("azure", "bigtable", "cassandra", "dynamodb", "google", "mariadb", "mongodb")
"""Folders whose tests have the marker `databases`."""

_HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.parent == _HERE and item.path.parent.name in ASKED_FOR:
            item.add_marker(pytest.mark.databases)
