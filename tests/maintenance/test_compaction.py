"""Compaction makes indexes smaller and changes nothing else, also while other processes commit."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from polaris_spark.catalog.rows import LOCATIONS
from polaris_spark.commits.log import entries
from polaris_spark.errors import PolarisError
from polaris_spark.index import Entry
from polaris_spark.jobs.registry import call
from polaris_spark.maintenance.compaction import CompactionResult, compact_reference
from polaris_spark.maintenance.fsck.checker import RealmCheck
from polaris_spark.testing.waiting import wait_until
from tests.catalog.branches.test_log import check as check_replay
from tests.rest.client import Client, connect, set_properties, table, table_request, tables

TABLES = 450


@pytest.fixture(params=["memory", "sqlite"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    store = (
        f"memory:{uuid.uuid4()}" if request.param == "memory" else f"sqlite://{tmp_path}/s.db?synchronous=off"
    )
    client = connect(store, tmp_path / "files", metadata_files="never")
    grown(client)
    yield client
    client.session.close()


def grown(client: Client) -> None:
    """Create many tables in random order, and drop two thirds of them."""
    rng = random.Random(1)
    client.namespace("db")
    numbers = list(range(TABLES))
    rng.shuffle(numbers)
    for number in numbers:
        client.create(f"t{number:04}")
    for number in numbers:
        if number % 3:
            client.ok("DELETE", table(f"t{number:04}"))


def content(client: Client) -> dict[str, list[tuple[bytes, Entry]]]:
    """Return all entries of the head's indexes."""
    head = client.session.catalog.head()
    return {name: list(head.index(name).range()) for name in head.commit.index_names}


def compacted(client: Client, leaves: int = 64) -> dict[str, CompactionResult]:
    catalog = client.session.catalog
    done = compact_reference(catalog.references, catalog.reference, "me", leaves=leaves)
    return {one.index_name: one for one in done}


@pytest.mark.parametrize("leaves", [3, 64])
def test_the_content_stays_and_shards_are_fewer(catalog: Client, leaves: int) -> None:
    before = content(catalog)
    done = compacted(catalog, leaves)
    assert content(catalog) == before
    for name in ("names", "locations"):
        assert done[name].after.shards < 0.8 * done[name].before.shards, done[name]
        assert done[name].after.bytes < done[name].before.bytes
    assert all(one.after.shards <= one.before.shards for one in done.values())
    assert all(one.after.depth <= one.before.depth for one in done.values())
    assert catalog.load("t0003")["metadata"]
    session = catalog.session
    assert RealmCheck(session.connection.backend, session.connection.clock).run() == []
    check_replay(catalog)


def test_well_filled_shards_are_not_rewritten(catalog: Client) -> None:
    compacted(catalog)
    head = catalog.session.catalog.head()
    again = compacted(catalog)
    assert catalog.session.catalog.head().head == head.head
    assert all(one.before == one.after for one in again.values())


def test_compaction_writes_no_log_entry(catalog: Client) -> None:
    before = catalog.session.catalog.head().head.number
    compacted(catalog)
    head = catalog.session.catalog.head()
    assert head.head.number > before
    newer = [entry for _, commit, _, entry in entries(head.store, head.head) if commit.number > before]
    assert newer == []


def test_compaction_continues_while_other_processes_commit(catalog: Client) -> None:
    done: list[int] = []
    stop = threading.Event()

    def write(number: int) -> None:
        rng = random.Random(number)
        while not stop.is_set():
            name = f"w{number}-{rng.randrange(10)}"
            method, path, body = rng.choice(
                [
                    ("POST", tables("db"), table_request(name)),
                    (
                        "POST",
                        table(name),
                        {"requirements": [], "updates": [set_properties(a=str(len(done)))]},
                    ),
                    ("DELETE", table(name), None),
                ]
            )
            done.append(catalog.send(method, path, body).status)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(done) > 50, "writers commit")
        outcomes = compacted(catalog, leaves=8)
        count = len(done)
        wait_until(lambda: len(done) > count + 50, "writers go on")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert max(done) < 500
    assert outcomes[LOCATIONS].after.shards < outcomes[LOCATIONS].before.shards
    check_replay(catalog)
    session = catalog.session
    assert RealmCheck(session.connection.backend, session.connection.clock).run() == []


def test_a_failing_change_in_the_same_batch_does_not_undo_compaction(catalog: Client) -> None:
    """The compaction and other changes are in one group commit, between savepoints."""
    before = content(catalog)
    references, reference = catalog.session.catalog.references, catalog.session.catalog.reference
    done: list[object] = []
    threads = [
        threading.Thread(
            target=lambda: done.append(list(compact_reference(references, reference, "me", leaves=5)))
        ),
        *(
            threading.Thread(target=lambda: done.append(catalog.send("DELETE", table("nobody")).status))
            for _ in range(8)
        ),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done.count(404) == 8
    assert content(catalog) == before


def test_the_procedure_compacts_all_references_or_one(catalog: Client) -> None:
    session = catalog.session
    rows = call(session, "compact_index", reference=session.catalog.reference)
    assert {row[0] for row in rows} == {session.catalog.reference}
    assert all(row[3] < row[2] for row in rows if row[1] in ("names", "locations"))
    assert {row[0] for row in call(session, "compact_index")} >= {
        session.catalog.reference,
        "catalogs",
        "root",
    }
    with pytest.raises(PolarisError, match="no live reference 'nobody'"):
        call(session, "compact_index", reference="nobody")
