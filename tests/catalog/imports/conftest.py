"""Fixtures of the import tests: those of the protocol tests, and a directory tree to import from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rest.conftest import catalog, opened, shared_store, store, warehouse

__all__ = ["catalog", "opened", "root", "shared_store", "store", "warehouse"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root of the directory tree."""
    folder = tmp_path / "source"
    folder.mkdir()
    return folder
