"""Rows and files that a process leaves if it dies during a commit, and the job that deletes them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.backends.base import ObjectKey
from polaris_spark.catalog.files.files import local_path
from polaris_spark.commits.builder import Builder
from polaris_spark.commits.files import BatchFiles
from polaris_spark.commits.handover import Handover
from polaris_spark.commits.intents import SLOT_COMMITS, Intents, Published
from polaris_spark.commits.publication import Publication
from polaris_spark.commits.retry import Turns
from polaris_spark.commits.rows import Head
from polaris_spark.jobs.registry import call
from polaris_spark.testing.processes import rows
from polaris_spark.testing.waiting import PATIENCE_S
from tests.faults.checking import check_references
from tests.forking import context, preload
from tests.maintenance.lakes import age
from tests.rest.client import Client, connect, files_below, new_key, set_properties

preload(__name__)

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


def publish_and_die(folder: Path, key: str) -> None:
    """Publish a change as an intent, as a process does that competes with others, and be killed. Called in another
    process."""
    client = opened(folder)
    base, publish = Handover.base_for_intent, Intents.publish

    def publish_intent(intents: Intents, published: Published, head: Head) -> None:
        publish(intents, published, head)
        os.kill(os.getpid(), signal.SIGKILL)

    Turns.contended = Turns.crowded = True  # type: ignore[assignment,method-assign]  # as after two lost swaps
    Handover.base_for_intent = lambda self, *, lost: base(self, lost=True)  # type: ignore[method-assign]
    Intents.publish = publish_intent  # type: ignore[assignment,method-assign]
    client.commit("t", set_properties(by="the dead"), key=key)


def dead(target: Callable[..., None], *arguments: object) -> None:
    """Call a function in another process, which must be killed in it."""
    process = context.Process(target=target, args=arguments)
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == -signal.SIGKILL


def removed_files(client: Client, warehouse: Path) -> set[Path | None]:
    """Delete files that are not needed, as if all files were four days old. Return their paths."""
    for name in files_below(warehouse):
        age(warehouse / name, days=4)
    return {local_path(row[0]) for row in call(client.session, "remove_orphans", dry_run=False)}


def rows_of(client: Client) -> set[ObjectKey]:
    """Return the keys of all objects of the catalog's realm."""
    store = client.session.catalog.references.store
    splits = store.backend.splits("objects", [store.realm], 1)
    return {ObjectKey(*row[1:3]) for row in rows(store.backend, splits)}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client of a catalog with the tables `db.t` and `db.other`, and no garbage."""
    client = opened(tmp_path)
    client.namespace("db")
    client.create("t")
    client.create("other")
    call(client.session, "sweep")
    yield client
    client.session.close()


@pytest.mark.parametrize("step", AFTER)
def test_what_a_dead_process_leaves_is_removed_and_its_request_can_be_repeated(
    client: Client, tmp_path: Path, step: int
) -> None:
    warehouse, key = tmp_path / "warehouse", new_key()
    files, stored, before = files_below(warehouse), rows_of(client), client.load()
    dead(die_after, step, tmp_path, key)
    left_files, left_rows = files_below(warehouse) - files, rows_of(client) - stored
    assert [name.endswith(".metadata.json") for name in left_files] == [True] * (step >= 4)
    assert bool(left_rows) == (step == 5)
    assert client.load() == before

    call(client.session, "sweep")
    assert rows_of(client) == stored
    assert removed_files(client, warehouse) == {warehouse / name for name in left_files}
    assert files_below(warehouse) == files

    assert client.commit("t", set_properties(by="the repeat"), key=key).status == 200
    assert client.load()["metadata"]["properties"]["by"] == "the repeat"


def test_an_intent_of_a_dead_process_that_nobody_carried_out_is_removed(
    client: Client, tmp_path: Path
) -> None:
    warehouse, key = tmp_path / "warehouse", new_key()
    files, stored, before = files_below(warehouse), rows_of(client), client.load()
    dead(publish_and_die, tmp_path, key)
    (slot,) = client.session.catalog.head().head.slots
    assert rows_of(client) - stored == {ObjectKey(slot.following)}
    left_files = files_below(warehouse) - files
    assert [name.endswith(".metadata.json") for name in left_files] == [True]

    call(client.session, "sweep")
    assert rows_of(client) == stored
    assert removed_files(client, warehouse) == {warehouse / name for name in left_files}
    assert files_below(warehouse) == files
    assert client.load() == before

    for number in range(SLOT_COMMITS + 2):
        client.set("other", number=str(number))
    assert client.session.catalog.head().head.slots == ()
    assert client.load() == before
    assert client.commit("t", set_properties(by="the repeat"), key=key).status == 200
    assert client.load()["metadata"]["properties"]["by"] == "the repeat"


def test_only_the_intent_of_a_dead_process_is_removed_if_another_one_carried_it_out(
    client: Client, tmp_path: Path
) -> None:
    warehouse, key = tmp_path / "warehouse", new_key()
    files, stored = files_below(warehouse), rows_of(client)
    dead(publish_and_die, tmp_path, key)
    (slot,) = client.session.catalog.head().head.slots
    (left_file,) = files_below(warehouse) - files
    client.set("other", by="the living")
    after = client.load()
    assert after["metadata"]["properties"]["by"] == "the dead"
    assert after["metadata-location"].endswith(left_file)

    kept = files_below(warehouse)
    call(client.session, "sweep")
    assert removed_files(client, warehouse) == set()
    assert files_below(warehouse) == kept
    assert ObjectKey(slot.following) not in rows_of(client)
    assert client.load() == after
    store = client.session.catalog.references.store
    assert check_references(store.backend, store.realm) > len(stored)
    assert client.commit("t", set_properties(by="the dead"), key=key).status == 200  # the repeat
    assert client.load() == after
