"""A catalog with the extension, and procedures that tests add."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import polaris_spark
from polaris_spark.jobs import registry
from polaris_spark.jobs.procedure import Column, Procedure
from polaris_spark.rest.access import Role
from polaris_spark.rest.session import Session
from tests.extension.callers import Asking

Add = Callable[..., Procedure]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """An open catalog."""
    store, warehouse = f"sqlite://{tmp_path}/store.db", str(tmp_path / "warehouse")
    with polaris_spark.connect(store=store, warehouse=warehouse, principal="ann") as opened:
        yield opened


@pytest.fixture
def local(session: Session) -> Asking:
    """A caller with the role of the program that opened the catalog."""
    return Asking(session, Role.LOCAL, "ann")


@pytest.fixture
def admin(session: Session, tmp_path: Path) -> Asking:
    """A caller with the role of an administrator of a server, which allows the folder `allowed`."""
    restricted = session.catalog.restricted([str(tmp_path / "allowed")])
    return Asking(session.derive(catalog=restricted), Role.ADMINISTRATOR)


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch) -> Add:
    """Adds a procedure until the end of a test."""
    known = dict(registry.procedures())
    monkeypatch.setattr(registry, "procedures", lambda: known)

    def adding(name: str, run: Any, **more: Any) -> Procedure:
        facts = {"parameters": (), "columns": (Column("n", "BIGINT"),), "over_http": True, **more}
        known[name] = Procedure(name=name, run=run, **facts)
        return known[name]

    return adding
