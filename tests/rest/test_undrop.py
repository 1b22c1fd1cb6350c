"""Restoring dropped tables and views."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import polaris_spark
from polaris_spark.clock import ManualClock
from polaris_spark.commits.rows import Commit, Entries
from polaris_spark.commits.upkeep import raise_floor
from polaris_spark.errors import (
    AlreadyExistsError,
    BadRequestError,
    InputError,
    MergeConflictError,
    NotFoundError,
    PolarisError,
)
from polaris_spark.jobs.registry import call
from tests.rest.appends import appendable
from tests.rest.client import VIEW_VERSION, Client, table, view
from tests.rest.icebergs import ROWS, open_table
from tests.rest.materialized import create_materialized_view, refresh

DAY = 24 * 3_600_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(int(time.time() * 1_000))


@pytest.fixture
def catalog(tmp_path: Path, clock: ManualClock) -> Iterator[Client]:
    store, warehouse = f"sqlite://{tmp_path / 'store.db'}", str(tmp_path / "warehouse")
    with polaris_spark.connect(store=store, warehouse=warehouse, clock=clock) as session:
        client = Client(session)
        client.namespace("db")
        yield client
        assert call(session, "fsck") == []


def undrop(client: Client, name: str, **more: Any) -> tuple[Any, ...]:
    [row] = call(client.session, "undrop", table=name, **more)
    return row


def number(client: Client) -> int:
    return client.session.catalog.head().head.number


def refused(client: Client, kind: type[PolarisError], match: str, name: str, **more: Any) -> None:
    """Check that a call fails and changes nothing."""
    before = number(client)
    with pytest.raises(kind, match=match):
        undrop(client, name, **more)
    assert number(client) == before


def test_a_table_is_restored_with_its_identity_and_content(catalog: Client) -> None:
    appendable(catalog, "t", version=2)
    catalog.set("t", **{"my.a": "1"})
    before = catalog.load("t")
    catalog.ok("DELETE", table("t"))
    assert undrop(catalog, "db.t") == ("table", "db.t")
    assert catalog.load("t") == before
    head = catalog.session.catalog.head()
    [entry] = head.store.get(head.commit.entries, Entries).entries
    assert (entry.action, entry.before, bool(entry.after)) == ("create-table", 0, True)
    assert entry.summary == {"from": "undrop db.t"}
    refused(catalog, AlreadyExistsError, "restored already", "db.t")
    catalog.ok("DELETE", table("t"))
    assert undrop(catalog, "db.t") == ("table", "db.t")


def test_views_and_materialized_views_are_restored(catalog: Client) -> None:
    body = {
        "name": "v",
        "schema": {"type": "struct", "fields": []},
        "view-version": VIEW_VERSION,
        "properties": {},
    }
    catalog.ok("POST", "v1/namespaces/db/views", body)
    create_materialized_view(catalog.session.catalog, "mv")
    uuid = catalog.ok("GET", view("mv"))["metadata"]["view-uuid"]
    storage = table("storage", ("db", "mv"))
    assert catalog.send("POST", storage, refresh(uuid, 7, 1)).status == 200
    for name in ("v", "mv"):
        catalog.ok("DELETE", view(name))
    assert undrop(catalog, "db.v") == ("view", "db.v")
    refused(catalog, BadRequestError, "under its old name", "db.mv", to="db.other")
    assert undrop(catalog, "db.mv") == ("view", "db.mv")
    assert catalog.ok("GET", storage)["metadata"]["current-snapshot-id"] == 7


def test_a_taken_name_needs_another_one_and_an_older_drop_can_be_chosen(catalog: Client) -> None:
    drops = []
    for value in ("first", "second"):
        catalog.create("t", properties={"my.a": value})
        catalog.ok("DELETE", table("t"))
        drops.append(number(catalog))
    catalog.create("t")
    refused(
        catalog, MergeConflictError, "the branch has another table of this name; give another name", "db.t"
    )
    assert undrop(catalog, "db.t", to="db.newest") == ("table", "db.newest")
    assert undrop(catalog, "db.t", to="db.older", commit=drops[0]) == ("table", "db.older")
    values = [catalog.load(name)["metadata"]["properties"]["my.a"] for name in ("newest", "older")]
    assert values == ["second", "first"]


def test_what_cannot_be_restored_is_refused(catalog: Client) -> None:
    refused(catalog, NotFoundError, "no table or view db.t was dropped", "db.t")
    refused(catalog, InputError, "write it like db.t", "t")
    catalog.create("t")
    catalog.ok("DELETE", table("t"), query={"purgeRequested": "true"})
    refused(catalog, BadRequestError, "dropped with PURGE", "db.t")
    catalog.namespace("gone")
    catalog.create("t", namespace=("gone",))
    location = catalog.load("t", namespace=("gone",))["metadata"]["location"]
    catalog.ok("DELETE", table("t", ("gone",)))
    dropped = number(catalog)
    catalog.ok("DELETE", "v1/namespaces/gone")
    refused(catalog, MergeConflictError, "namespace gone does not exist", "gone.t")
    catalog.create("inside", location=location)
    refused(catalog, MergeConflictError, "overlaps", "gone.t", to="db.back")
    refused(catalog, NotFoundError, f"by commit {dropped - 1}", "gone.t", commit=dropped - 1)


def test_a_drop_that_is_trimmed_cannot_be_undone(catalog: Client) -> None:
    catalog.create("t")
    catalog.ok("DELETE", table("t"))
    catalog.namespace("later")
    here = catalog.session.catalog
    head = here.head()
    here.references.open(here.reference).amend(
        lambda now: raise_floor(now, head.store.get(head.head.commit, Commit))
    )
    refused(catalog, NotFoundError, f"since commit {head.head.number}", "db.t")


def test_jobs_keep_what_a_restored_table_needs(catalog: Client, clock: ManualClock) -> None:
    catalog.create("t")
    rows = open_table(catalog, "t")
    rows.append(ROWS)
    catalog.ok("DELETE", table("t"))
    clock.advance(2 * DAY)
    call(catalog.session, "sweep")
    call(catalog.session, "remove_orphans", older_than="0 s", force=True, dry_run=False)
    undrop(catalog, "db.t")
    clock.advance(30 * DAY)
    catalog.namespace("later")
    call(catalog.session, "sweep")
    call(catalog.session, "remove_orphans", older_than="0 s", force=True, dry_run=False)
    assert open_table(catalog, "t").scan().to_arrow().sort_by("a") == ROWS.sort_by("a")
