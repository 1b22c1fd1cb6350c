"""If a change was committed, the answer never says that it was not."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.errors import TryAgainError
from polaris_spark.store.cache import process_cache
from tests.faults.checking import log_of
from tests.rest.client import (
    Client,
    connect,
    new_key,
    set_properties,
    table,
    table_request,
    view,
    view_request,
)

REQUESTS = [
    ("v1/namespaces/db/tables", table_request("new")),
    (table("t"), {"requirements": [], "updates": [set_properties(a="1")]}),
    ("v1/namespaces/db/views", view_request("new")),
    (view("v"), {"updates": [set_properties(a="1")]}),
]


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Client]:
    """A catalog with a table and a view."""
    client = connect(f"memory:{uuid.uuid4()}", tmp_path, metadata_files="never")
    client.namespace("db")
    client.create("t")
    client.ok("POST", "v1/namespaces/db/views", view_request("v"))
    yield client
    client.session.close()


@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=[path for path, _ in REQUESTS])
def test_a_change_whose_answer_cannot_be_read_has_an_unknown_outcome_until_it_is_repeated(
    catalog: Client, monkeypatch: pytest.MonkeyPatch, path: str, body: Any
) -> None:
    backend: Any = catalog.session.connection.backend
    swap = backend.write_and_swap

    def fail(*_: object) -> None:
        raise TryAgainError("no connection; nothing was changed")

    def swap_then_fail(*arguments: Any) -> Any:
        outcome = swap(*arguments)
        process_cache().clear()
        monkeypatch.setattr(backend, "read_objects", fail)
        return outcome

    key, before = new_key(), len(log_of(catalog))
    monkeypatch.setattr(backend, "write_and_swap", swap_then_fail)
    answer = catalog.send("POST", path, body, key=key)
    monkeypatch.undo()
    assert len(log_of(catalog)) == before + 1
    assert answer.kind == (504, "CommitStateUnknownException")
    assert catalog.ok("POST", path, body, key=key)
    assert len(log_of(catalog)) == before + 1
