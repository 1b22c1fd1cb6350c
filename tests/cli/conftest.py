"""One store for all tests that only read."""

from __future__ import annotations

import pytest

from tests.cli.catalogs import make_catalog


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """URI of a store with the history that `catalogs.fill` makes."""
    return make_catalog(tmp_path_factory.mktemp("cli"))
