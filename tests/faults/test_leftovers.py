"""Rows and files that a process leaves if it dies during a commit, and the job that deletes them."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.backends.base import ObjectKey
from polaris_spark.catalog.files import local_path
from polaris_spark.commits.builder import Builder
from polaris_spark.commits.files import BatchFiles
from polaris_spark.commits.publication import Publication
from polaris_spark.jobs.registry import call
from polaris_spark.testing.processes import rows
from polaris_spark.testing.waiting import PATIENCE_S
from tests.maintenance.lakes import age
from tests.rest.client import Client, connect, files_below, new_key, set_properties

AFTER: dict[int, tuple[Any, str]] = {
    3: (BatchFiles, "write"),
    4: (Builder, "build"),
    5: (Publication, "_swap"),
}
"""What comes after a step of a commit, by the number of the step."""


def opened(folder: Path) -> Client:
    """A client of a store that writes the rows before the swap."""
    return connect(f"file://{folder}/store", folder / "warehouse", metadata_files="every-commit", grace="0 s")


def die_after(step: int, folder: Path, key: str) -> None:
    """Commit with a key, and be killed after a step. Called in another process."""
    client = opened(folder)
    owner, name = AFTER[step]
    setattr(owner, name, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    client.commit("t", set_properties(by="the dead"), key=key)


def rows_of(client: Client) -> set[ObjectKey]:
    """Return the keys of all objects of the catalog's realm."""
    store = client.session.catalog.references.store
    splits = store.backend.splits("objects", [store.realm], 1)
    return {ObjectKey(*row[1:3]) for row in rows(store.backend, splits)}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client of a catalog with the table `db.t`, and no garbage."""
    client = opened(tmp_path)
    client.namespace("db")
    client.create("t")
    call(client.session, "sweep")
    yield client
    client.session.close()


@pytest.mark.parametrize("step", AFTER)
def test_what_a_dead_process_leaves_is_removed_and_its_request_can_be_repeated(
    client: Client, tmp_path: Path, step: int
) -> None:
    warehouse, key = tmp_path / "warehouse", new_key()
    files, stored, before = files_below(warehouse), rows_of(client), client.load()
    process = multiprocessing.get_context("spawn").Process(target=die_after, args=(step, tmp_path, key))
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == -signal.SIGKILL
    left_files, left_rows = files_below(warehouse) - files, rows_of(client) - stored
    assert [name.endswith(".metadata.json") for name in left_files] == [True] * (step >= 4)
    assert bool(left_rows) == (step == 5)
    assert client.load() == before

    call(client.session, "sweep")
    assert rows_of(client) == stored
    for name in files | left_files:
        age(warehouse / name, days=4)
    removed = call(client.session, "remove_orphans", dry_run=False)
    assert {local_path(row[0]) for row in removed} == {warehouse / name for name in left_files}
    assert files_below(warehouse) == files

    assert client.commit("t", set_properties(by="the repeat"), key=key).status == 200
    assert client.load()["metadata"]["properties"]["by"] == "the repeat"
